// A cache and a server of it, in a folder of their own, for one test. THREADS: the test's.
#ifndef KVARVE_SERVICES_LOCAL_TESTING_PLANE_FIXTURE_H_
#define KVARVE_SERVICES_LOCAL_TESTING_PLANE_FIXTURE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "services/local/local_server.h"
#include "services/local/testing/puppet.h"
#include "services/local/testing/raw_client.h"
#include "storage/base/log.h"
#include "storage/base/units.h"
#include "storage/cache/cache.h"
#include "storage/testing/block_generator.h"

namespace kvarve::testing {

class PlaneFixture : public ::testing::Test {
 protected:
  PlaneFixture() {
    SetLogLevel(LogLevel::kError);
    std::string pattern = "/tmp/kvarve-plane-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_.socket_path = folder_ + "/kvarved.sock";
    options_.reaper_nanos = 5'000'000;
    options_.tick_nanos = 20'000'000;
    options_.slow_request_nanos = 0;
    cache_options_.arena.capacity_bytes = 256 * kMiB;
    cache_options_.arena.chunk_bytes = 32 * kMiB;
    cache_options_.arena.huge_pages = false;
    cache_options_.arena.prefault = false;
    cache_options_.arena.hold_dropped = true;
  }

  // Puppets come before: this starts threads.
  void StartServer() {
    if (cache_ == nullptr) {
      auto cache = Cache::Create(cache_options_);
      ASSERT_TRUE(cache.ok()) << cache.status();
      cache_ = *std::move(cache);
    }
    auto server = LocalServer::Start(options_, cache_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override {
    server_.reset();
    if (cache_ != nullptr) {
      EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
      // Whatever the clients did: with the server gone nothing is leased.
      EXPECT_EQ(cache_->Stats().leased_bytes, 0u);
      EXPECT_EQ(cache_->Stats().quarantined_bytes, 0u);
    }
    cache_.reset();
    std::filesystem::remove_all(folder_);
  }

  LocalStats Stats() const { return server_->Stats(); }
  // For what happens in other threads and processes, in no time that a test should know.
  ::testing::AssertionResult Eventually(const std::function<bool()>& condition) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return ::testing::AssertionFailure() << "not in 20 s";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ::testing::AssertionSuccess();
  }
  uint64_t Ends(SessionEnd how) const { return Stats().session_ends[static_cast<size_t>(how)]; }
  uint64_t Refusals(Refusal why) const { return Stats().refusals[static_cast<size_t>(why)]; }

  std::string folder_;
  CacheOptions cache_options_;
  LocalServerOptions options_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<LocalServer> server_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_SERVICES_LOCAL_TESTING_PLANE_FIXTURE_H_
