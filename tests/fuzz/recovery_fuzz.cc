// Goal: whatever lies on a device (headers, frames that are walked, footers, payloads), a start
// ends, reads nothing outside a segment, gives no block that is not the one of its checksum, and
// goes on writing. Method: patches of a good image that has sealed segments and open ones, most of
// them with the CRCs made right again, since one that is wrong ends every parser at its door; the
// log itself on a simulated disk. Under a sanitizer.
#include <algorithm>
#include <cstring>

#include "storage/block/checksum.h"
#include "storage/segment/device_format.h"
#include "storage/segment/map_owner_testing.h"
#include "storage/testing/sim_disk.h"
#include "tests/fuzz/fuzz.h"

namespace kvarve {
namespace {

using testing::MapOwner;
using testing::SimDisk;
using testing::TestChain;
using testing::TestNs;

constexpr uint64_t kSegmentBytes = kMinSegmentBytes, kSlots = 8;
constexpr uint64_t kDeviceBytes = kFirstSlotOffset + kSlots * kSegmentBytes;
constexpr uint64_t kEndPage = kSegmentBytes / kUnit - 1;
constexpr uint32_t kBlock = 5000;
constexpr size_t kMaxPatches = 64;

// Knows nothing: every table comes from the device.
class NoCatalogue final : public Catalogue {
 public:
  std::optional<std::string> Get(const CatalogueDevice&, uint64_t) override { return {}; }
  absl::Status Put(const CatalogueDevice&, uint64_t, std::string_view) override { return {}; }
  absl::Status Delete(const CatalogueDevice&, uint64_t) override { return {}; }
  std::vector<uint64_t> Segments(const CatalogueDevice&) override { return {}; }
  std::optional<std::string> GetMeta(std::string_view) override { return {}; }
  absl::Status PutMeta(std::string_view, std::string_view) override { return {}; }
  uint64_t errors() const override { return 0; }
};

// Looks at what is told before the map has it.
class Owner final : public LogOwner {
 public:
  void OnRecovered(const SegmentTable& table) override {
    for (const BlockRecord& record : table.records) {
      KV_CHECK(record.ns_ref < table.namespaces.size());
      KV_CHECK(record.is_erase() || record.off4k >= 1);
      KV_CHECK(record.off4k + record.pages() <= kEndPage);
    }
    map.OnRecovered(table);
    for (const BlockRecord& record : table.records) {
      if (!record.is_erase()) seen.emplace_back(table.namespaces[record.ns_ref], record.key);
    }
  }
  void OnWritten(const AppendBlock& block, const BlockLocation& at) override {
    map.OnWritten(block, at);
  }
  void OnReclaimed(const SegmentTable& table) override { map.OnReclaimed(table); }
  MapOwner map;
  std::vector<std::pair<NamespaceId, BlockKey>> seen;
};

struct Image {
  std::vector<std::byte> bytes;
  Superblock superblock;
  uint64_t blocks = 0;
};

const Image& GoodImage() {
  static const Image image = [] {
    Image made;
    SimDisk disk(kDeviceBytes, 1);
    FormatOptions format;
    format.segment_bytes = kSegmentBytes;
    format.random = [](std::span<uint8_t> bytes) { std::ranges::fill(bytes, uint8_t{7}); };
    made.superblock = FormatOpenDevice(&disk, format).value();
    NoCatalogue catalogue;
    Owner owner;
    const auto log = SegmentLog::Open(&disk, &catalogue, &owner, {}).value();
    KV_CHECK(log->Recover().ok());
    const TestChain sealed(TestNs(1), 0, 6, kBlock), open(TestNs(2), 100, 4, kBlock);
    log->Append(StreamClass::kFresh, sealed.blocks);
    log->Seal();
    log->Append(StreamClass::kFresh, open.blocks);
    log->Drain();
    made.blocks = owner.map.size();
    made.bytes.assign(disk.image().begin(), disk.image().end());
    return made;
  }();
  return image;
}

uint64_t SealAt(std::span<std::byte> bytes, uint64_t key) {
  const uint64_t crc = Crc64(key, bytes.data(), bytes.size() - 8);
  std::memcpy(&bytes[bytes.size() - 8], &crc, 8);
  return crc;
}

// Makes the CRCs of a slot right, from its header along its frames, each of which repeats the one
// before.
void Rechain(std::span<std::byte> slot, uint64_t key) {
  uint64_t crc = SealAt(slot.first(kUnit), key);
  for (uint64_t page = 1; page < kEndPage;) {
    const auto rest = slot.subspan(page * kUnit);
    const size_t pages =
        ClaimedDescriptorPages(std::span<const std::byte, kUnit>(rest.data(), kUnit));
    if (pages == 0 || page + pages > kEndPage) return;
    std::memcpy(&rest[40], &crc, 8);
    crc = SealAt(rest.first(pages * kUnit), key);
    uint32_t payload = 0;
    std::memcpy(&payload, &rest[36], sizeof(payload));
    page += pages + std::min<uint64_t>(payload, kEndPage);
  }
}

// A patch: what (1), page (2), offset (2), how many bytes (1), the bytes.
void Patch(std::span<const uint8_t> input, SimDisk* disk, const Superblock& superblock) {
  const uint64_t key = FormatKey(superblock);
  const std::span<std::byte> image = disk->image();
  for (size_t i = 0; i < kMaxPatches && input.size() >= 6; ++i) {
    const uint8_t what = input[0];
    const uint64_t page = (input[1] | uint64_t{input[2]} << 8) % (image.size() / kUnit);
    const size_t offset = (input[3] | size_t{input[4]} << 8) % kUnit;
    const size_t count = std::min({size_t{input[5]}, input.size() - 6, kUnit - offset});
    std::memcpy(&image[page * kUnit + offset], input.data() + 6, count);
    input = input.subspan(6 + count);
    const uint64_t at = page * kUnit;
    switch (what % 4) {
      case 0:
        break;
      case 1:  // a superblock
        SealAt(image.subspan(at, kUnit), 0);
        break;
      case 2:  // a footer's page
        SealAt(image.subspan(at, kUnit), key);
        break;
      default:
        if (at >= kFirstSlotOffset) {
          const uint64_t slot = (at - kFirstSlotOffset) / kSegmentBytes;
          Rechain(image.subspan(kFirstSlotOffset + slot * kSegmentBytes, kSegmentBytes), key);
        }
    }
  }
}

void CheckBlocks(SegmentLog* log, SimDisk* disk, const Owner& owner) {
  for (const auto& [ns, key] : owner.seen) {
    const auto known = owner.map.Find(ns, key);
    if (!known.has_value()) continue;  // erased, or written over
    const AlignedBuffer memory(RoundUp(std::max<uint64_t>(known->record.stored_len, 1), kUnit));
    const absl::Status read =
        ReadBlocks(log, disk, {testing::ReadOf(ns, *known, memory.data())}, IoClass::kDemand)[0];
    if (!read.ok()) continue;
    KV_CHECK(BlockChecksum(ChecksumSeed(ns, key, known->record.stored_len), memory.data(),
                           known->record.stored_len) == known->record.c64_stored);
  }
}

}  // namespace
}  // namespace kvarve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvarve;  // NOLINT: one file, one subject
  const Image& good = GoodImage();
  SimDisk disk(kDeviceBytes, 1);
  std::ranges::copy(good.bytes, disk.image().begin());
  Patch({data, size}, &disk, good.superblock);
  NoCatalogue catalogue;
  Owner owner;
  auto log = SegmentLog::Open(&disk, &catalogue, &owner, {});
  if (!log.ok()) return 0;
  KV_CHECK((*log)->Recover().ok());  // the disk does not fail
  KV_CHECK(size > 0 || owner.map.size() == good.blocks);
  CheckBlocks(log->get(), &disk, owner);
  const TestChain more(TestNs(3), 1000, 1, kBlock);
  (*log)->Append(StreamClass::kFresh, more.blocks);
  (*log)->Drain();
  (*log)->Maintain();
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  const auto patch = [](char what, uint16_t page, uint16_t offset, const std::string& bytes) {
    return std::string{what,
                       static_cast<char>(page),
                       static_cast<char>(page >> 8),
                       static_cast<char>(offset),
                       static_cast<char>(offset >> 8),
                       static_cast<char>(bytes.size())} +
           bytes;
  };
  constexpr uint16_t kFirst = kFirstSlotOffset / kUnit;
  return {"",
          patch(1, 0, 100, "x"),
          patch(3, kFirst, 48, "xxxx"),
          patch(3, kFirst + 1, 56, std::string(8, '\1')) + patch(3, kFirst + 17, 64, "y"),
          patch(2, kFirst + 15, 16, "zz"),
          patch(0, kFirst + 3, 7, "damage")};
}

}  // namespace kvarve::fuzz
