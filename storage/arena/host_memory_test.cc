// Goal: the right number out of /proc and /sys, for the layouts that hosts and containers show.
// Method: trees of files as kernels write them, in a folder of the test's own.
#include "storage/arena/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "storage/arena/arena.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

using testing::HasSubstr;

constexpr char kMeminfo[] =
    "MemTotal:       24646012 kB\n"
    "MemFree:        20873848 kB\n"
    "MemAvailable:   16777216 kB\n"
    "Buffers:            1420 kB\n"
    "HugePages_Total:       0\n";

class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/host_memory_XXXXXX";
    ASSERT_NE(nullptr, ::mkdtemp(pattern.data()));
    root_ = pattern;
    paths_ = {root_ + "/proc", root_ + "/sys/fs/cgroup"};
    Write("/proc/meminfo", kMeminfo);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full(root_ + path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  // One level of version 2. `limit` as the kernel writes it: "max" or bytes.
  void WriteGroup(const std::string& group, const std::string& limit, uint64_t usage,
                  uint64_t inactive_file, const std::string& high = "max") {
    const std::string folder = "/sys/fs/cgroup" + group;
    Write(folder + "/memory.max", limit + "\n");
    Write(folder + "/memory.high", high + "\n");
    Write(folder + "/memory.current", std::to_string(usage) + "\n");
    Write(folder + "/memory.stat", "anon 4096\nfile 8192\nactive_file 1\ninactive_file " +
                                       std::to_string(inactive_file) + "\nslab 12\n");
  }
  HostMemory Read() {
    auto host = ReadHostMemory(paths_);
    EXPECT_TRUE(host.ok()) << host.status();
    return *host;
  }

  std::string root_;
  HostMemoryPaths paths_;
};

TEST_F(HostMemoryTest, PlainHost) {
  Write("/proc/self/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n");
  const HostMemory host = Read();
  EXPECT_EQ(24646012 * kKiB, host.total_bytes);
  EXPECT_EQ(16 * kGiB, host.available_bytes);
  EXPECT_EQ(HostMemory::kNoLimit, host.cgroup_limit_bytes);
  EXPECT_EQ(16 * kGiB, host.BudgetBytes());
  EXPECT_EQ(16 * kGiB, host.FreeBytes());
  // 40 % of 16 GiB is 6,553.6 MiB: 204 extents.
  EXPECT_EQ(204 * kExtentBytes, DefaultArenaBytes(host));
}

TEST_F(HostMemoryTest, NestedGroupsTheSmallestLimitCounts) {
  Write("/proc/self/cgroup", "0::/kubepods.slice/pod1.slice/container.scope\n");
  WriteGroup("/kubepods.slice", std::to_string(20 * kGiB), 12 * kGiB, 0);
  WriteGroup("/kubepods.slice/pod1.slice", std::to_string(4 * kGiB), 3 * kGiB, kGiB);
  WriteGroup("/kubepods.slice/pod1.slice/container.scope", "max", 3 * kGiB, kGiB);
  const HostMemory host = Read();
  EXPECT_EQ(4 * kGiB, host.cgroup_limit_bytes);
  EXPECT_THAT(host.cgroup_limit_path, HasSubstr("pod1.slice/memory.max"));
  // 4 GiB less the 2 GiB that are not cached files.
  EXPECT_EQ(2 * kGiB, host.FreeBytes());
  EXPECT_EQ(4 * kGiB, host.BudgetBytes());
}

TEST_F(HostMemoryTest, FullParentGroupLeavesLittle) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  WriteGroup("/a", std::to_string(8 * kGiB), 8 * kGiB - 100 * kMiB, 0);
  WriteGroup("/a/b", std::to_string(6 * kGiB), kGiB, 0);
  const HostMemory host = Read();
  EXPECT_EQ(6 * kGiB, host.cgroup_limit_bytes);
  EXPECT_EQ(100 * kMiB, host.FreeBytes());
}

TEST_F(HostMemoryTest, HighCountsLikeMaxAndUsageAboveTheLimitIsZero) {
  Write("/proc/self/cgroup", "0::/a\n");
  WriteGroup("/a", std::to_string(8 * kGiB), 6 * kGiB, 0, std::to_string(5 * kGiB));
  const HostMemory host = Read();
  EXPECT_EQ(5 * kGiB, host.cgroup_limit_bytes);
  EXPECT_EQ(0u, host.FreeBytes());
}

TEST_F(HostMemoryTest, ContainerSeesItsOwnGroupAsTheMount) {
  // A private cgroup namespace, a path outside of the mount, and one that climbs.
  for (const char* path : {"0::/\n", "0::/docker/0123abcd\n", "0::/../../other\n"}) {
    Write("/proc/self/cgroup", path);
    WriteGroup("", std::to_string(2 * kGiB), kGiB, 0);
    EXPECT_EQ(2 * kGiB, Read().cgroup_limit_bytes) << path;
  }
}

TEST_F(HostMemoryTest, VersionOne) {
  Write("/proc/self/cgroup",
        "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/\n");
  const std::string memory = "/sys/fs/cgroup/memory";
  Write(memory + "/memory.limit_in_bytes", "9223372036854771712\n");
  Write(memory + "/memory.usage_in_bytes", "123456789\n");
  Write(memory + "/docker/abc/memory.limit_in_bytes", std::to_string(3 * kGiB) + "\n");
  Write(memory + "/docker/abc/memory.usage_in_bytes", std::to_string(2 * kGiB) + "\n");
  Write(memory + "/docker/abc/memory.stat",
        "inactive_file 5\ntotal_inactive_file " + std::to_string(kGiB) + "\n");
  const HostMemory host = Read();
  EXPECT_EQ(3 * kGiB, host.cgroup_limit_bytes);
  EXPECT_EQ(2 * kGiB, host.FreeBytes());
}

TEST_F(HostMemoryTest, LimitsOfTheArenaSize) {
  Write("/proc/self/cgroup", "0::/a\n");
  WriteGroup("/a", std::to_string(10 * kGiB), 0, 0);
  const HostMemory host = Read();
  EXPECT_EQ(128 * kExtentBytes, DefaultArenaBytes(host));  // 4 GiB, rounded down
  EXPECT_TRUE(CheckArenaBytes(host, 8 * kGiB - kExtentBytes).ok());
  const absl::Status status = CheckArenaBytes(host, 9 * kGiB);
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, status.code());
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("80 %"), HasSubstr("/a/memory.max"), HasSubstr("set it to"),
                             HasSubstr("raise that limit")));
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, CheckArenaBytes(host, kMiB).code());
}

TEST_F(HostMemoryTest, AnArenaThatExistsIsPartOfTheBudget) {
  Write("/proc/self/cgroup", "0::/\n");
  const HostMemory host = Read();  // 16 GiB available of 23.5
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, CheckArenaBytes(host, 15 * kGiB).code());
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, CheckArenaBytes(host, 20 * kGiB).code());
  EXPECT_THAT(std::string(CheckArenaBytes(host, 15 * kGiB).message()),
              HasSubstr("available memory of this host (16"));
  EXPECT_TRUE(CheckArenaBytes(host, 15 * kGiB, /*held_bytes=*/4 * kGiB).ok());
  EXPECT_EQ(host.total_bytes, host.BudgetBytes(100 * kGiB));  // nobody holds more than is used
}

// A node that reserved 64 GiB for the arena has little else, and its pod a limit for the rest
// alone.
TEST_F(HostMemoryTest, ReservedHugePagesComeOnTop) {
  Write("/proc/meminfo",
        "MemTotal: 83886080 kB\nMemAvailable: 10485760 kB\nHugePages_Total: 32768\n"
        "HugePages_Free: 32768\nHugePages_Rsvd: 1024\nHugepagesize: 2048 kB\n");
  Write("/proc/self/cgroup", "0::/a\n");
  WriteGroup("/a", std::to_string(4 * kGiB), kGiB, 0);
  const HostMemory host = Read();
  EXPECT_EQ(62 * kGiB, host.free_huge_bytes);
  EXPECT_EQ(4 * kGiB, host.BudgetBytes());
  EXPECT_FALSE(CheckArenaBytes(host, 62 * kGiB).ok());
  EXPECT_TRUE(CheckArenaBytes(host, 62 * kGiB, 0, /*huge_pages=*/true).ok());
  EXPECT_FALSE(CheckArenaBytes(host, 66 * kGiB, 0, /*huge_pages=*/true).ok());
  EXPECT_EQ(3 * kGiB, HostAvailableBytes(false, paths_)());
  EXPECT_EQ(62 * kGiB, HostAvailableBytes(true, paths_)());
  // Pages of 1 GiB are none that the arena takes.
  Write("/proc/meminfo",
        "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\nHugePages_Free: 4\n"
        "HugePages_Rsvd: 0\nHugepagesize: 1048576 kB\n");
  EXPECT_EQ(0u, Read().free_huge_bytes);
}

TEST_F(HostMemoryTest, UnreadableMeminfo) {
  Write("/proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_EQ(absl::StatusCode::kUnavailable, ReadHostMemory(paths_).status().code());
  EXPECT_EQ(HostMemory::kNoLimit, HostAvailableBytes(false, paths_)());
}

TEST_F(HostMemoryTest, AvailableBytesIsReadOnceAnInterval) {
  Write("/proc/self/cgroup", "0::/\n");
  ManualClock clock;
  const auto available = HostAvailableBytes(false, paths_, 1000, &clock);
  EXPECT_EQ(16 * kGiB, available());
  Write("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n");
  clock.Advance(999);
  EXPECT_EQ(16 * kGiB, available());
  clock.Advance(1);
  EXPECT_EQ(kGiB, available());
}

TEST(HostMemoryRealTest, ThisHost) {
  auto host = ReadHostMemory();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_GT(host->available_bytes, 0u);
  EXPECT_LE(host->FreeBytes(), host->total_bytes);
  EXPECT_LT(DefaultArenaBytes(*host), host->BudgetBytes());
}

}  // namespace
}  // namespace kvarve
