#include "storage/segment/segment_log.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/abseil.h"
#include "storage/io/open_device.h"
#include "storage/io/uring_device.h"
#include "storage/segment/device_format.h"
#include "storage/segment/map_owner_testing.h"
#include "storage/testing/seeded_random.h"
#include "storage/testing/sim_disk.h"

namespace kvarve {
namespace {

using ::testing::Each;
using testing::MapOwner;
using testing::ReadOf;
using testing::SimDisk;
using testing::TestChain;
using testing::TestNs;

constexpr uint64_t kMiB = 1 << 20;

// Whether the block is found, reads well and is right.
bool Good(SegmentLog* log, Device* device, const MapOwner& owner, const NamespaceId& ns,
          uint64_t number) {
  const auto known = owner.Find(ns, testing::KeyOf(number));
  if (!known) return false;
  const AlignedBuffer memory(known->record.stored_len);
  const auto statuses =
      ReadBlocks(log, device, {ReadOf(ns, *known, memory.data())}, IoClass::kDemand);
  return statuses[0].ok() && testing::IsBlock(ns.bytes[0], known->record.key,
                                              memory.span().first(known->record.stored_len));
}

class SegmentLogTest : public ::testing::Test {
 protected:
  void Format(uint64_t segment_bytes, uint64_t slots) {
    disk_ = std::make_unique<SimDisk>(kMiB + slots * segment_bytes, 1);
    FormatOptions options;
    options.segment_bytes = segment_bytes;
    options.overwrite = false;
    ASSERT_TRUE(FormatOpenDevice(disk_.get(), options).ok());
  }
  void Open() {
    log_.reset();
    owner_ = std::make_unique<MapOwner>();
    auto log = SegmentLog::Open(disk_.get(), catalogue_.get(), owner_.get(), options_);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
    ASSERT_TRUE(log_->Recover().ok());
  }
  void Put(uint8_t ns, uint64_t first, size_t count, uint32_t bytes) {
    const TestChain chain(TestNs(ns), first, count, bytes);
    log_->Append(StreamClass::kFresh, chain.blocks);
    log_->Drain();
  }
  bool Good(uint8_t ns, uint64_t number) {
    return kvarve::Good(log_.get(), disk_.get(), *owner_, TestNs(ns), number);
  }

  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<Catalogue> catalogue_ = NewMemoryCatalogue();
  std::unique_ptr<MapOwner> owner_;
  LogOptions options_;
  std::unique_ptr<SegmentLog> log_;
};

TEST_F(SegmentLogTest, ARunIsReadInOneRequest) {
  Format(2 * kMiB, 8);
  Open();
  Put(1, 0, 10, 60000);
  std::vector<BlockRead> reads;
  const AlignedBuffer memory(10 * 61440);
  for (int i = 9; i >= 0; --i)  // in any order
    reads.push_back(
        ReadOf(TestNs(1), *owner_->Find(TestNs(1), testing::KeyOf(i)), memory.data() + i * 61440));
  const uint64_t before = log_->Stats().read_ios;
  EXPECT_THAT(ReadBlocks(log_.get(), disk_.get(), reads, IoClass::kDemand), Each(absl::OkStatus()));
  EXPECT_EQ(log_->Stats().read_ios, before + 1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(testing::IsBlock(1, testing::KeyOf(i), memory.span().subspan(i * 61440, 60000)));
  }
  // Every other one: gaps of a block are read over; four of five: two requests.
  std::vector<BlockRead> some;
  for (const int i : {0, 2, 4, 6, 8}) some.push_back(reads[9 - i]);
  EXPECT_THAT(ReadBlocks(log_.get(), disk_.get(), some, IoClass::kDemand), Each(absl::OkStatus()));
  EXPECT_EQ(log_->Stats().read_ios, before + 2);
  const std::vector<BlockRead> far = {reads[9], reads[4]};
  EXPECT_THAT(ReadBlocks(log_.get(), disk_.get(), far, IoClass::kDemand), Each(absl::OkStatus()));
  EXPECT_EQ(log_->Stats().read_ios, before + 4);
}

TEST_F(SegmentLogTest, GivesUpWhatFitsInNoSegment) {
  Format(64 << 10, 8);
  Open();
  Put(1, 0, 1, 60000);
  Put(1, 1, 1, 5000);
  EXPECT_EQ(owner_->refusals(),
            (std::vector<absl::StatusCode>{absl::StatusCode::kInvalidArgument}));
  EXPECT_TRUE(Good(1, 1));
}

TEST_F(SegmentLogTest, StaysWithinTheDeviceAndWritesLittleMore) {
  Format(4 * kMiB, 8);
  Open();
  for (uint64_t n = 0; n < 5 * 32; n += 4) Put(1, n, 4, kMiB - 100);
  const LogStats stats = log_->Stats();
  EXPECT_EQ(stats.appended_blocks, 160u);
  EXPECT_EQ(stats.not_written_blocks, 0u);
  EXPECT_EQ(stats.reinserted_blocks, 0u);
  EXPECT_LE(static_cast<double>(stats.device_bytes),
            1.05 * static_cast<double>(stats.appended_bytes));
  // What is left is the newest, and all of it is right.
  EXPECT_GE(owner_->size(), 15u);
  for (uint64_t n = 160 - owner_->size(); n < 160; ++n) EXPECT_TRUE(Good(1, n)) << n;
}

TEST_F(SegmentLogTest, HotBlocksOutliveTheRing) {
  Format(256 << 10, 8);
  Open();
  owner_->hot = [](const BlockRecord& record) {
    for (uint64_t n = 0; n < 30; ++n) {
      if (record.key == testing::KeyOf(n)) return true;
    }
    return false;
  };
  for (uint64_t n = 0; n < 1500; n += 5) Put(1, n, 5, 9000);
  EXPECT_GT(log_->Stats().reinserted_blocks, 100u);
  EXPECT_FALSE(Good(1, 31));
  log_->Seal();
  Open();
  for (uint64_t n = 0; n < 30; ++n) {
    EXPECT_TRUE(Good(1, n)) << n;
    EXPECT_GT(owner_->Find(TestNs(1), testing::KeyOf(n))->record.lives, 1);
  }
}

// What would be carried on for ever must not keep new blocks out.
TEST_F(SegmentLogTest, AnOwnerThatKeepsEverythingStillGetsNewBlocksIn) {
  Format(256 << 10, 8);
  Open();
  owner_->hot = [](const BlockRecord&) { return true; };
  for (uint64_t n = 0; n < 600; n += 5) {
    Put(1, n, 5, 9000);
    log_->Maintain();
  }
  EXPECT_EQ(owner_->refusals().size(), 0u);
  EXPECT_TRUE(Good(1, 599));
}

TEST_F(SegmentLogTest, AFailingSegmentIsEvacuated) {
  Format(256 << 10, 8);
  Open();
  Put(1, 0, 20, 9000);
  log_->Seal();
  for (const int n : {2, 5, 9}) {
    const BlockLocation at = owner_->Find(TestNs(1), testing::KeyOf(n))->at;
    disk_->image()[log_->superblock().slot_offset(0) + at.off4k * kUnit + 77] ^= std::byte{1};
  }
  const uint64_t first = owner_->Find(TestNs(1), testing::KeyOf(0))->at.segment_id;
  EXPECT_EQ(log_->Scrub(0), first);
  EXPECT_EQ(log_->Scrub(first), 0u);
  EXPECT_EQ(log_->Stats().scrub_failures, 3u);
  EXPECT_EQ(log_->Stats().corrupt_blocks, 3u);
  log_->Maintain();
  EXPECT_EQ(log_->Stats().slots[static_cast<int>(SlotState::kSuspect)], 1u);
  for (uint64_t n = 0; n < 20; ++n) EXPECT_EQ(Good(1, n), n != 2 && n != 5 && n != 9) << n;
  EXPECT_NE(owner_->Find(TestNs(1), testing::KeyOf(0))->at.segment_id, first);
}

TEST_F(SegmentLogTest, ADeviceThatCannotWriteIsSwitchedOffAndStillRead) {
  Format(256 << 10, 16);
  Open();
  Put(1, 0, 5, 9000);
  disk_->SetPlan({.write_error = 1});
  for (int i = 0; i < 20; ++i) Put(1, 100 + i * 5, 5, 9000);
  EXPECT_TRUE(log_->Stats().write_off);
  EXPECT_EQ(owner_->refusals().size(), 100u);
  EXPECT_EQ(owner_->refusals().back(), absl::StatusCode::kUnavailable);
  for (uint64_t n = 0; n < 5; ++n) EXPECT_TRUE(Good(1, n));
}

TEST_F(SegmentLogTest, AnEraseOutlivesARestartAndItsSegment) {
  Format(256 << 10, 8);
  Open();
  Put(1, 0, 20, 9000);
  Put(2, 0, 5, 9000);
  ASSERT_TRUE(log_->Erase(TestNs(1)).ok());
  Put(1, 100, 3, 9000);
  catalogue_ = NewMemoryCatalogue();
  Open();
  EXPECT_EQ(owner_->size(), 8u);
  EXPECT_FALSE(Good(1, 0));
  EXPECT_TRUE(Good(1, 100));
  EXPECT_TRUE(Good(2, 0));
}

// The header that has the highest id is torn and the catalogue, which has it too, is gone.
TEST_F(SegmentLogTest, ATornNewestHeaderReissuesNoId) {
  Format(256 << 10, 8);
  Open();
  std::set<uint64_t> ids;
  for (int start = 0; start < 5; ++start) {
    Put(1, static_cast<uint64_t>(start) * 100, 5, 9000);
    uint64_t newest = 0;
    for (uint64_t n = 0; n < 5; ++n)
      newest = owner_->Find(TestNs(1), testing::KeyOf(start * 100 + n))->at.segment_id;
    EXPECT_TRUE(ids.insert(newest).second);
    EXPECT_EQ(newest, *ids.rbegin());
    const uint64_t slot = (*log_->OffsetOf({newest, 0}) - kMiB) / (256 << 10);
    log_.reset();
    disk_->image()[kMiB + slot * (256 << 10) + 600] ^= std::byte{1};
    catalogue_ = NewMemoryCatalogue();
    Open();
    EXPECT_FALSE(Good(1, static_cast<uint64_t>(start) * 100));
  }
}

// When the next segment is needed its header has been durable for a while.
TEST_F(SegmentLogTest, TheNextSegmentIsOpenedAhead) {
  Format(256 << 10, 8);
  Open();
  Put(1, 0, 5, 9000);
  EXPECT_EQ(log_->Stats().slots[static_cast<int>(SlotState::kOpen)], 1u);
  Put(1, 5, 10, 9000);
  EXPECT_EQ(log_->Stats().slots[static_cast<int>(SlotState::kOpen)], 2u);
  Put(1, 15, 20, 9000);
  EXPECT_GT(log_->Stats().segments_sealed, 0u);
  // One that nothing was written to is a free slot at the next start.
  log_.reset();
  Open();
  for (uint64_t n = 0; n < 35; ++n) EXPECT_TRUE(Good(1, n)) << n;
  EXPECT_EQ(log_->Stats().slots[static_cast<int>(SlotState::kOpen)], 0u);
}

TEST_F(SegmentLogTest, OpensOnlyTheDeviceThatIsMeant) {
  Format(256 << 10, 8);
  MapOwner owner;
  DeviceUuid other{};
  const auto log = SegmentLog::Open(disk_.get(), catalogue_.get(), &owner, options_, &other);
  EXPECT_EQ(log.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ToStd(log.status().message())), ::testing::HasSubstr("is device"));
}

std::string ReadFile(const std::string& name) {
  std::ifstream file("storage/segment/testdata/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The device of make_golden.py: found by its footer, and frame by frame without one.
TEST_F(SegmentLogTest, ReadsTheGoldenDevice) {
  const std::string superblock = ReadFile("superblock.bin"), segment = ReadFile("segment.bin");
  for (const bool with_footer : {true, false}) {
    disk_ = std::make_unique<SimDisk>(kMiB + 4 * (64 << 10), 1);
    catalogue_ = NewMemoryCatalogue();
    std::byte* image = disk_->image().data();
    std::memcpy(image, superblock.data(), superblock.size());
    const size_t bytes = with_footer ? segment.size() : segment.size() - 2 * kUnit;
    std::memcpy(image + kMiB + (64 << 10), segment.data(), bytes);
    Open();
    const LogStats stats = log_->Stats();
    EXPECT_EQ(stats.from_footer, with_footer ? 1u : 0u);
    EXPECT_EQ(stats.from_frames, with_footer ? 0u : 1u);
    EXPECT_EQ(stats.recovered_records, 4u);
    EXPECT_EQ(log_->superblock().epoch, 4u);
    // The erase took the two blocks before it; the block of the other namespace reads well.
    ASSERT_EQ(owner_->size(), 1u);
    EXPECT_EQ(log_->Scrub(0), uint64_t{3} << 32 | 7);
    EXPECT_EQ(log_->Stats().scrub_failures, 0u);
    EXPECT_EQ(log_->Stats().scrubbed_bytes, 4 * kUnit);
    log_.reset();
  }
}

// ---- On a file, with the device's own threads.

class FileLogTest : public ::testing::TestWithParam<WantedBackend> {
 protected:
  void SetUp() override {
    if (GetParam() == WantedBackend::kUring && !UringWorks().ok()) GTEST_SKIP() << UringWorks();
    std::string pattern = ::testing::TempDir() + "segment_log_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    FormatOptions options;
    options.bytes = kMiB + 12 * kMiB;
    options.segment_bytes = kMiB;
    ASSERT_TRUE(FormatDevice(folder_ + "/device", options).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Device> OpenFile() const {
    DeviceOptions options;
    options.backend = GetParam();
    auto device = OpenDevice(folder_ + "/device", options);
    KV_CHECK(device.ok());
    return *std::move(device);
  }

  std::string folder_;
};

// One writes, laps over the ring and moves hot blocks; two read what is known meanwhile.
TEST_P(FileLogTest, ReadersBesideTheWriterSeeNothingWrong) {
  const std::unique_ptr<Device> device = OpenFile();
  const std::unique_ptr<Catalogue> catalogue = NewMemoryCatalogue();
  MapOwner owner;
  owner.hot = [](const BlockRecord& record) { return record.key.Word(0) % 5 == 0; };
  LogOptions options;
  options.executor = [](std::function<void()> check) { check(); };
  auto log = SegmentLog::Open(device.get(), catalogue.get(), &owner, options);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Recover().ok());
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> last{0}, right{0}, wrong{0};
  std::vector<std::thread> readers;
  for (uint64_t seed : {1, 2}) {
    readers.emplace_back([&, seed] {
      testing::SeededRandom random(seed);
      while (!stop.load()) {
        const uint64_t newest = last.load();
        const uint64_t number = newest - std::min(newest, random.Below(400));
        const auto known = owner.Find(TestNs(1), testing::KeyOf(number));
        if (!known) continue;
        const AlignedBuffer memory(known->record.stored_len);
        const auto status =
            ReadBlocks(log->get(), device.get(), {ReadOf(TestNs(1), *known, memory.data())},
                       IoClass::kDemand)[0];
        if (!status.ok()) {
          wrong += absl::IsNotFound(status) ? 0 : 1;
          continue;
        }
        const bool is =
            testing::IsBlock(1, known->record.key, memory.span().first(known->record.stored_len));
        ++(is ? right : wrong);
      }
    });
  }
  for (uint64_t n = 0; n < 1600; n += 16) {
    const TestChain chain(TestNs(1), n, 16, 30000);
    (*log)->Append(StreamClass::kFresh, chain.blocks);
    (*log)->Drain();
    (*log)->Maintain();
    last.store(n + 15);
  }
  while (right.load() < 100 && wrong.load() == 0) std::this_thread::yield();
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT((*log)->Stats().segments_reclaimed, 8u);
  EXPECT_GT((*log)->Stats().reinserted_blocks, 8u);
  EXPECT_EQ((*log)->Stats().corrupt_blocks, 0u);
}

TEST_P(FileLogTest, EverythingIsThereAfterARestart) {
  const std::unique_ptr<Catalogue> catalogue = NewMemoryCatalogue();
  std::unique_ptr<Catalogue> none = NewMemoryCatalogue();
  for (int start = 0; start < 4; ++start) {
    const std::unique_ptr<Device> device = OpenFile();
    MapOwner owner;
    // With the catalogue and without it in turns.
    auto log =
        SegmentLog::Open(device.get(), start % 2 == 0 ? catalogue.get() : none.get(), &owner, {});
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE((*log)->Recover().ok());
    for (int n = 0; n < start * 30; ++n)
      EXPECT_TRUE(Good(log->get(), device.get(), owner, TestNs(1), n)) << n;
    const TestChain chain(TestNs(1), start * 30, 30, 50000);
    (*log)->Append(StreamClass::kFresh, chain.blocks);
    (*log)->Drain();
    if (start == 1) (*log)->Seal();
    none = NewMemoryCatalogue();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FileLogTest,
                         ::testing::Values(WantedBackend::kUring, WantedBackend::kPosix),
                         [](const auto& info) {
                           return info.param == WantedBackend::kUring ? "Uring" : "Posix";
                         });

}  // namespace
}  // namespace kvarve
