// Lives of a cache over a device (device_life_testing.h says what must hold), and the proof that
// the checks see something: each planted bug is caught.
//   KVARVE_TEST_SEED=N  runs that seed.   KVARVE_TEST_LONG=1  many more seeds.
#include "storage/cache/device_life_testing.h"

#include <cstdio>
#include <cstdlib>

namespace kvarve::testing {
namespace {

constexpr int kLives = 3;
constexpr int kSteps = 10;
constexpr int kLaps = 4;  // in more of them a block's lives end
constexpr uint64_t kSeedsToCatch = 30;

uint64_t Seeds() { return std::getenv("KVARVE_TEST_LONG") != nullptr ? 200 : 6; }

TEST(DeviceLifeTest, WhatWasPutIsThereAndWhatWasTakenAwayIsNot) {
  LifeOutcome sum;
  for (uint64_t seed = 0; seed < Seeds(); ++seed) {
    const LifeOutcome one =
        DeviceLife(seed, PlantedTierBug::kNone, DeviceLife::kWide).Run(kLives, kSteps);
    ASSERT_EQ(one.failure, "");
    sum.checked += one.checked;
    sum.erased += one.erased;
    sum.loaded += one.loaded;
    sum.joined += one.joined;
  }
  std::printf("%llu blocks checked, %llu invalidations, %llu blocks loaded, %llu waited for\n",
              (unsigned long long)sum.checked, (unsigned long long)sum.erased,
              (unsigned long long)sum.loaded, (unsigned long long)sum.joined);
  EXPECT_GT(sum.checked, 1000u);
  EXPECT_GT(sum.erased, 10u);
  EXPECT_GT(sum.loaded, 100u);
  EXPECT_GT(sum.joined, 10u);
}

TEST(DeviceLifeTest, TheRingKeepsWhatIsReadAndForgetsTheRest) {
  const LifeOutcome one = DeviceLife(1, PlantedTierBug::kNone, DeviceLife::kNarrow).RunLaps(kLaps);
  EXPECT_EQ(one.failure, "");
  EXPECT_GE(one.reclaimed, 10u);
  EXPECT_GE(one.carried, 8u);
}

struct Planted {
  PlantedTierBug bug;
  const char* name;
};
class PlantedTierBugTest : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedTierBugTest, IsCaught) {
  for (uint64_t seed = 0; seed < kSeedsToCatch; ++seed) {
    const PlantedTierBug bug = GetParam().bug;
    const bool in_laps =
        bug == PlantedTierBug::kHotNotKept || bug == PlantedTierBug::kReclaimedStays;
    DeviceLife life(seed, bug, in_laps ? DeviceLife::kNarrow : DeviceLife::kWide);
    const LifeOutcome one = in_laps ? life.RunLaps(kLaps) : life.Run(kLives, kSteps);
    if (one.failure.empty()) continue;
    std::printf("caught: %s\n", one.failure.c_str());
    return;
  }
  FAIL() << "no seed noticed it";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedTierBugTest,
    ::testing::Values(Planted{PlantedTierBug::kErasesIgnored, "ErasesIgnored"},
                      Planted{PlantedTierBug::kFirstNamespaceForAll, "FirstNamespaceForAll"},
                      Planted{PlantedTierBug::kReclaimedStays, "ReclaimedStays"},
                      Planted{PlantedTierBug::kHotNotKept, "HotNotKept"},
                      Planted{PlantedTierBug::kFailedIsPublished, "FailedIsPublished"},
                      Planted{PlantedTierBug::kFailedFlightIsBelieved, "FailedFlightIsBelieved"},
                      Planted{PlantedTierBug::kLandsBeforePublished, "LandsBeforePublished"},
                      Planted{PlantedTierBug::kClearedArrives, "ClearedArrives"},
                      Planted{PlantedTierBug::kStaleIsWritten, "StaleIsWritten"},
                      Planted{PlantedTierBug::kDirtyUncounted, "DirtyUncounted"}),
    [](const auto& info) { return std::string(info.param.name); });

// The catalogue is gone and nobody has opened a namespace when the device is recovered: each record
// is its own namespace's all the same.
TEST(DeviceLifeTest, WithoutCatalogueAndBeforeAnybodyComesEachRecordHasItsNamespace) {
  TestNode node({.device_bytes = 256 * kMiBytes});
  constexpr size_t kSpaces = 5;
  const std::vector<BlockKey> shared = KeyChain(1, 12);
  const auto name = [](size_t space) { return "model" + std::to_string(space); };
  const auto own = [](size_t space) { return KeyChain(100 + space, 1 + space); };
  for (size_t space = 0; space < kSpaces; ++space) {
    const NamespaceInfo ns = node.Open(name(space), space % 2 == 0 ? "even" : "odd");
    ASSERT_EQ(node.PutAll(ns, shared), shared.size());
    ASSERT_EQ(node.PutAll(ns, own(space)), 1 + space);
  }
  ASSERT_TRUE(node.WaitDevices());
  node.Crash(/*loses_catalogue=*/true);
  ASSERT_TRUE(node.WaitDevices());
  const DeviceTierStats stats = node.Stats();
  EXPECT_EQ(stats.devices[0].log.from_catalogue, 0u);
  EXPECT_EQ(stats.blocks, kSpaces * shared.size() + 15);
  EXPECT_EQ(node.cache().Stats().namespaces, 0u);
  // The other way round, so that the order of coming says nothing.
  for (size_t space = kSpaces; space-- > 0;) {
    const NamespaceInfo ns = node.Open(name(space), space % 2 == 0 ? "even" : "odd");
    EXPECT_EQ(node.Read(ns, shared), shared.size());
    EXPECT_EQ(node.Read(ns, own(space)), 1 + space);
    for (size_t other = 0; other < kSpaces; ++other) {
      EXPECT_EQ(node.cache().Lookup(ns.handle, own(other)), other == space ? 1 + space : 0u);
    }
  }
  EXPECT_EQ(node.Stats().load_failed_blocks, 0u);
}

// Blocks of one chain lie in different forms, and lives differ in what they write.
TEST(DeviceLifeTest, TheSameWithARung) {
  uint64_t decoded = 0;
  const uint64_t seeds = std::getenv("KVARVE_TEST_LONG") != nullptr ? 100 : 3;
  for (uint64_t seed = 1000; seed < 1000 + seeds; ++seed) {
    const LifeOutcome one =
        DeviceLife(seed, PlantedTierBug::kNone, DeviceLife::kWide, Representation::kPlanes)
            .Run(kLives, kSteps);
    ASSERT_EQ(one.failure, "");
    decoded += one.decoded;
  }
  const LifeOutcome laps =
      DeviceLife(1, PlantedTierBug::kNone, DeviceLife::kNarrow, Representation::kPlanes)
          .RunLaps(kLaps);
  EXPECT_EQ(laps.failure, "");
  EXPECT_GE(laps.carried, 8u);
  EXPECT_GT(decoded, 50u);
}

}  // namespace
}  // namespace kvarve::testing
