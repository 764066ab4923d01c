// Fetch or recompute: what a device would bring later than the engine computes it is left out of
// the answer, and only that; whoever tells no cost gets all. The device is a file, whose speed the
// test learns as the cache does; costs are chosen far above and far below it.
#include <gtest/gtest.h>

#include "storage/cache/devices_testing.h"
#include "storage/cache/load_times.h"

namespace kvarve {
namespace {

using testing::KeyChain;
using testing::NodeOptions;
using testing::TestNode;

constexpr uint32_t kDear = 1'000'000'000;  // microseconds: no load takes as long
constexpr uint32_t kCheap = 1;             // a load of a block takes longer

TEST(LoadTimes, AQueueCountsAndFailuresDoNot) {
  constexpr int64_t kMilli = 1'000'000;
  constexpr uint64_t kMega = 1'000'000;
  LoadTimes times;
  EXPECT_EQ(times.Seconds({}, 0), 0);
  EXPECT_EQ(times.Seconds({{3, kMega}}, 0), std::nullopt);  // never seen
  for (int n = 0; n < 3; ++n) {                             // 1 MB a millisecond
    times.End(times.Begin(3, kMega, 0), kMilli, true);
  }
  EXPECT_NEAR(*times.Seconds({{3, 5 * kMega}}, 0), 0.005, 1e-9);
  const LoadTimes::Reading first = times.Begin(3, 10 * kMega, 0);
  EXPECT_NEAR(*times.Seconds({{3, 5 * kMega}}, 0), 0.015, 1e-9);
  EXPECT_NEAR(*times.Seconds({{3, 0}}, 0), 0.010, 1e-9);  // all on its way
  const LoadTimes::Reading second = times.Begin(3, 10 * kMega, 0);
  EXPECT_EQ(second.ahead_bytes, 10 * kMega);
  times.End(second, 20 * kMilli, true);
  times.End(first, 77'000 * kMilli, false);  // failed: says nothing
  EXPECT_NEAR(*times.Seconds({{3, 5 * kMega}}, 0), 0.005, 1e-6);
  // Of several devices the slowest decides; of one that is unknown nothing is said.
  for (int n = 0; n < 3; ++n) times.End(times.Begin(4, kMega, 0), 10 * kMilli, true);
  EXPECT_NEAR(*times.Seconds({{3, kMega}, {4, kMega}}, 0), 0.010, 1e-6);
  EXPECT_EQ(times.Seconds({{3, kMega}, {5, kMega}}, 0), std::nullopt);
}

// A device that has become slow is known to be so before it has brought anything.
TEST(LoadTimes, WhatIsOverdueCounts) {
  constexpr int64_t kMilli = 1'000'000;
  constexpr uint64_t kMega = 1'000'000;
  LoadTimes times;
  const LoadTimes::Reading first = times.Begin(3, kMega, 100 * kMilli);
  EXPECT_NEAR(*times.Seconds({{3, kMega}}, 100 * kMilli), 0, 1e-9);
  EXPECT_NEAR(*times.Seconds({{3, kMega}}, 150 * kMilli), 0.050, 1e-9);
  times.End(first, 101 * kMilli, true);
  EXPECT_EQ(times.Seconds({{3, kMega}}, 150 * kMilli), std::nullopt);
  for (int n = 0; n < 2; ++n) times.End(times.Begin(3, kMega, 0), kMilli, true);
  EXPECT_NEAR(*times.Seconds({{3, kMega}}, 150 * kMilli), 0.001, 1e-9);
  const LoadTimes::Reading slow = times.Begin(3, kMega, 200 * kMilli);
  const LoadTimes::Reading later = times.Begin(3, kMega, 230 * kMilli);
  EXPECT_NEAR(*times.Seconds({{3, kMega}}, 240 * kMilli), 0.040, 1e-9);
  times.End(slow, 241 * kMilli, false);
  EXPECT_NEAR(*times.Seconds({{3, kMega}}, 250 * kMilli), 0.020, 1e-9);
  times.End(later, 251 * kMilli, true);
}

TEST(LoadTimes, IsStaleWhenNothingWasReadForLong) {
  LoadTimes times;
  EXPECT_TRUE(times.IsStale(1, 0));
  const LoadTimes::Reading reading = times.Begin(1, 100, 50);
  EXPECT_FALSE(times.IsStale(1, 50 + 2 * LoadTimes::kStaleNanos));  // it is under way
  times.End(reading, 60, true);
  EXPECT_FALSE(times.IsStale(1, 50 + LoadTimes::kStaleNanos));
  EXPECT_TRUE(times.IsStale(1, 51 + LoadTimes::kStaleNanos));
}

class CacheRecomputeTest : public ::testing::Test {
 protected:
  // Chains on the device alone, and a device that was read from.
  void Make(bool prefer_recompute) {
    Restarted(prefer_recompute);
    for (uint64_t chain = 0; chain < 4; ++chain) node_->Read(ns_, Chain(chain));
  }
  // Chains on the device alone.
  void Restarted(bool prefer_recompute) {
    NodeOptions options;
    options.prefer_recompute = prefer_recompute;
    node_ = std::make_unique<TestNode>(options);
    ns_ = node_->Open();
    for (uint64_t chain = 0; chain < 8; ++chain) node_->PutAll(ns_, Chain(chain));
    ASSERT_TRUE(node_->WaitDevices());
    node_->Crash();
    ns_ = node_->Open();
    ASSERT_TRUE(node_->WaitDevices());
    ASSERT_EQ(Lookup(7, 0), kBlocks);
  }
  static std::vector<BlockKey> Chain(uint64_t chain) { return KeyChain(chain, kBlocks); }
  size_t Lookup(uint64_t chain, uint32_t recompute_us) {
    return node_->cache().Lookup(ns_.handle, Chain(chain), nullptr, recompute_us);
  }
  uint64_t Preferred() { return node_->cache().Stats().recompute_preferred_blocks; }

  static constexpr size_t kBlocks = 16;
  std::unique_ptr<TestNode> node_;
  NamespaceInfo ns_;
};

// The first prompt after a start does not pay for finding out how fast the device is.
TEST_F(CacheRecomputeTest, ADeviceIsKnownBeforeAnythingIsAskedOfIt) {
  Restarted(true);
  EXPECT_EQ(Lookup(7, kDear), kBlocks);
  EXPECT_EQ(Preferred(), 0u);
  EXPECT_EQ(Lookup(7, kCheap), 0u);
  EXPECT_EQ(Preferred(), kBlocks);
}

TEST_F(CacheRecomputeTest, WhatIsCheaperToComputeIsLeftOut) {
  Make(true);
  EXPECT_EQ(Lookup(7, 0), kBlocks);
  EXPECT_EQ(Lookup(7, kDear), kBlocks);
  EXPECT_EQ(Preferred(), 0u);
  EXPECT_EQ(Lookup(7, kCheap), 0u);
  EXPECT_EQ(Preferred(), kBlocks);
  // What is in memory is always worth it, and cut off there.
  EXPECT_EQ(Lookup(0, kCheap), kBlocks);
  std::vector<BlockKey> longer = Chain(0);
  node_->cache().InvalidateKeys(ns_.handle, std::span(longer).subspan(8));
  EXPECT_EQ(Lookup(0, kCheap), 8u);
  EXPECT_EQ(Preferred(), kBlocks);
}

TEST_F(CacheRecomputeTest, OnlyTheSlowTailIsLeftOut) {
  Make(true);
  const std::vector<BlockKey> chain = Chain(5);
  ASSERT_EQ(node_->Load(ns_, std::span(chain).first(6)), 6u);
  EXPECT_EQ(Lookup(5, kDear), kBlocks);
  EXPECT_EQ(Lookup(5, kCheap), 6u);
  EXPECT_EQ(Preferred(), kBlocks - 6);
}

TEST_F(CacheRecomputeTest, ItCanBeSwitchedOff) {
  Make(false);
  EXPECT_EQ(Lookup(7, kCheap), kBlocks);
  EXPECT_EQ(Preferred(), 0u);
}

// A device that nobody reads any more, since it was slow, is looked at again.
TEST_F(CacheRecomputeTest, ADeviceThatIsAvoidedIsStillSeen) {
  Make(true);
  for (size_t in_host = 0; in_host == 0; std::this_thread::yield()) {
    node_->cache().Lookup(ns_.handle, Chain(7), &in_host, kCheap);
  }
}

TEST_F(CacheRecomputeTest, WhatWasSavedIsCounted) {
  Make(true);
  const uint64_t before = node_->cache().Stats().saved_recompute_micros;
  EXPECT_EQ(before, 0u);  // no cost was told
  Lookup(0, 1500);
  EXPECT_EQ(node_->Read(ns_, Chain(0)), kBlocks);
  EXPECT_EQ(node_->cache().Stats().saved_recompute_micros, before + kBlocks * 1500);
}

}  // namespace
}  // namespace kvarve
