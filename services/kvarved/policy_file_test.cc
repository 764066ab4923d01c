// What a policy learned outlives a daemon, and a file that is no such thing costs only that.
#include "services/kvarved/policy_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "services/kvarved/engines_testing.h"

namespace kvarve {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;  // 32 in an extent

class PolicyFileTest : public ::testing::Test {
 protected:
  PolicyFileTest() {
    char name[] = "/tmp/kvarve_policy_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/policy";
  }
  ~PolicyFileTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Cache> Make(std::string policy) {
    CacheOptions options;
    options.policy = std::move(policy);
    options.arena.capacity_bytes = kExtentBytes;
    options.arena.huge_pages = false;
    options.arena.prefault = false;
    return *Cache::Create(options);
  }
  std::string folder_, path_;
};

TEST_F(PolicyFileTest, ALaterCacheKnowsWhatAnEarlierOneLearned) {
  std::string learned;
  {
    const auto cache = Make("hazard");
    PolicyFile file(path_, cache.get());
    testing::Engines engines(cache.get(), kBlockBytes);
    for (int n = 0; n < 1000 && !cache->Stats().learning.is_trained; ++n) engines.Run(100);
    ASSERT_TRUE(cache->Stats().learning.is_trained);
    learned = cache->SavePolicy();
  }
  const auto cache = Make("hazard");
  PolicyFile file(path_, cache.get());
  EXPECT_TRUE(cache->Stats().learning.is_trained);
  EXPECT_EQ(cache->SavePolicy(), learned);
}

TEST_F(PolicyFileTest, ADamagedFileIsAsNone) {
  std::ofstream(path_) << std::string(100'000, 'x');
  const auto cache = Make("hazard");
  {
    PolicyFile file(path_, cache.get());
    EXPECT_FALSE(cache->Stats().learning.is_trained);
  }
  const auto next = Make("hazard");  // it was replaced by one that is right
  EXPECT_TRUE(next->LoadPolicy(cache->SavePolicy()));
  std::stringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_EQ(text.str(), cache->SavePolicy());
}

TEST_F(PolicyFileTest, APolicyThatLearnsNothingLeavesTheFileAlone) {
  std::ofstream(path_) << "of another policy";
  const auto cache = Make("lru");
  {
    PolicyFile file(path_, cache.get());
    EXPECT_EQ(file.Save(), absl::OkStatus());
  }
  std::stringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_EQ(text.str(), "of another policy");
}

TEST_F(PolicyFileTest, AFolderThatCannotBeWrittenIsNamed) {
  const auto cache = Make("hazard");
  PolicyFile file(folder_ + "/none/policy", cache.get());
  const absl::Status saved = file.Save();
  EXPECT_EQ(saved.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(saved.message()), ::testing::HasSubstr(folder_ + "/none"));
}

// Every few minutes, so that a crash costs no more.
TEST_F(PolicyFileTest, ItIsWrittenWhileTheDaemonRuns) {
  const auto cache = Make("hazard");
  PolicyFile file(path_, cache.get(), /*interval_nanos=*/1'000'000);
  while (!std::filesystem::exists(path_)) std::this_thread::yield();
}

}  // namespace
}  // namespace kvarve
