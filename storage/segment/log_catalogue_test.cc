// The log with its catalogue in RocksDB: kept, lost, damaged, and locked by somebody else. Whatever
// becomes of it, every block of the device is found.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/segment/map_owner_testing.h"

namespace kvarve {
namespace {

using testing::MapOwner;
using testing::TestChain;
using testing::TestNs;
namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kBlocks = 60;

class LogCatalogueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "log_catalogue_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* name : {"/one", "/two"}) {
      FormatOptions options;
      options.bytes = kMiB + 8 * kMiB;
      options.segment_bytes = kMiB;
      ASSERT_TRUE(FormatDevice(folder_ + name, options).ok());
    }
    Start(0);
    for (Part& part : parts_) {
      const TestChain chain(TestNs(part.ns), 0, kBlocks, 50000);
      part.log->Append(StreamClass::kFresh, chain.blocks);
      part.log->Seal();
    }
    Stop();
  }
  void TearDown() override {
    Stop();
    fs::remove_all(folder_);
  }

  // Two devices, one catalogue. `from_catalogue`: the segments that it should know.
  void Start(uint64_t from_catalogue) {
    opened_ = OpenCatalogue(folder_ + "/catalogue");
    for (const char* name : {"/one", "/two"}) {
      Part& part = parts_.emplace_back();
      part.ns = static_cast<uint8_t>(parts_.size());
      part.device = *OpenDevice(folder_ + name, {});
      part.owner = std::make_unique<MapOwner>();
      part.log =
          *SegmentLog::Open(part.device.get(), opened_.catalogue.get(), part.owner.get(), {});
      ASSERT_TRUE(part.log->Recover().ok());
      EXPECT_EQ(part.log->Stats().from_catalogue, from_catalogue);
    }
  }
  void Stop() {
    for (Part& part : parts_) part.log.reset();
    parts_.clear();
    opened_.catalogue.reset();
  }
  void ExpectAll(uint64_t from_catalogue) {
    Start(from_catalogue);
    for (Part& part : parts_) {
      EXPECT_EQ(part.owner->size(), static_cast<size_t>(kBlocks));
      for (int n = 0; n < kBlocks; ++n) {
        const auto known = part.owner->Find(TestNs(part.ns), testing::KeyOf(n));
        ASSERT_TRUE(known) << n;
        const AlignedBuffer memory(50000);
        EXPECT_TRUE(ReadBlocks(part.log.get(), part.device.get(),
                               {testing::ReadOf(TestNs(part.ns), *known, memory.data())},
                               IoClass::kDemand)[0]
                        .ok());
        EXPECT_TRUE(testing::IsBlock(part.ns, known->record.key, memory.span().first(50000)));
      }
    }
    Stop();
  }

  struct Part {
    uint8_t ns = 0;
    std::unique_ptr<Device> device;
    std::unique_ptr<MapOwner> owner;
    std::unique_ptr<SegmentLog> log;
  };
  std::string folder_;
  OpenedCatalogue opened_;
  std::vector<Part> parts_;
};

TEST_F(LogCatalogueTest, KeptItNamesEverySegment) { ExpectAll(4); }

TEST_F(LogCatalogueTest, LostItIsMadeAgain) {
  fs::remove_all(folder_ + "/catalogue");
  ExpectAll(0);
  ExpectAll(4);
}

TEST_F(LogCatalogueTest, DamagedItIsMadeAgain) {
  std::ofstream(folder_ + "/catalogue/CURRENT") << "nonsense";
  ExpectAll(0);
  EXPECT_TRUE(opened_.rebuilt);
  ExpectAll(4);
}

TEST_F(LogCatalogueTest, LockedByAnotherItIsDoneWithout) {
  const OpenedCatalogue other = OpenCatalogue(folder_ + "/catalogue");
  ASSERT_FALSE(other.memory);
  ExpectAll(0);
  EXPECT_TRUE(opened_.memory);
}

// Entries of segments that were reclaimed since, and of nobody's.
TEST_F(LogCatalogueTest, StaleEntriesGoAway) {
  DeviceUuid uuid{};
  {
    Start(4);
    uuid = parts_[0].log->superblock().uuid;
    Stop();
    const OpenedCatalogue opened = OpenCatalogue(folder_ + "/catalogue");
    ASSERT_TRUE(opened.catalogue->Put(uuid, 77, "not a table").ok());
    ASSERT_EQ(opened.catalogue->Segments(uuid).size(), 5u);
  }
  ExpectAll(4);
  EXPECT_EQ(OpenCatalogue(folder_ + "/catalogue").catalogue->Segments(uuid).size(), 4u);
}

}  // namespace
}  // namespace kvarve
