#include "storage/segment/device_format.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/abseil.h"
#include "storage/io/open_device.h"
#include "storage/testing/sim_disk.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using testing::SimDisk;
namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20;

std::string Text(const absl::Status& status) { return std::string(ToStd(status.message())); }

class DeviceFormatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "device_format_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/device";
    options_.bytes = 9 * kMiB;
    options_.segment_bytes = kMiB;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_, path_;
  FormatOptions options_;
};

TEST_F(DeviceFormatTest, MakesAFileAndReadsItBack) {
  uint64_t last = 0, total = 0;
  options_.progress = [&](uint64_t done, uint64_t of) {
    EXPECT_GE(done, last);
    last = done;
    total = of;
  };
  const auto made = FormatDevice(path_, options_);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->slots, 8u);
  EXPECT_EQ(last, total);
  EXPECT_EQ(fs::file_size(path_), 9 * kMiB);
  auto device = OpenDevice(path_, {});
  ASSERT_TRUE(device.ok());
  const auto read = ReadSuperblock(device->get(), &made->uuid);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->secret, made->secret);
}

TEST_F(DeviceFormatTest, RefusesWhatIsNotOursAndLeavesItAlone) {
  std::ofstream(path_) << std::string(2 * kMiB, 'x');
  const auto refused = FormatDevice(path_, options_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused.status()), HasSubstr("--force"));
  EXPECT_THAT(Text(refused.status()), HasSubstr(path_));
  EXPECT_EQ(fs::file_size(path_), 2 * kMiB);
  std::ifstream file(path_);
  EXPECT_EQ(file.get(), 'x');
  options_.force = true;
  EXPECT_TRUE(FormatDevice(path_, options_).ok());
}

TEST_F(DeviceFormatTest, OursAndEmptyOnesNeedNoForce) {
  const auto first = FormatDevice(path_, options_);
  ASSERT_TRUE(first.ok());
  const auto second = FormatDevice(path_, options_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(first->uuid, second->uuid);
  std::ofstream(folder_ + "/zeros") << std::string(9 * kMiB, '\0');
  options_.bytes = 0;  // as large as it is
  EXPECT_EQ(FormatDevice(folder_ + "/zeros", options_)->slots, 8u);
}

TEST_F(DeviceFormatTest, RefusesLinksDevicesInUseAndSizesThatCannotWork) {
  ASSERT_TRUE(FormatDevice(path_, options_).ok());
  fs::create_symlink(path_, folder_ + "/link");
  EXPECT_THAT(Text(FormatDevice(folder_ + "/link", options_).status()), HasSubstr("symbolic link"));
  {
    auto device = OpenDevice(path_, {});
    ASSERT_TRUE(device.ok());
    EXPECT_THAT(Text(FormatDevice(path_, options_).status()), HasSubstr("in use"));
  }
  options_.bytes = 2 * kMiB;
  EXPECT_THAT(Text(FormatDevice(path_, options_).status()), HasSubstr("too small"));
  options_.segment_bytes = 1000;
  EXPECT_THAT(Text(FormatDevice(path_, options_).status()), HasSubstr("at least"));
}

TEST_F(DeviceFormatTest, SaysASizeThatIsEnoughAndLeavesNoFileOfAnother) {
  options_.bytes = 1024 * kMiB;
  options_.segment_bytes = 256 * kMiB;
  options_.overwrite = false;
  EXPECT_THAT(Text(FormatDevice(path_, options_).status()), HasSubstr("give it 1025MiB, or"));
  EXPECT_FALSE(fs::exists(path_));
  options_.bytes = 1ull << 50;
  EXPECT_THAT(Text(FormatDevice(path_, options_).status()), HasSubstr("no space"));
  EXPECT_FALSE(fs::exists(path_));
  options_.bytes = 1025 * kMiB;
  EXPECT_TRUE(FormatDevice(path_, options_).ok());
}

TEST(SuperblockTest, OneGoodCopyIsEnoughAndTheNewerCounts) {
  SimDisk disk(kMiB + 4 * kMinSegmentBytes, 1);
  FormatOptions options;
  options.segment_bytes = kMinSegmentBytes;
  auto superblock = FormatOpenDevice(&disk, options);
  ASSERT_TRUE(superblock.ok());
  ASSERT_TRUE(BeginEpoch(&disk, &*superblock, 0).ok());
  EXPECT_EQ(superblock->epoch, 1u);
  ASSERT_TRUE(BeginEpoch(&disk, &*superblock, 41).ok());
  EXPECT_EQ(superblock->epoch, 42u);
  for (const uint64_t offset : kSuperblockOffsets) {
    disk.image()[offset + 100] ^= std::byte{1};
    const auto read = ReadSuperblock(&disk, nullptr);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->epoch, 42u);
    disk.image()[offset + 100] ^= std::byte{1};
  }
  for (const uint64_t offset : kSuperblockOffsets) disk.image()[offset + 100] ^= std::byte{1};
  const auto damaged = ReadSuperblock(&disk, nullptr);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(damaged.status()), HasSubstr("--force"));
}

TEST(SuperblockTest, OtherContentsAndSmallerDevicesAreNamed) {
  SimDisk disk(kMiB + 8 * kMinSegmentBytes, 1);
  EXPECT_EQ(ReadSuperblock(&disk, nullptr).status().code(), absl::StatusCode::kNotFound);
  disk.image()[0] = std::byte{7};
  EXPECT_THAT(Text(ReadSuperblock(&disk, nullptr).status()), HasSubstr("kvarve device format"));
  FormatOptions options;
  options.segment_bytes = kMinSegmentBytes;
  options.force = true;
  ASSERT_TRUE(FormatOpenDevice(&disk, options).ok());
  SimDisk smaller(kMiB + 4 * kMinSegmentBytes, 1);
  std::copy_n(disk.image().begin(), kMiB, smaller.image().begin());
  EXPECT_THAT(Text(ReadSuperblock(&smaller, nullptr).status()), HasSubstr("it was cut"));
}

// Whatever sector the power cuts the superblocks at, a start has an epoch that no start had before.
TEST(SuperblockTest, NoEpochIsTakenTwice) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SimDisk disk(kMiB + 4 * kMinSegmentBytes, seed);
    FormatOptions options;
    options.segment_bytes = kMinSegmentBytes;
    ASSERT_TRUE(FormatOpenDevice(&disk, options).ok());
    uint64_t last = 0;
    for (int start = 0; start < 10; ++start) {
      auto superblock = ReadSuperblock(&disk, nullptr);
      ASSERT_TRUE(superblock.ok()) << superblock.status();
      disk.DieAfter(seed % 7 + static_cast<uint64_t>(start) % 3);
      if (BeginEpoch(&disk, &*superblock, 0).ok()) {
        EXPECT_GT(superblock->epoch, last);
        last = superblock->epoch;
      }
      disk.DieNow();
      disk.Reboot(SimDisk::PowerLoss::kYes);
    }
  }
}

}  // namespace
}  // namespace kvarve
