// Goal: regions never overlap, come back whole, and outlive the connection that made them. Method:
// random allocations against a naive map of units; memory that may shrink is refused.
#include "client/cpp/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "client/cpp/fake_daemon_testing.h"

namespace kvarve::client {
namespace {

constexpr uint64_t kUnit = StagingMemory::kUnitBytes;

TEST(Staging, RandomRegionsAgainstANaiveMap) {
  constexpr uint64_t kUnits = 64;
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937_64 random(seed);
  const UniqueFd fd = MakeMemory(kUnits * kUnit);
  std::shared_ptr<StagingMemory> memory = *StagingMemory::Map(fd.get(), kUnits * kUnit);
  std::vector<bool> taken(kUnits, false);
  std::vector<std::shared_ptr<StagingRegion>> regions;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 && !regions.empty()) {
      const size_t i = random() % regions.size();
      for (uint64_t u = 0; u < regions[i]->bytes() / kUnit; ++u) {
        taken[regions[i]->offset() / kUnit + u] = false;
      }
      std::swap(regions[i], regions.back());
      regions.pop_back();
    } else {
      const uint64_t bytes = 1 + random() % (8 * kUnit);
      const uint64_t units = (bytes + kUnit - 1) / kUnit;
      // Naive first fit.
      uint64_t expected = kUnits;
      for (uint64_t at = 0, run = 0; at < kUnits && expected == kUnits; ++at) {
        run = taken[at] ? 0 : run + 1;
        if (run == units) expected = at + 1 - units;
      }
      absl::StatusOr<std::shared_ptr<StagingRegion>> region = memory->Allocate(bytes);
      ASSERT_EQ(region.ok(), expected < kUnits) << "step " << step;
      if (!region.ok()) {
        EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted);
        continue;
      }
      ASSERT_EQ((*region)->offset(), expected * kUnit) << "step " << step;
      ASSERT_EQ((*region)->bytes(), units * kUnit);
      for (uint64_t u = 0; u < units; ++u) taken[expected + u] = true;
      regions.push_back(*std::move(region));
    }
    const uint64_t free = static_cast<uint64_t>(std::count(taken.begin(), taken.end(), false));
    ASSERT_EQ(memory->free_bytes(), free * kUnit);
  }
  regions.clear();
  EXPECT_EQ((*memory->Allocate(kUnits * kUnit))->offset(), 0u);
}

TEST(Staging, ARegionKeepsItsMemory) {
  const UniqueFd fd = MakeMemory(4 * kUnit);
  std::shared_ptr<StagingMemory> memory = *StagingMemory::Map(fd.get(), 4 * kUnit);
  std::shared_ptr<StagingRegion> first = *memory->Allocate(kUnit);
  std::shared_ptr<StagingRegion> second = *memory->Allocate(kUnit);
  memory = nullptr;
  std::memset(second->data(), 7, kUnit);
  char read[2] = {};
  EXPECT_EQ(::pread(fd.get(), read, 2, static_cast<off_t>(kUnit) - 1), 2);
  EXPECT_EQ(read[0], 0);
  EXPECT_EQ(read[1], 7);
}

TEST(Staging, TooMuchIsRefusedForNow) {
  const UniqueFd fd = MakeMemory(4 * kUnit);
  const std::shared_ptr<StagingMemory> memory = *StagingMemory::Map(fd.get(), 4 * kUnit);
  for (uint64_t bytes : {4 * kUnit + 1, ~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(memory->Allocate(bytes).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(Staging, MemoryThatCouldShrinkIsRefused) {
  const UniqueFd open = MakeMemory(4 * kUnit, /*sealed=*/false);
  EXPECT_EQ(StagingMemory::Map(open.get(), 4 * kUnit).status().code(),
            absl::StatusCode::kInvalidArgument);
  const UniqueFd shorter = MakeMemory(kUnit);
  EXPECT_FALSE(StagingMemory::Map(shorter.get(), 4 * kUnit).ok());
  EXPECT_FALSE(StagingMemory::Map(shorter.get(), 0).ok());
  EXPECT_FALSE(StagingMemory::Map(0, kUnit).ok());
}

}  // namespace
}  // namespace kvarve::client
