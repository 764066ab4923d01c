#include "services/kvarved/options.h"

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_format.h"
#include "client/identity/identity.h"
#include "services/kvarved/quotas.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr uint64_t kWriteBytesLeast = 32 << 20;

absl::Status Wrong(const Config& config, std::string_view name, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s (%s): %s", name, config.Origin(name), why));
}

// Absolute, from the folder that this process was started in; empty stays empty.
absl::StatusOr<std::string> SocketPath(const Config& config, std::string_view name) {
  std::string path = config.Text(name);
  if (path.empty()) return path;
  std::error_code error;
  path = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return Wrong(config, name, error.message());
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Wrong(config, name,
                 absl::StrFormat("%s has %d bytes; the path of a socket has at most %d", path,
                                 path.size(), sizeof(sockaddr_un::sun_path) - 1));
  }
  return path;
}

absl::StatusOr<uint32_t> ParseId(std::string_view text) {
  uint32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  // The highest number means "none" to the kernel.
  if (error != std::errc() || end != text.data() + text.size() ||
      id == std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is no number of a user or group", text));
  }
  return id;
}

absl::StatusOr<std::vector<uint32_t>> ParseIds(const Config& config, std::string_view name) {
  std::vector<uint32_t> ids;
  for (const std::string& text : config.List(name)) {
    const absl::StatusOr<uint32_t> id = ParseId(text);
    if (!id.ok()) return Wrong(config, name, ToStd(id.status().message()));
    ids.push_back(*id);
  }
  return ids;
}

// "uid:1000=team-a"
absl::StatusOr<TenantRule> ParseRule(std::string_view text) {
  constexpr std::string_view kUid = "uid:", kGid = "gid:";
  const size_t equals = text.find('=');
  const bool is_uid = text.starts_with(kUid);
  if (equals == std::string_view::npos || equals + 1 == text.size() ||
      !(is_uid || text.starts_with(kGid))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is no rule; an example: uid:1000=team-a or gid:2000=team-b", text));
  }
  KV_ASSIGN_OR_RETURN(const uint32_t id, ParseId(text.substr(kUid.size(), equals - kUid.size())));
  TenantRule rule;
  (is_uid ? rule.uid : rule.gid) = id;
  rule.tenant = text.substr(equals + 1);
  return rule;
}

// Every setting of tenants but the rules: quotas, and who is known.
absl::Status TenantsOf(const Config& config, CacheOptions* cache, LocalServerOptions* local) {
  for (const std::string& text : config.List("tenant.quotas")) {
    const auto quota = ParseTenantQuota(text);
    if (!quota.ok()) return Wrong(config, "tenant.quotas", ToStd(quota.status().message()));
    if (!cache->quotas.insert(*quota).second) {
      return Wrong(config, "tenant.quotas", "names a tenant twice: \"" + quota->first + "\"");
    }
    local->more_tenants.insert(quota->first);
  }
  const auto others = ParseQuota(config.Text("tenant.default_quota"));
  if (!others.ok()) {
    return Wrong(config, "tenant.default_quota", ToStd(others.status().message()));
  }
  for (const QuotaRange& range : others->ranges) {
    if (range.floor != 0) {
      return Wrong(config, "tenant.default_quota",
                   "has a floor; floors are for tenants that tenant.quotas names");
    }
  }
  cache->default_quota = *others;
  if (const uint64_t rate = config.Bytes("limits.ingest_bytes_per_second"); rate != 0) {
    cache->ingest_bytes_per_second = rate;
  }
  for (const std::string& name : config.List("tenant.names")) {
    const absl::Status good = CheckTenantName(name);
    if (!good.ok()) return Wrong(config, "tenant.names", ToStd(good.message()));
    local->more_tenants.insert(name);
  }
  local->quotas = cache->quotas;
  local->default_quota = cache->default_quota;
  return absl::OkStatus();
}

absl::StatusOr<CacheOptions> CacheOptionsOf(const Config& config, const HostMemory& host) {
  constexpr std::string_view kCapacity = "arena.capacity_bytes";
  constexpr std::string_view kChunk = "arena.chunk_bytes";
  CacheOptions cache;
  const Capacity capacity = config.CapacityOf(kCapacity);
  const uint64_t bytes = capacity.Of(host.BudgetBytes());
  cache.arena.huge_pages = config.Bool("arena.huge_pages");
  const absl::Status fits = CheckArenaBytes(host, bytes, 0, cache.arena.huge_pages);
  if (!fits.ok()) {
    const absl::Status wrong = Wrong(config, kCapacity, ToStd(fits.message()));
    return absl::Status(fits.code(), wrong.message());
  }
  cache.arena.capacity_bytes = bytes / kExtentBytes * kExtentBytes;
  cache.arena.chunk_bytes = config.Bytes(kChunk);
  if (cache.arena.chunk_bytes % kExtentBytes != 0)
    return Wrong(config, kChunk, "is not a multiple of 32 MiB");
  cache.arena.prefault = config.Bool("arena.prefault");
  cache.arena.is_writable = config.Text("arena.trust") == "writable";
  cache.arena.hold_dropped = true;  // the local plane says when no client maps a chunk any more
  cache.arena.available_bytes = HostAvailableBytes(cache.arena.huge_pages);
  cache.max_entries = static_cast<uint64_t>(config.Int("cache.max_entries"));
  cache.policy = config.Text("cache.policy");
  cache.prefer_recompute = config.Bool("nvme.prefer_recompute");
  cache.max_namespaces_per_tenant =
      static_cast<uint32_t>(config.Int("limits.namespaces_per_tenant"));
  cache.lease_bytes_max = config.Bytes("limits.lease_total_bytes");
  return cache;
}

absl::StatusOr<NvmeOptions> NvmeOptionsOf(const Config& config, DeviceTierOptions* tier) {
  constexpr std::string_view kWrites = "nvme.drive_writes_per_day";
  NvmeOptions nvme;
  nvme.paths = config.List("nvme.devices");
  for (const std::string& path : nvme.paths) {
    if (!path.starts_with('/'))
      return Wrong(config, "nvme.devices", "\"" + path + "\" is no absolute path");
    if (std::count(nvme.paths.begin(), nvme.paths.end(), path) > 1) {
      return Wrong(config, "nvme.devices", "names " + path + " twice");
    }
  }
  nvme.device_bytes = config.Bytes("nvme.device_bytes");
  const std::string& backend = config.Text("nvme.backend");
  nvme.backend = backend == "posix"      ? WantedBackend::kPosix
                 : backend == "io_uring" ? WantedBackend::kUring
                                         : WantedBackend::kAuto;
  nvme.catalogue_dir = config.Text("nvme.catalogue_dir");
  const std::string& state_dir = config.Text("tenant.state_dir");
  if (nvme.catalogue_dir.empty() && !state_dir.empty())
    nvme.catalogue_dir = state_dir + "/catalogue";
  nvme.stop_nanos = config.DurationNanos("nvme.stop_timeout");
  if (!nvme.paths.empty() && state_dir.empty()) {
    return Wrong(config, "tenant.state_dir",
                 "is needed with nvme.devices: without it tenants get new salts at each start, and "
                 "nothing that is on a device would ever be found again");
  }
  const std::string& writes = config.Text(kWrites);
  const auto [end, error] =
      std::from_chars(writes.data(), writes.data() + writes.size(), tier->drive_writes_per_day);
  if (error != std::errc() || end != writes.data() + writes.size() ||
      !(tier->drive_writes_per_day >= 0 && tier->drive_writes_per_day <= 1000)) {
    return Wrong(config, kWrites, "must be a number from 0 to 1000, for example 0.5");
  }
  for (int step = 0; step < kAdmissionSteps; ++step) {
    const auto admission = static_cast<AdmissionStep>(step);
    if (AdmissionStepName(admission) == config.Text("nvme.admission")) tier->admission = admission;
  }
  tier->rung = *RepresentationOfName(config.Text("nvme.rung"));
  tier->dirty_bytes_max = config.Bytes("nvme.dirty_bytes");
  tier->max_entries = static_cast<uint64_t>(config.Int("nvme.max_entries"));
  tier->scrub_nanos = config.DurationNanos("nvme.scrub_interval");
  return nvme;
}

absl::StatusOr<LocalServerOptions> LocalOptionsOf(const Config& config) {
  LocalServerOptions local;
  KV_ASSIGN_OR_RETURN(local.socket_path, SocketPath(config, "socket.path"));
  if (local.socket_path.empty()) return Wrong(config, "socket.path", "must not be empty");
  local.state_dir = config.Text("tenant.state_dir");
  local.daemon_version = KVARVE_VERSION;
  KV_ASSIGN_OR_RETURN(local.allowed_uids, ParseIds(config, "socket.allow_uids"));
  KV_ASSIGN_OR_RETURN(local.allowed_gids, ParseIds(config, "socket.allow_gids"));
  if (!local.allowed_uids.empty() || !local.allowed_gids.empty())
    local.allowed_uids.push_back(::geteuid());
  KV_ASSIGN_OR_RETURN(local.admin_uids, ParseIds(config, "socket.admin_uids"));
  local.poll_nanos = config.DurationNanos("socket.poll");
  local.default_tenant = config.Text("tenant.default");
  if (local.default_tenant.empty()) return Wrong(config, "tenant.default", "must not be empty");
  for (const std::string& text : config.List("tenant.rules")) {
    absl::StatusOr<TenantRule> rule = ParseRule(text);
    if (!rule.ok()) return Wrong(config, "tenant.rules", ToStd(rule.status().message()));
    local.tenants.push_back(*std::move(rule));
  }
  local.max_sessions = static_cast<uint32_t>(config.Int("limits.sessions"));
  local.max_sessions_per_uid = static_cast<uint32_t>(config.Int("limits.sessions_per_uid"));
  local.lease_bytes_per_process = config.Bytes("limits.lease_process_bytes");
  local.max_hold_nanos = config.DurationNanos("limits.hold");
  local.staging_bytes_per_session = config.Bytes("limits.staging_session_bytes");
  local.staging_bytes_per_process = config.Bytes("limits.staging_process_bytes");
  local.staging_bytes_total = config.Bytes("limits.staging_total_bytes");
  local.slow_request_nanos = config.DurationNanos("log.slow_request");
  return local;
}

TransportOptions TransportOf(const Config& config) {
  TransportOptions transport;
  transport.certificate_file = config.Text("rpc.tls_certificate_file");
  transport.key_file = config.Text("rpc.tls_key_file");
  transport.client_ca_file = config.Text("rpc.tls_client_ca_file");
  transport.insecure_plaintext_off_loopback = config.Bool("rpc.insecure_plaintext_off_loopback");
  transport.reload_seconds = static_cast<uint32_t>(
      std::max<int64_t>(1, config.DurationNanos("rpc.reload_interval") / kNanosPerSecond));
  return transport;
}

AuthOptions AuthOf(const Config& config) {
  AuthOptions auth;
  auth.trust_domain = config.Text("rpc.trust_domain");
  auth.token_file = config.Text("rpc.token_file");
  auth.keys_file = config.Text("rpc.token_keys_file");
  auth.revocations_file = config.Text("rpc.revocations_file");
  auth.token_audience = config.Text("rpc.token_audience");
  auth.token_issuer = config.Text("rpc.token_issuer");
  auth.default_tenant = config.Text("tenant.default");
  auth.reload_nanos = config.DurationNanos("rpc.reload_interval");
  return auth;
}

absl::StatusOr<std::optional<RpcServerOptions>> RpcOptionsOf(const Config& config,
                                                             uint64_t capacity_bytes) {
  const ListenAddress& listen = config.Address("rpc.listen");
  if (listen.off()) return std::nullopt;
  RpcServerOptions rpc;
  rpc.transport = TransportOf(config);
  rpc.auth = AuthOf(config);
  if (!UsesTls(rpc.transport)) {
    if (!listen.is_loopback && !rpc.transport.insecure_plaintext_off_loopback) {
      return Wrong(config, "rpc.listen",
                   "is not loopback, and rpc.tls_certificate_file, rpc.tls_key_file and "
                   "rpc.tls_client_ca_file are not set (docs/security.md)");
    }
    if (rpc.auth.token_file.empty() && rpc.auth.keys_file.empty()) {
      return Wrong(
          config, "rpc.token_file",
          "or rpc.token_keys_file is needed when rpc.listen is set without TLS; an example: "
          "/etc/kvarve/rpc.token");
    }
  }
  rpc.listen = listen;
  rpc.max_message_bytes = config.Bytes("rpc.max_message_bytes");
  rpc.daemon_version = KVARVE_VERSION;
  rpc.slow_call_nanos = config.DurationNanos("log.slow_request");
  rpc.max_pin_ms = static_cast<uint32_t>(config.DurationNanos("rpc.max_pin") / kNanosPerMilli);
  rpc.connections.connections = static_cast<uint32_t>(config.Int("rpc.max_connections"));
  rpc.connections.greeting_nanos = config.DurationNanos("rpc.greeting");
  rpc.streams.streams = static_cast<uint32_t>(config.Int("rpc.max_streams"));
  // Blocks that come lie in the host tier, however slowly: the greater part of it is not theirs.
  rpc.streams.write_bytes =
      std::min(config.Bytes("rpc.write_bytes"), std::max(capacity_bytes / 4, kWriteBytesLeast));
  rpc.streams.stall_nanos = config.DurationNanos("rpc.stall");
  return rpc;
}

std::vector<SettingShown> ShownSettings(const Config& config) {
  std::vector<SettingShown> shown;
  for (const Setting& setting : Settings()) {
    SettingShown row{std::string(setting.name), config.TextOf(setting.name),
                     config.Origin(setting.name)};
    const bool is_secret = setting.name == "rpc.token_file" || setting.name == "rpc.tls_key_file";
    if (is_secret && !row.value.empty()) row.value = "(set, not shown)";
    shown.push_back(std::move(row));
  }
  return shown;
}

}  // namespace

absl::StatusOr<DaemonOptions> DaemonOptionsOf(const Config& config, const HostMemory& host) {
  DaemonOptions options;
  options.version = KVARVE_VERSION;
  const std::string& level = config.Text("log.level");
  options.log_level = level == "debug"     ? LogLevel::kDebug
                      : level == "warning" ? LogLevel::kWarning
                      : level == "error"   ? LogLevel::kError
                                           : LogLevel::kInfo;
  options.log_format = config.Text("log.format") == "json" ? LogFormat::kJson : LogFormat::kText;
  KV_ASSIGN_OR_RETURN(options.cache, CacheOptionsOf(config, host));
  KV_ASSIGN_OR_RETURN(options.nvme, NvmeOptionsOf(config, &options.cache.devices));
  KV_ASSIGN_OR_RETURN(options.local, LocalOptionsOf(config));
  KV_RETURN_IF_ERROR(TenantsOf(config, &options.cache, &options.local));
  if (const std::string& state_dir = config.Text("tenant.state_dir"); !state_dir.empty())
    options.policy_file = state_dir + "/policy";
  options.record_path = config.Text("record.path");
  options.record_bytes_max = config.Bytes("record.max_bytes");
  options.metrics = config.Address("metrics.listen");
  KV_ASSIGN_OR_RETURN(options.rpc, RpcOptionsOf(config, options.cache.arena.capacity_bytes));
  if (options.rpc.has_value()) {
    options.rpc->connections.quotas = options.local.quotas;
    options.rpc->connections.default_quota = options.local.default_quota;
    for (const TenantRule& rule : options.local.tenants) {
      options.rpc->auth.tenants.insert(rule.tenant);
    }
    options.rpc->auth.tenants.insert(options.local.more_tenants.begin(),
                                     options.local.more_tenants.end());
  }
  options.rpc_read_bytes = config.Bytes("rpc.read_bytes");
  options.rpc_pin_bytes = config.Bytes("rpc.pin_bytes");
  KV_ASSIGN_OR_RETURN(options.admin_socket, SocketPath(config, "rpc.admin_socket"));
  options.admin_listen = config.Address("rpc.admin_listen");
  if (!options.admin_listen.off() &&
      (!options.rpc.has_value() || !UsesTls(options.rpc->transport))) {
    return Wrong(config, "rpc.admin_listen",
                 "needs rpc.listen with TLS (rpc.tls_certificate_file and so on); rpc.admin_socket "
                 "is for this host");
  }
  options.cache.event_window =
      options.rpc.has_value() ? static_cast<size_t>(config.Int("rpc.event_window")) : 0;
  options.config_yaml = config.Print();
  options.settings = ShownSettings(config);
  return options;
}

}  // namespace kvarve
