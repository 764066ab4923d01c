#include "storage/testing/sim_disk.h"

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "storage/io/io_wait.h"

namespace kvarve::testing {
namespace {

constexpr uint64_t kBytes = 1 << 20;

struct alignas(4096) Page {
  std::byte bytes[4096] = {};
  explicit Page(int fill = 0) { std::memset(bytes, fill, sizeof(bytes)); }
  std::span<std::byte> span() { return bytes; }
};

int FillOf(const SimDisk& disk, std::span<const std::byte> image, uint64_t sector) {
  const auto first = static_cast<int>(image[sector * 512]);
  for (uint64_t i = sector * 512; i < sector * 512 + 512; ++i) {
    if (static_cast<int>(image[i]) != first) return -1;  // torn
  }
  return first;
}

TEST(SimDiskTest, EqualSeedsDoEqualThings) {
  const auto run = [](uint64_t seed) {
    FaultPlan plan;
    plan.write_error = plan.lost_write = plan.flipped_write = 5;
    SimDisk disk(kBytes, seed, plan);
    Page page(7);
    IoWait wait(&disk);
    for (uint64_t i = 0; i < 100; ++i) {
      wait.Submit({IoOp::kWrite, IoClass::kFlush, i * 4096, {{page.bytes, 4096}}, nullptr});
    }
    wait.Wait().IgnoreError();
    disk.Reboot(SimDisk::PowerLoss::kYes);
    return std::vector<std::byte>(disk.image().begin(), disk.image().end());
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

TEST(SimDiskTest, SyncedSectorsSurviveAPowerLossAndOthersMayNot) {
  SimDisk disk(kBytes, 1);
  Page old(1), now(2);
  for (int i = 0; i < 64; ++i)
    ASSERT_TRUE(WriteNow(&disk, IoClass::kFlush, i * 4096, old.span()).ok());
  ASSERT_TRUE(SyncNow(&disk, IoClass::kFlush).ok());
  for (int i = 0; i < 32; ++i)
    ASSERT_TRUE(WriteNow(&disk, IoClass::kFlush, i * 4096, now.span()).ok());
  disk.Reboot(SimDisk::PowerLoss::kYes);
  int kept = 0, lost = 0, torn = 0;
  for (int sector = 0; sector < 32 * 8; ++sector) {
    const int fill = FillOf(disk, disk.image(), sector);
    ++(fill == 2 ? kept : fill == 1 ? lost : torn);
  }
  EXPECT_GT(kept, 50);
  EXPECT_GT(lost, 50);
  EXPECT_GT(torn, 0);
  for (int sector = 32 * 8; sector < 64 * 8; ++sector)
    EXPECT_EQ(FillOf(disk, disk.image(), sector), 1);
}

TEST(SimDiskTest, ASyncCoversOnlyWhatWasDoneBeforeIt) {
  // Over many seeds some run must show the write lost: it was in flight when the sync came.
  int lost = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(kBytes, seed);
    Page now(2);
    IoWait wait(&disk);
    wait.Submit({IoOp::kWrite, IoClass::kFlush, 0, {{now.bytes, 4096}}, nullptr});
    wait.Submit({IoOp::kSync, IoClass::kFlush, 0, {}, nullptr});
    ASSERT_TRUE(wait.Wait().ok());
    disk.Reboot(SimDisk::PowerLoss::kYes);
    lost += FillOf(disk, disk.image(), 0) == 2 ? 0 : 1;
  }
  EXPECT_GT(lost, 5);
}

TEST(SimDiskTest, DeathLeavesRequestsDoneNotDoneOrPartlyDone) {
  int whole = 0, none = 0, part = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimDisk disk(kBytes, seed);
    Page now(2);
    IoWait wait(&disk);
    wait.Submit({IoOp::kWrite, IoClass::kFlush, 0, {{now.bytes, 4096}}, nullptr});
    disk.DieNow();
    EXPECT_FALSE(wait.Wait().ok());
    EXPECT_FALSE(ReadNow(&disk, IoClass::kDemand, 0, now.span()).ok());
    disk.Reboot(SimDisk::PowerLoss::kNo);
    EXPECT_TRUE(ReadNow(&disk, IoClass::kDemand, 0, now.span()).ok());
    int written = 0;
    for (int sector = 0; sector < 8; ++sector)
      written += FillOf(disk, disk.image(), sector) == 2 ? 1 : 0;
    ++(written == 8 ? whole : written == 0 ? none : part);
  }
  EXPECT_GT(whole, 5);
  EXPECT_GT(none, 5);
  EXPECT_GT(part, 5);
}

// Every fault of the plan happens, and is told as it should be.
TEST(SimDiskTest, EachFaultIsInjected) {
  Page page(3);
  const auto first_failure = [&](FaultPlan plan, IoOp op) {
    SimDisk disk(kBytes, 9, plan);
    absl::Status status;
    for (int i = 0; i < 50 && status.ok(); ++i) {
      status = op == IoOp::kRead    ? ReadNow(&disk, IoClass::kDemand, 0, page.span())
               : op == IoOp::kWrite ? WriteNow(&disk, IoClass::kFlush, 0, page.span())
                                    : SyncNow(&disk, IoClass::kFlush);
    }
    return status.code();
  };
  using Code = absl::StatusCode;
  EXPECT_EQ(first_failure({.read_error = 5}, IoOp::kRead), Code::kInternal);
  EXPECT_EQ(first_failure({.write_error = 5}, IoOp::kWrite), Code::kInternal);
  EXPECT_EQ(first_failure({.no_space = 5}, IoOp::kWrite), Code::kResourceExhausted);
  EXPECT_EQ(first_failure({.short_read = 5}, IoOp::kRead), Code::kDataLoss);
  EXPECT_EQ(first_failure({.short_write = 5}, IoOp::kWrite), Code::kDataLoss);
  EXPECT_EQ(first_failure({.sync_error = 5}, IoOp::kSync), Code::kInternal);
  for (FaultPlan plan : {FaultPlan{.lost_write = 1}, FaultPlan{.misdirected_write = 1},
                         FaultPlan{.flipped_read = 1}, FaultPlan{.flipped_write = 1}}) {
    SimDisk disk(kBytes, 12, plan);
    Page out(3), in(0);
    ASSERT_TRUE(WriteNow(&disk, IoClass::kFlush, 4096, out.span()).ok());
    ASSERT_TRUE(ReadNow(&disk, IoClass::kDemand, 4096, in.span()).ok());
    EXPECT_NE(std::memcmp(in.bytes, out.bytes, 4096), 0);
    EXPECT_EQ(disk.faults().lies, 1u);
  }
}

}  // namespace
}  // namespace kvarve::testing
