// Thousands of lives of a log on a simulated disk (simulation_testing.h says what must hold), and
// the proof that the checks see something: each planted bug is caught.
//   KVARVE_TEST_SEED=N  runs that seed alone, in every kind.   KVARVE_TEST_LONG=1  many more seeds.
//   KVARVE_TEST_SEEDS=A:B  runs the seeds from A to B - 1, so that many can be run in pieces.
#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"
#include "storage/segment/simulation_testing.h"

namespace kvarve::testing {
namespace {

constexpr int kLives = 5;
constexpr int kSteps = 60;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Else too few seeds run for what they should meet.
bool IsNormalRun() {
  return !kSanitized && std::getenv("KVARVE_TEST_SEED") == nullptr &&
         std::getenv("KVARVE_TEST_SEEDS") == nullptr;
}

struct Seeds {
  uint64_t begin = 0, end = 0;
};
Seeds SeedsOf(uint64_t normal) {
  if (const char* seed = std::getenv("KVARVE_TEST_SEED")) {
    const uint64_t one = std::strtoull(seed, nullptr, 10);
    return {one, one + 1};
  }
  if (const char* range = std::getenv("KVARVE_TEST_SEEDS")) {
    char* rest = nullptr;
    const uint64_t begin = std::strtoull(range, &rest, 10);
    return {begin, *rest == ':' ? std::strtoull(rest + 1, nullptr, 10) : begin};
  }
  if (kSanitized) normal /= 4;
  return {0, std::getenv("KVARVE_TEST_LONG") != nullptr ? normal * 100 : normal};
}

SimOutcome RunAll(SimKind kind, Seeds seeds) {
  SimOutcome sum;
  for (uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
    const SimOutcome one = Simulation(seed, kind).Run(kLives, kSteps);
    EXPECT_EQ(one.failure, "") << "repeat it with KVARVE_TEST_SEED=" << seed;
    if (!one.failure.empty()) break;
    sum.restarts += one.restarts;
    sum.power_losses += one.power_losses;
    sum.written += one.written;
    sum.moved += one.moved;
    sum.reclaimed += one.reclaimed;
    sum.erases += one.erases;
    sum.checked += one.checked;
    sum.from_frames += one.from_frames;
    sum.from_footer += one.from_footer;
    sum.from_catalogue += one.from_catalogue;
    sum.faults.errors += one.faults.errors;
    sum.faults.shorts += one.faults.shorts;
    sum.faults.lies += one.faults.lies;
    sum.faults.lost_sectors += one.faults.lost_sectors;
    sum.faults.torn_sectors += one.faults.torn_sectors;
  }
  std::printf(
      "%llu lives, %llu power losses, %llu blocks written, %llu moved, %llu segments reclaimed, "
      "%llu "
      "erases; %llu blocks that had to be there; segments from frames %llu, footers %llu, "
      "catalogue "
      "%llu; errors %llu, short %llu, lies %llu, sectors lost %llu, torn %llu\n",
      (unsigned long long)sum.restarts, (unsigned long long)sum.power_losses,
      (unsigned long long)sum.written, (unsigned long long)sum.moved,
      (unsigned long long)sum.reclaimed, (unsigned long long)sum.erases,
      (unsigned long long)sum.checked, (unsigned long long)sum.from_frames,
      (unsigned long long)sum.from_footer, (unsigned long long)sum.from_catalogue,
      (unsigned long long)sum.faults.errors, (unsigned long long)sum.faults.shorts,
      (unsigned long long)sum.faults.lies, (unsigned long long)sum.faults.lost_sectors,
      (unsigned long long)sum.faults.torn_sectors);
  return sum;
}

TEST(SimulationTest, HonestDisk) {
  const SimOutcome sum = RunAll(SimKind::kHonest, SeedsOf(500));
  if (!IsNormalRun()) return;
  // Nothing was checked in vain.
  EXPECT_GT(sum.power_losses, 100u);
  EXPECT_GT(sum.moved, 1000u);
  EXPECT_GT(sum.reclaimed, 1000u);
  EXPECT_GT(sum.erases, 100u);
  EXPECT_GT(sum.checked, 10000u);
  EXPECT_GT(sum.from_frames, 100u);
  EXPECT_GT(sum.from_footer, 100u);
  EXPECT_GT(sum.from_catalogue, 100u);
  EXPECT_GT(sum.faults.lost_sectors, 1000u);
  EXPECT_GT(sum.faults.torn_sectors, 100u);
}

TEST(SimulationTest, DiskThatFails) {
  const SimOutcome sum = RunAll(SimKind::kFaulty, SeedsOf(300));
  if (!IsNormalRun()) return;
  EXPECT_GT(sum.faults.errors, 1000u);
  EXPECT_GT(sum.faults.shorts, 100u);
  EXPECT_GT(sum.checked, 1000u);
}

TEST(SimulationTest, DiskThatLies) {
  const SimOutcome sum = RunAll(SimKind::kLying, SeedsOf(200));
  if (!IsNormalRun()) return;
  EXPECT_GT(sum.faults.lies, 1000u);
}

TEST(SimulationTest, ASeedReplaysExactly) {
  const auto facts = [](const SimOutcome& one) {
    return std::vector<uint64_t>{one.written,     one.moved,         one.reclaimed,
                                 one.checked,     one.faults.errors, one.faults.torn_sectors,
                                 one.from_frames, one.erases};
  };
  for (uint64_t seed = 7; seed < 10; ++seed) {
    for (SimKind kind : {SimKind::kHonest, SimKind::kFaulty, SimKind::kLying}) {
      EXPECT_EQ(facts(Simulation(seed, kind).Run(kLives, kSteps)),
                facts(Simulation(seed, kind).Run(kLives, kSteps)));
    }
  }
}

struct Planted {
  PlantedBug bug;
  SimKind kind;
  const char* name;
};

class PlantedBugTest : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedBugTest, IsCaught) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const SimOutcome one = Simulation(seed, GetParam().kind, GetParam().bug).Run(kLives, kSteps);
    if (one.failure.empty()) continue;
    std::printf("caught: %s\n", one.failure.c_str());
    return;
  }
  FAIL() << "no seed noticed it";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBugTest,
    ::testing::Values(
        Planted{PlantedBug::kReadUnverified, SimKind::kLying, "ReadUnverified"},
        Planted{PlantedBug::kSealWithoutSync, SimKind::kHonest, "SealWithoutSync"},
        Planted{PlantedBug::kFramesBeforeHeader, SimKind::kHonest, "FramesBeforeHeader"},
        Planted{PlantedBug::kSealOverFailedFrame, SimKind::kFaulty, "SealOverFailedFrame"},
        Planted{PlantedBug::kFooterOfOldLife, SimKind::kHonest, "FooterOfOldLife"},
        Planted{PlantedBug::kWalkDropsLastFrame, SimKind::kHonest, "WalkDropsLastFrame"},
        Planted{PlantedBug::kEpochReused, SimKind::kHonest, "EpochReused"},
        Planted{PlantedBug::kFreeBeforeMoved, SimKind::kHonest, "FreeBeforeMoved"},
        Planted{PlantedBug::kReclaimWhileRead, SimKind::kHonest, "ReclaimWhileRead"},
        Planted{PlantedBug::kErasesForgotten, SimKind::kHonest, "ErasesForgotten"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvarve::testing
