// A run that is recorded and replayed has the hit ratio that it had alive; the file tells no keys,
// and has no more bytes than it may.
#include "services/kvarved/access_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "services/kvarved/engines_testing.h"
#include "storage/policy/access_log.h"
#include "storage/policy/replay.h"
#include "storage/testing/block_generator.h"

namespace kvarve {
namespace {

constexpr uint64_t kBlockBytes = 128 << 10;
constexpr uint64_t kSlots = kExtentBytes / kBlockBytes;  // 256

class AccessRecorderTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  AccessRecorderTest() {
    char name[] = "/tmp/kvarve_record_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/accesses";
  }
  ~AccessRecorderTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Cache> CacheOf(std::string_view policy, AccessRecorder* recorder) {
    CacheOptions options;
    options.policy = policy;
    options.arena.capacity_bytes = kExtentBytes;
    options.arena.huge_pages = false;
    options.arena.prefault = false;
    options.on_access = [this, recorder](const CacheAccess& access) {
      recorder->Record(access);
      told_ += access.keys.empty() ? 0 : 1;
    };
    return *Cache::Create(options);
  }
  // A disk on a busy machine may take less than is asked for here: waits until all is written.
  void WaitWritten(const AccessRecorder& recorder) const {
    while (recorder.Stats().accesses < told_) {
      ASSERT_EQ(recorder.Stats().dropped, 0u);
      std::this_thread::yield();
    }
  }
  std::string File() const {
    std::stringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    return bytes.str();
  }
  std::string folder_, path_;
  uint64_t told_ = 0;  // accesses
};

TEST_P(AccessRecorderTest, AReplayHasTheHitRatioOfTheRun) {
  constexpr int kRequests = 36'000;  // so many that chance in a policy's sample hardly counts
  auto recorder = AccessRecorder::Create(path_, 1 << 30);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  const auto cache = CacheOf(GetParam(), recorder->get());
  testing::Engines engines(cache.get(), kBlockBytes);
  for (int part = 0; part < 12; ++part) {
    engines.Run(kRequests / 12);
    WaitWritten(**recorder);
  }
  const CacheStats stats = cache->Stats();
  recorder->reset();
  const auto converted = TraceOfAccessLog(File());
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->incomplete, 0u);
  ASSERT_EQ(converted->trace.requests.size(), size_t{kRequests});
  EXPECT_EQ(converted->trace.references, stats.hit_blocks + stats.miss_blocks);
  const auto policy = NewEvictionPolicy(GetParam());
  const ReplayResult replayed = Replay(converted->trace, {.host_blocks = kSlots}, policy.get());
  const double live = ReplayResult::Ratio(stats.hit_blocks, stats.hit_blocks + stats.miss_blocks);
  std::printf("%s: live %.4f, replayed %.4f\n", std::string(GetParam()).c_str(), live,
              replayed.hit_ratio());
  EXPECT_NEAR(replayed.hit_ratio(), live, 0.002);
  EXPECT_GT(live, 0.05);
  EXPECT_LT(live, 0.9);
  EXPECT_GT(stats.evicted_blocks, 1000u);
}

INSTANTIATE_TEST_SUITE_P(Policies, AccessRecorderTest, ::testing::ValuesIn(kEvictionPolicies));

TEST_F(AccessRecorderTest, TheFileTellsNoKeysAndIsItsOwnersAlone) {
  std::string first;
  for (int round = 0; round < 2; ++round) {
    auto recorder = AccessRecorder::Create(path_, 1 << 30);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    const auto cache = CacheOf("lru", recorder->get());
    testing::Engines engines(cache.get(), kBlockBytes);
    engines.Run(50);
    recorder->reset();
    const std::string file = File();
    struct stat st;
    ASSERT_EQ(::stat(path_.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    for (const BlockKey& key : engines.last()) {
      for (size_t at = 0; at + 8 <= key.bytes.size(); at += 4) {
        const std::string_view part(reinterpret_cast<const char*>(key.bytes.data()) + at, 8);
        ASSERT_EQ(file.find(part), std::string::npos);
      }
    }
    // The same run again: nothing in common but the header and counts.
    if (round == 1) {
      const auto a = TraceOfAccessLog(first), b = TraceOfAccessLog(file);
      ASSERT_TRUE(a.ok() && b.ok());
      EXPECT_EQ(a->trace.references, b->trace.references);
      EXPECT_NE(first.substr(24, 8), file.substr(24, 8));  // request
      EXPECT_NE(first.substr(48, 8), file.substr(48, 8));  // the first id
    }
    first = file;
    std::filesystem::remove(path_);
  }
}

TEST_F(AccessRecorderTest, AFullFileEndsTheRecordingAndIsCounted) {
  constexpr uint64_t kMost = 10'000;
  auto recorder = AccessRecorder::Create(path_, kMost);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  const auto cache = CacheOf("lru", recorder->get());
  testing::Engines(cache.get(), kBlockBytes).Run(500);
  // It is written by a thread of its own.
  while ((*recorder)->Stats().dropped == 0) std::this_thread::yield();
  const uint64_t written = (*recorder)->Stats().accesses;
  EXPECT_GT(written, 10u);
  recorder->reset();
  EXPECT_LE(std::filesystem::file_size(path_), kMost);
  const auto converted = TraceOfAccessLog(File());
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->accesses, written);
}

TEST_F(AccessRecorderTest, AFileThatExistsIsLeftAlone) {
  std::ofstream(path_) << "precious";
  const auto recorder = AccessRecorder::Create(path_, 1 << 20);
  EXPECT_EQ(recorder.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(File(), "precious");
  const auto none = AccessRecorder::Create(folder_ + "/none/accesses", 1 << 20);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.status().message()), ::testing::HasSubstr("record.path"));
}

}  // namespace
}  // namespace kvarve
