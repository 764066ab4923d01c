// Staging within its budgets, and the bounds of what a client may name in it.
#include "services/local/staging.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "storage/base/units.h"

namespace kvarve {
namespace {

TEST(StagingBudgetTest, NestsAndGivesWhatThereIs) {
  StagingBudget total(10 * kMiB);
  StagingBudget a(6 * kMiB, &total), b(8 * kMiB, &total);
  EXPECT_EQ(a.Take(1), 2 * kMiB);
  EXPECT_EQ(a.Take(100 * kMiB), 4 * kMiB);
  EXPECT_EQ(a.Take(1), 0u);
  EXPECT_EQ(b.Take(8 * kMiB), 4 * kMiB);  // the total's rest
  EXPECT_EQ(b.used(), 4 * kMiB);
  EXPECT_EQ(total.used(), 10 * kMiB);
  a.GiveBack(4 * kMiB);
  EXPECT_EQ(b.Take(3 * kMiB), 4 * kMiB);
  EXPECT_EQ(b.Take(~0ull), 0u);
  a.GiveBack(2 * kMiB);
  b.GiveBack(8 * kMiB);
  EXPECT_EQ(total.used(), 0u);
}

TEST(StagingBudgetTest, OddLimits) {
  StagingBudget small(3 * kMiB);
  EXPECT_EQ(small.Take(3 * kMiB), 2 * kMiB);
  StagingBudget none(kMiB);
  EXPECT_EQ(none.Take(1), 0u);
}

TEST(StagingTest, BoundsAreExact) {
  StagingBudget budget(64 * kMiB);
  {
    auto staging = SessionStaging::Create(3 * kMiB, &budget);
    ASSERT_TRUE(staging.ok()) << staging.status();
    const SessionStaging& s = **staging;
    ASSERT_EQ(s.bytes(), 4 * kMiB);
    EXPECT_EQ(budget.used(), 4 * kMiB);
    EXPECT_NE(s.At(0, 4 * kMiB), nullptr);
    EXPECT_NE(s.At(4 * kMiB - 1, 1), nullptr);
    EXPECT_EQ(s.At(4 * kMiB, 1), nullptr);
    EXPECT_EQ(s.At(1, 4 * kMiB), nullptr);
    EXPECT_EQ(s.At(0, 4 * kMiB + 1), nullptr);
    EXPECT_EQ(s.At(~0ull, 2), nullptr);
    EXPECT_EQ(s.At(2, ~0ull), nullptr);
  }
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(*SessionStaging::Create(0, &budget), nullptr);
}

TEST(StagingTest, TheClientsMappingIsTheSameMemory) {
  StagingBudget budget(64 * kMiB);
  auto staging = SessionStaging::Create(2 * kMiB, &budget);
  ASSERT_TRUE(staging.ok());
  const auto fd = (*staging)->TakeFd();
  ASSERT_NE(fd, nullptr);
  EXPECT_EQ((*staging)->TakeFd(), nullptr);
  void* map = ::mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  static_cast<std::byte*>(map)[12345] = std::byte{42};
  EXPECT_EQ(*(*staging)->At(12345, 1), std::byte{42});
  // No size change, from either side; a hole only empties it.
  EXPECT_NE(::ftruncate(fd->get(), kMiB), 0);
  ::fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * kMiB);
  EXPECT_EQ(*(*staging)->At(12345, 1), std::byte{0});
  ::munmap(map, 2 * kMiB);
}

}  // namespace
}  // namespace kvarve
