// Every setting reaches the part that it is for, and what does not fit together or on the host is
// refused by name.
#include "services/kvarved/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

namespace kvarve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

HostMemory Host() {
  HostMemory host;
  host.total_bytes = 100ull << 30;
  host.available_bytes = 64ull << 30;
  return host;
}

using Flags = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<DaemonOptions> Options(const Flags& flags, const HostMemory& host = Host()) {
  const absl::StatusOr<Config> config = Config::Load({.flags = flags});
  if (!config.ok()) return config.status();
  return DaemonOptionsOf(*config, host);
}

std::string Error(const Flags& flags) { return std::string(Options(flags).status().message()); }

TEST(DaemonOptionsTest, Defaults) {
  const auto options = Options({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->cache.arena.capacity_bytes, DefaultArenaBytes(Host()));
  EXPECT_EQ(options->cache.arena.capacity_bytes,
            (64ull << 30) * 40 / 100 / kExtentBytes * kExtentBytes);
  EXPECT_TRUE(options->cache.arena.hold_dropped);
  EXPECT_NE(options->cache.arena.available_bytes, nullptr);
  EXPECT_TRUE(options->local.allowed_uids.empty());
  EXPECT_FALSE(options->rpc.has_value());
  // The parts' own defaults are the table's.
  const LocalServerOptions local;
  EXPECT_EQ(options->local.socket_path, local.socket_path);
  EXPECT_EQ(options->local.default_tenant, local.default_tenant);
  EXPECT_EQ(options->local.max_sessions, local.max_sessions);
  EXPECT_EQ(options->local.max_sessions_per_uid, local.max_sessions_per_uid);
  EXPECT_EQ(options->local.max_hold_nanos, local.max_hold_nanos);
  EXPECT_EQ(options->local.staging_bytes_per_session, local.staging_bytes_per_session);
  EXPECT_EQ(options->local.staging_bytes_per_process, local.staging_bytes_per_process);
  EXPECT_EQ(options->local.staging_bytes_total, local.staging_bytes_total);
  EXPECT_EQ(options->local.slow_request_nanos, local.slow_request_nanos);
  EXPECT_EQ(options->local.poll_nanos, local.poll_nanos);
  EXPECT_EQ(options->cache.max_entries, CacheOptions().max_entries);
  EXPECT_EQ(options->cache.max_namespaces_per_tenant, CacheOptions().max_namespaces_per_tenant);
  EXPECT_EQ(options->cache.arena.chunk_bytes, ArenaOptions().chunk_bytes);
}

// Blocks that come lie in the host tier: a quarter of it is enough for them.
TEST(DaemonOptionsTest, WhatMayComeAtOnceFollowsTheHostTier) {
  const auto write_bytes = [](const char* capacity, const char* wanted) {
    const auto options = Options({{"arena.capacity_bytes", capacity},
                                  {"rpc.listen", "127.0.0.1:0"},
                                  {"rpc.token_file", "/tmp/token"},
                                  {"rpc.write_bytes", wanted}});
    EXPECT_TRUE(options.ok()) << options.status();
    return options->rpc->streams.write_bytes >> 20;
  };
  EXPECT_EQ(write_bytes("8GiB", "256MiB"), 256u);
  EXPECT_EQ(write_bytes("512MiB", "256MiB"), 128u);
  EXPECT_EQ(write_bytes("512MiB", "64MiB"), 64u);
  EXPECT_EQ(write_bytes("64MiB", "256MiB"), 32u);
}

TEST(DaemonOptionsTest, EverySettingArrives) {
  const auto options = Options({{"socket.path", "/tmp/s"},
                                {"socket.allow_uids", "1,2"},
                                {"socket.allow_gids", "3"},
                                {"socket.admin_uids", "4"},
                                {"arena.capacity_bytes", "1GiB"},
                                {"arena.chunk_bytes", "64MiB"},
                                {"arena.huge_pages", "false"},
                                {"arena.prefault", "false"},
                                {"cache.max_entries", "5000"},
                                {"tenant.default", "team"},
                                {"tenant.rules", "uid:7=a,gid:8=b=c"},
                                {"tenant.state_dir", "/tmp/state"},
                                {"tenant.names", "c,d"},
                                {"tenant.quotas", "a=host_bytes:64MiB..,e=connections:1..5"},
                                {"tenant.default_quota", "entries:..77"},
                                {"limits.ingest_bytes_per_second", "8MiB"},
                                {"limits.sessions", "9"},
                                {"limits.sessions_per_uid", "8"},
                                {"limits.namespaces_per_tenant", "7"},
                                {"limits.lease_total_bytes", "6MiB"},
                                {"limits.lease_process_bytes", "5MiB"},
                                {"limits.hold", "4s"},
                                {"limits.staging_session_bytes", "3MiB"},
                                {"limits.staging_process_bytes", "4MiB"},
                                {"limits.staging_total_bytes", "5MiB"},
                                {"log.level", "error"},
                                {"log.format", "json"},
                                {"log.slow_request", "7ms"},
                                {"socket.poll", "6us"},
                                {"metrics.listen", "off"},
                                {"rpc.listen", "127.0.0.1:7410"},
                                {"rpc.token_file", "/tmp/token"},
                                {"rpc.tls_certificate_file", "/tmp/crt"},
                                {"rpc.tls_key_file", "/tmp/key"},
                                {"rpc.tls_client_ca_file", "/tmp/ca"},
                                {"rpc.trust_domain", "corp"},
                                {"rpc.insecure_plaintext_off_loopback", "true"},
                                {"rpc.token_keys_file", "/tmp/keys"},
                                {"rpc.revocations_file", "/tmp/revoked"},
                                {"rpc.token_audience", "us"},
                                {"rpc.token_issuer", "them"},
                                {"rpc.reload_interval", "7s"},
                                {"rpc.max_connections", "77"},
                                {"rpc.greeting", "30s"},
                                {"rpc.admin_listen", "127.0.0.1:7411"},
                                {"rpc.max_message_bytes", "2MiB"}});
  ASSERT_TRUE(options.ok()) << options.status();
  const LocalServerOptions& local = options->local;
  EXPECT_EQ(local.socket_path, "/tmp/s");
  EXPECT_THAT(local.allowed_uids, ElementsAre(1, 2, ::geteuid()));
  EXPECT_THAT(local.allowed_gids, ElementsAre(3));
  EXPECT_THAT(local.admin_uids, ElementsAre(4));
  EXPECT_EQ(local.default_tenant, "team");
  ASSERT_EQ(local.tenants.size(), 2u);
  EXPECT_EQ(local.tenants[0].uid, 7u);
  EXPECT_EQ(local.tenants[0].gid, std::nullopt);
  EXPECT_EQ(local.tenants[0].tenant, "a");
  EXPECT_EQ(local.tenants[1].gid, 8u);
  EXPECT_EQ(local.tenants[1].tenant, "b=c");
  EXPECT_EQ(local.state_dir, "/tmp/state");
  EXPECT_THAT(local.more_tenants, ElementsAre("a", "c", "d", "e"));
  ASSERT_EQ(options->cache.quotas.size(), 2u);
  EXPECT_EQ(options->cache.quotas.at("a").of(Resource::kHostBytes).floor, 64u << 20);
  EXPECT_EQ(options->cache.default_quota.of(Resource::kEntries).ceiling, 77u);
  EXPECT_EQ(options->cache.ingest_bytes_per_second, 8u << 20);
  EXPECT_EQ(local.quotas, options->cache.quotas);
  EXPECT_EQ(local.default_quota, options->cache.default_quota);
  EXPECT_EQ(local.max_sessions, 9u);
  EXPECT_EQ(local.max_sessions_per_uid, 8u);
  EXPECT_EQ(local.lease_bytes_per_process, 5u << 20);
  EXPECT_EQ(local.max_hold_nanos, 4'000'000'000);
  EXPECT_EQ(local.staging_bytes_per_session, 3u << 20);
  EXPECT_EQ(local.staging_bytes_per_process, 4u << 20);
  EXPECT_EQ(local.staging_bytes_total, 5u << 20);
  EXPECT_EQ(local.slow_request_nanos, 7'000'000);
  EXPECT_EQ(options->rpc->slow_call_nanos, 7'000'000);
  EXPECT_EQ(local.poll_nanos, 6'000);
  EXPECT_EQ(options->cache.arena.capacity_bytes, 1u << 30);
  EXPECT_EQ(options->cache.arena.chunk_bytes, 64u << 20);
  EXPECT_FALSE(options->cache.arena.huge_pages);
  EXPECT_FALSE(options->cache.arena.prefault);
  EXPECT_EQ(options->cache.max_entries, 5000u);
  EXPECT_EQ(options->cache.max_namespaces_per_tenant, 7u);
  EXPECT_EQ(options->cache.lease_bytes_max, 6u << 20);
  EXPECT_EQ(options->log_level, LogLevel::kError);
  EXPECT_EQ(options->log_format, LogFormat::kJson);
  EXPECT_TRUE(options->metrics.off());
  ASSERT_TRUE(options->rpc.has_value());
  EXPECT_EQ(options->rpc->listen.ToString(), "127.0.0.1:7410");
  EXPECT_EQ(options->rpc->auth.token_file, "/tmp/token");
  EXPECT_EQ(options->rpc->transport.certificate_file, "/tmp/crt");
  EXPECT_EQ(options->rpc->transport.key_file, "/tmp/key");
  EXPECT_EQ(options->rpc->transport.client_ca_file, "/tmp/ca");
  EXPECT_TRUE(options->rpc->transport.insecure_plaintext_off_loopback);
  EXPECT_EQ(options->rpc->transport.reload_seconds, 7u);
  EXPECT_EQ(options->rpc->connections.connections, 77u);
  EXPECT_EQ(options->rpc->connections.greeting_nanos, 30'000'000'000);
  EXPECT_EQ(options->rpc->connections.quotas, options->cache.quotas);
  EXPECT_EQ(options->rpc->connections.default_quota, options->cache.default_quota);
  EXPECT_EQ(options->admin_listen.ToString(), "127.0.0.1:7411");
  EXPECT_EQ(options->rpc->auth.trust_domain, "corp");
  EXPECT_EQ(options->rpc->auth.keys_file, "/tmp/keys");
  EXPECT_EQ(options->rpc->auth.revocations_file, "/tmp/revoked");
  EXPECT_EQ(options->rpc->auth.token_audience, "us");
  EXPECT_EQ(options->rpc->auth.token_issuer, "them");
  EXPECT_EQ(options->rpc->auth.default_tenant, "team");
  EXPECT_EQ(options->rpc->auth.reload_nanos, 7'000'000'000);
  // Every tenant that is configured anywhere may call.
  EXPECT_THAT(options->rpc->auth.tenants, ElementsAre("a", "b=c", "c", "d", "e"));
  EXPECT_EQ(options->rpc->max_message_bytes, 2u << 20);
}

TEST(DaemonOptionsTest, MemoryIsMeasuredAgainstTheHost) {
  HostMemory host = Host();
  host.cgroup_limit_bytes = host.cgroup_available_bytes = 10ull << 30;
  const auto options = Options({{"arena.capacity_bytes", "50%"}}, host);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->cache.arena.capacity_bytes, (5ull << 30) / kExtentBytes * kExtentBytes);
  EXPECT_TRUE(Options({{"arena.capacity_bytes", "8GiB"}}, host).ok());
  const absl::Status much = Options({{"arena.capacity_bytes", "9GiB"}}, host).status();
  EXPECT_EQ(much.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(much.message()),
      AllOf(HasSubstr("arena.capacity_bytes (flag --arena.capacity_bytes)"), HasSubstr("80")));
  EXPECT_FALSE(Options({{"arena.capacity_bytes", "1MiB"}}, host).ok());
}

TEST(DaemonOptionsTest, WhatDoesNotFitTogether) {
  EXPECT_THAT(Error({{"socket.allow_uids", "root"}}),
              HasSubstr("socket.allow_uids (flag --socket.allow_uids): \"root\" is no number"));
  EXPECT_THAT(Error({{"socket.allow_gids", "4294967295"}}), HasSubstr("is no number"));
  EXPECT_THAT(Error({{"socket.admin_uids", "-1"}}), HasSubstr("is no number"));
  for (const char* rule : {"1000=a", "uid:1000", "uid:1000=", "uid:=a", "user:1000=a", "gid:x=a"}) {
    EXPECT_THAT(Error({{"tenant.rules", rule}}), HasSubstr("tenant.rules")) << rule;
  }
  EXPECT_THAT(Error({{"tenant.default", ""}}), HasSubstr("must not be empty"));
  EXPECT_THAT(Error({{"tenant.quotas", "a=bytes:..1"}}), HasSubstr("tenant.quotas (flag"));
  EXPECT_THAT(Error({{"tenant.quotas", "a=entries:..1,a=entries:..2"}}), HasSubstr("twice"));
  EXPECT_THAT(Error({{"tenant.default_quota", "entries:1.."}}), HasSubstr("has a floor"));
  EXPECT_THAT(Error({{"tenant.names", std::string(129, 'x')}}), HasSubstr("tenant.names"));
  EXPECT_THAT(Error({{"arena.chunk_bytes", "33MiB"}}), HasSubstr("multiple of 32 MiB"));
  EXPECT_THAT(Error({{"rpc.listen", "0.0.0.0:7410"}, {"rpc.token_file", "/x"}}),
              HasSubstr("is not loopback"));
  EXPECT_THAT(Error({{"rpc.listen", "127.0.0.1:7410"}}),
              HasSubstr("rpc.token_file (default): or rpc.token_keys_file is needed"));
  EXPECT_THAT(Error({{"rpc.listen", "127.0.0.1:7410"},
                     {"rpc.token_file", "/x"},
                     {"rpc.admin_listen", "127.0.0.1:7411"}}),
              HasSubstr("rpc.admin_listen"));
}

TEST(DaemonOptionsTest, PathsOfSockets) {
  const std::string most(107 - 5, 'x');
  EXPECT_EQ(Options({{"socket.path", "/tmp/" + most}})->local.socket_path, "/tmp/" + most);
  for (const char* const name : {"socket.path", "rpc.admin_socket"}) {
    const absl::Status longer = Options({{name, "/tmp/y" + most}}).status();
    EXPECT_EQ(longer.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(longer.message()), HasSubstr("has 108 bytes"));
    EXPECT_THAT(std::string(longer.message()), HasSubstr(name));
  }
  EXPECT_EQ(Options({{"socket.path", "run/../s"}})->local.socket_path,
            (std::filesystem::current_path() / "s").string());
  EXPECT_EQ(Options({{"socket.path", ""}}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvarve
