// All parts together in one process: what listens, who is refused, what stopping leaves.
#include "services/kvarved/daemon.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "proto/kvarve/v1/admin.grpc.pb.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() {
    char name[] = "/tmp/kvarve_daemon_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    options_.version = "1.2.3";
    options_.cache.arena.capacity_bytes = kExtentBytes;
    options_.cache.arena.huge_pages = false;
    options_.cache.arena.prefault = false;
    options_.cache.arena.hold_dropped = true;
    options_.local.socket_path = folder_ + "/run/kvarved.sock";
    options_.metrics = *ParseListenAddress("127.0.0.1:0");
  }
  ~DaemonTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  DaemonOptions options_;
};

TEST_F(DaemonTest, ServesUntilItStops) {
  auto daemon = Daemon::Start(options_);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_TRUE(std::filesystem::is_socket(options_.local.socket_path));
  const uint16_t port = (*daemon)->metrics_port();
  EXPECT_EQ((*daemon)->rpc_port(), 0);
  EXPECT_EQ(httplib::Client("127.0.0.1", port).Get("/readyz")->status, 200);
  const httplib::Result metrics = httplib::Client("127.0.0.1", port).Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_THAT(metrics->body, HasSubstr("kvarve_build_info{version=\"1.2.3\"} 1"));
  EXPECT_THAT(metrics->body, HasSubstr("kvarve_sessions 0"));
  (*daemon)->Stop();
  EXPECT_FALSE(std::filesystem::exists(options_.local.socket_path));
  EXPECT_FALSE(httplib::Client("127.0.0.1", port).Get("/healthz"));
}

TEST_F(DaemonTest, ASecondOneIsRefusedAndTheFirstServesOn) {
  auto first = Daemon::Start(options_);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Daemon::Start(options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(::getpid())));
  EXPECT_EQ(httplib::Client("127.0.0.1", (*first)->metrics_port()).Get("/readyz")->status, 200);
  EXPECT_TRUE(std::filesystem::is_socket(options_.local.socket_path));
  first->reset();
  EXPECT_TRUE(Daemon::Start(options_).ok());
}

TEST_F(DaemonTest, APartThatFailsStopsTheOthers) {
  options_.rpc.emplace();
  options_.rpc->listen = *ParseListenAddress("127.0.0.1:0");
  options_.rpc->auth.token_file = folder_ + "/none";
  EXPECT_EQ(Daemon::Start(options_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(options_.local.socket_path));
  options_.rpc->auth.token_file = folder_ + "/token";
  std::ofstream(options_.rpc->auth.token_file) << "0123456789abcdef0123456789abcdef";
  ::chmod(options_.rpc->auth.token_file.c_str(), 0600);
  const auto daemon = Daemon::Start(options_);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_NE((*daemon)->rpc_port(), 0);
}

// The socket of administration reaches the cache, the gRPC server and the readiness of the daemon.
TEST_F(DaemonTest, Administration) {
  options_.rpc.emplace();
  options_.rpc->listen = *ParseListenAddress("127.0.0.1:0");
  options_.rpc->auth.token_file = folder_ + "/token";
  std::ofstream(options_.rpc->auth.token_file) << "0123456789abcdef0123456789abcdef";
  ::chmod(options_.rpc->auth.token_file.c_str(), 0600);
  options_.admin_socket = folder_ + "/admin.sock";
  options_.config_yaml = "the: configuration\n";
  options_.cache.arena.capacity_bytes = 2 * kExtentBytes;
  const auto daemon = Daemon::Start(options_);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const auto stub = v1::KvAdmin::NewStub(
      grpc::CreateChannel("unix:" + options_.admin_socket, grpc::InsecureChannelCredentials()));
  const auto call = [&](auto method, const auto& request, auto* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    return (stub.get()->*method)(&context, request, reply);
  };
  const auto ready = [&] {
    return httplib::Client("127.0.0.1", (*daemon)->metrics_port()).Get("/readyz")->status;
  };
  v1::DrainRequest drain;
  v1::DrainReply drained;
  drain.set_draining(true);
  EXPECT_EQ(ready(), 200);
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Drain, drain, &drained).ok());
  EXPECT_EQ(ready(), 503);
  drain.set_draining(false);
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Drain, drain, &drained).ok());
  EXPECT_EQ(ready(), 200);
  v1::ResizeRequest resize;
  v1::ResizeReply resized;
  resize.set_capacity_bytes(kExtentBytes + 1);
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Resize, resize, &resized).ok());
  EXPECT_EQ(resized.capacity_bytes(), kExtentBytes);
  resize.set_capacity_bytes(1ull << 60);
  EXPECT_EQ(call(&v1::KvAdmin::Stub::Resize, resize, &resized).error_code(),
            grpc::INVALID_ARGUMENT);
  v1::EvictRequest evict;
  v1::EvictReply evicted;
  evict.set_bytes(1 << 20);
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Evict, evict, &evicted).ok());
  EXPECT_EQ(evicted.evicted_blocks(), 0u);
  v1::ConfigReply config;
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Config, v1::ConfigRequest(), &config).ok());
  EXPECT_EQ(config.yaml(), "the: configuration\n");
}

}  // namespace
}  // namespace kvarve
