#include "services/kvarved/status_history.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kvarve {
namespace {

constexpr int64_t kNever = 3'600'000'000'000;

TEST(StatusHistoryTest, TheFirstSampleIsTakenAtOnceAndAStopDoesNotWaitForTheNext) {
  StatusHistory history([] { return StatusSample{.lookup_keys = 7}; }, kNever);
  while (history.Samples().empty()) std::this_thread::yield();
  ASSERT_EQ(history.Samples().size(), 1u);
  EXPECT_EQ(history.Samples().front().lookup_keys, 7u);
}

TEST(StatusHistoryTest, KeepsTheLatestAndTheOldestFirst) {
  std::atomic<uint64_t> taken{0};
  StatusHistory history([&] { return StatusSample{.lookup_keys = ++taken}; }, /*interval_nanos=*/1);
  while (taken.load() < 2 * kStatusSamplesMax) std::this_thread::yield();
  const std::vector<StatusSample> samples = history.Samples();
  ASSERT_EQ(samples.size(), kStatusSamplesMax);
  EXPECT_GT(samples.front().lookup_keys, 1u);
  for (size_t i = 1; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].lookup_keys, samples[i - 1].lookup_keys + 1);
  }
}

TEST(SlowRequestsTest, KeepsTheLatestNewestFirst) {
  SlowRequests slow;
  EXPECT_TRUE(slow.Latest().empty());
  for (uint64_t i = 1; i <= kSlowRequestsKept + 3; ++i) {
    slow.Add(
        {.type = local::Type::kLookup, .nanos = 2'000'000, .session = i, .uid = 5, .bytes = 9});
  }
  const std::vector<SlowRequestSeen> latest = slow.Latest();
  ASSERT_EQ(latest.size(), kSlowRequestsKept);
  EXPECT_EQ(latest.front().session, kSlowRequestsKept + 3);
  EXPECT_EQ(latest.back().session, 4u);
  EXPECT_EQ(latest.front().type, "lookup");
  EXPECT_EQ(latest.front().micros, 2000);
  EXPECT_EQ(latest.front().uid, 5u);
  EXPECT_EQ(latest.front().request_bytes, 9u);
}

}  // namespace
}  // namespace kvarve
