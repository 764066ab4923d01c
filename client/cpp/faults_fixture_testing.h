// A client and the small daemon, which a test tells what to do wrong. Time-outs are a minute where
// they must not strike, and pauses between attempts milliseconds. THREADS: the test's.
#ifndef KVARVE_CLIENT_CPP_FAULTS_FIXTURE_TESTING_H_
#define KVARVE_CLIENT_CPP_FAULTS_FIXTURE_TESTING_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/fake_daemon_testing.h"
#include "storage/base/status_macros.h"

namespace kvarve {

class FaultsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLong = 60'000'000'000;
  static constexpr uint64_t kBlock = FakeDaemon::kBlockBytes;

  FaultsTest() {
    char name[] = "/tmp/kvarve-faults-XXXXXX";
    KV_CHECK(::mkdtemp(name) != nullptr);
    folder_ = name;
    options_.endpoint = "unix://" + folder_ + "/s";
    options_.staging_bytes = 4 * kBlock;
    options_.timeout_nanos = kLong;
    options_.put_timeout_nanos = kLong;
    options_.probe_interval_nanos = 5'000'000;
  }
  ~FaultsTest() override {
    client_ = nullptr;
    daemon_ = nullptr;
    ::rmdir(folder_.c_str());
  }
  void StartDaemon(FakeDaemon::Options options = {}) {
    daemon_ = nullptr;
    daemon_ = std::make_unique<FakeDaemon>(folder_ + "/s", options);
  }
  void Connect() {
    client_ = *Client::Create(options_);
    ns_ = *client_->OpenNamespace(TestDescriptor("m"));
    ASSERT_TRUE(client_->WaitReady(kLong).ok());
  }
  void PutOne(uint64_t i) {
    const std::vector<BlockKey> keys = TestKeys(i, 1);
    const std::vector<std::byte> block = TestBlock(i);
    const std::byte* const source = block.data();
    KV_CHECK(client_->Put(ns_, {.keys = keys}, {&source, 1}).ok());
  }
  absl::Status Lookup() { return client_->Lookup(ns_, TestKeys(0, 2)).status(); }
  // Until the client has seen the end of a connection and has the next one.
  void WaitReconnected(uint64_t reconnects) {
    while (client_->State().reconnects < reconnects) ASSERT_FALSE(testing::Test::HasFatalFailure());
    ASSERT_TRUE(client_->WaitReady(kLong).ok());
  }

  std::string folder_;
  ClientOptions options_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_FAULTS_FIXTURE_TESTING_H_
