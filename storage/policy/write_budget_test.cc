#include "storage/policy/write_budget.h"

#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// 1 MiB a second, a bucket of 1,000 MiB.
WriteBudgetOptions Small() {
  return {.capacity_bytes = 86400 * kMiB,
          .drive_writes_per_day = 1,
          .write_amplification = 1,
          .burst_seconds = 1000};
}
RunFacts RunOf(uint32_t blocks, uint32_t first_depth = 0) {
  return {
      .first_depth = first_depth, .blocks = blocks, .block_bytes = kMiB, .parent_on_device = true};
}

TEST(WriteBudgetTest, TheRateIsTheDrivesRating) {
  // 1 drive write a day of 15.36 TB is 178 MB/s; what we amplify comes off.
  WriteBudgetOptions options{.capacity_bytes = 15'360'000'000'000, .write_amplification = 1};
  EXPECT_NEAR(WriteBudget(options).bytes_per_second() / 1e6, 177.8, 0.1);
  options.write_amplification = 2;
  EXPECT_NEAR(WriteBudget(options).bytes_per_second() / 1e6, 88.9, 0.1);
  options.drive_writes_per_day = 0;
  WriteBudget unlimited(options);
  EXPECT_TRUE(unlimited.unlimited());
  EXPECT_EQ(unlimited.Admit(RunOf(1'000'000), 0), 1'000'000u);
}

TEST(WriteBudgetTest, WhatLacksItsParentIsOfNoUse) {
  WriteBudget budget(Small());
  RunFacts orphan = RunOf(10, 5);
  orphan.parent_on_device = false;
  EXPECT_EQ(budget.Admit(orphan, 0), 0u);
  orphan.first_depth = 0;  // a root
  EXPECT_EQ(budget.Admit(orphan, 0), 10u);
}

TEST(WriteBudgetTest, TheLadderGetsStricterAndOpensLater) {
  WriteBudget budget(Small());
  RunFacts seen = RunOf(3, 100);
  seen.seen_blocks = 1;
  EXPECT_EQ(budget.step(), AdmissionStep::kAll);
  EXPECT_EQ(budget.Admit(RunOf(500), 0), 500u);
  EXPECT_EQ(budget.step(), AdmissionStep::kShallow);
  EXPECT_EQ(budget.Admit(RunOf(10, 100), 0), 0u);
  EXPECT_EQ(budget.Admit(RunOf(10, 60), 0), 4u);  // up to depth 64
  EXPECT_EQ(budget.Admit(RunOf(10, 62), 30), 2u);
  EXPECT_EQ(budget.Admit(seen, 30), 1u);
  EXPECT_EQ(budget.step(), AdmissionStep::kShallow);  // 523 are left, 550 open it
  EXPECT_EQ(budget.Admit(RunOf(64), 58), 64u);        // 551: all again
  budget.Charge(300 * kMiB, 58);
  EXPECT_EQ(budget.step(), AdmissionStep::kSeenBefore);
  EXPECT_EQ(budget.Admit(RunOf(10), 58), 0u);
  EXPECT_EQ(budget.Admit(seen, 58), 1u);
  budget.Charge(100 * kMiB, 58);
  EXPECT_EQ(budget.step(), AdmissionStep::kSampled);
  seen.hash = 5;
  EXPECT_EQ(budget.Admit(seen, 58), 0u);
  seen.hash = 8;
  EXPECT_EQ(budget.Admit(seen, 58), 1u);
  budget.Charge(500 * kMiB, 58);
  EXPECT_EQ(budget.step(), AdmissionStep::kNone);
  EXPECT_EQ(budget.Admit(seen, 58), 0u);
  seen.pinned = true;
  EXPECT_EQ(budget.Admit(seen, 58), 0u);    // nothing is left for it
  EXPECT_EQ(budget.Admit(seen, 1000), 3u);  // a pin asks for no step
}

TEST(WriteBudgetTest, NeverMoreGenerousThanTheLeast) {
  for (const double writes : {0.0, 1.0}) {
    WriteBudgetOptions options = Small();
    options.drive_writes_per_day = writes;
    options.least = AdmissionStep::kSeenBefore;
    WriteBudget budget(options);
    RunFacts run = RunOf(10);
    EXPECT_EQ(budget.Admit(run, 0), 0u);
    run.seen_blocks = 4;
    EXPECT_EQ(budget.Admit(run, 0), 4u);
    EXPECT_EQ(budget.Admit(run, 5000), 4u);
    EXPECT_EQ(budget.step(), AdmissionStep::kSeenBefore);
  }
}

TEST(WriteBudgetTest, WhatWasNotWrittenIsGivenBack) {
  WriteBudget budget(Small());
  EXPECT_EQ(budget.Admit(RunOf(100), 0), 100u);
  budget.GiveBack(30 * kMiB);
  EXPECT_NEAR(budget.level_bytes() / kMiB, 930, 1e-6);
  budget.GiveBack(500 * kMiB);
  EXPECT_NEAR(budget.level_bytes() / kMiB, 1000, 1e-6);  // never more than full
}

// Whatever is asked: over any time no more than the bucket and the rate allow, and of each chain
// what is on the device has no holes.
TEST(WriteBudgetTest, RandomRunsNeverPassTheBudgetAndLeaveNoHoles) {
  testing::SeededRandom random(3);
  WriteBudget budget(Small());
  std::map<uint64_t, uint32_t> on_device;  // blocks of each chain, from its root
  double now = 0, admitted = 0;
  for (int step = 0; step < 100'000; ++step) {
    now += static_cast<double>(random.Below(100)) / 25;
    const uint64_t chain = random.Below(500);
    const auto depth = static_cast<uint32_t>(random.OneIn(2) ? on_device[chain] : random.Below(40));
    RunFacts run = RunOf(static_cast<uint32_t>(1 + random.Below(64)), depth);
    run.block_bytes = 1 + random.Below(2 * kMiB);
    run.parent_on_device = depth <= on_device[chain];
    run.seen_blocks = static_cast<uint32_t>(random.Below(run.blocks + 1));
    run.hash = chain;
    run.pinned = random.OneIn(50);
    const uint32_t blocks = budget.Admit(run, now);
    ASSERT_LE(blocks, run.blocks);
    if (blocks > 0) {
      ASSERT_LE(depth, on_device[chain]);
      on_device[chain] = std::max(on_device[chain], depth + blocks);
    }
    if (random.OneIn(20)) on_device[chain] = 0;  // reclaimed
    admitted += static_cast<double>(blocks) * static_cast<double>(run.block_bytes);
    ASSERT_LE(admitted, budget.burst_bytes() + budget.bytes_per_second() * now + 1);
  }
  EXPECT_GT(admitted, budget.bytes_per_second() * now * 0.9);  // and most of it is used
}

TEST(WriteBudgetTest, TheLevelOutlivesARestart) {
  WriteBudget before(Small());
  before.Charge(800 * kMiB, 0);
  const std::string saved = before.Save(1'000'000);
  const auto level = [&](std::string_view text, int64_t wall) {
    WriteBudget after(Small());
    EXPECT_TRUE(after.Restore(text, wall)) << text;
    return after.level_bytes() / kMiB;
  };
  EXPECT_NEAR(level(saved, 1'000'000), 200, 0.01);
  EXPECT_NEAR(level(saved, 1'000'100), 300, 0.01);
  EXPECT_NEAR(level(saved, 9'000'000), 1000, 0.01);
  EXPECT_NEAR(level(saved, 1), 200, 0.01);  // the clock went back
  EXPECT_NEAR(level("1 1e300 5", 5), 1000, 0.01);
  WriteBudget after(Small());
  for (const char* text : {"", "1", "1 ", "1 x 5", "1 5", "1 5 ", "1 nan 5", "2 5 5", "1 5 5x"})
    EXPECT_FALSE(after.Restore(text, 0)) << text;
  EXPECT_NEAR(after.level_bytes() / kMiB, 1000, 0.01);
}

}  // namespace
}  // namespace kvarve
