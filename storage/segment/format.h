// The on-disk format, version 1 (docs/formats.md 5): superblock, segment header, frame descriptor,
// footer and catalogue value, from and to bytes. Parsers take any bytes and read nothing outside.
//
// Everything but the superblock is checked by a CRC-64 keyed with the device's secret, so that no
// block's payload can pass for one of them.
//
// Values and functions: THREADS: any.  BLOCKS: never.
#ifndef KVARVE_STORAGE_SEGMENT_FORMAT_H_
#define KVARVE_STORAGE_SEGMENT_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve {

inline constexpr uint64_t kUnit = 4096;
inline constexpr uint64_t kSuperblockOffsets[2] = {0, 32 << 10};
inline constexpr uint64_t kFirstSlotOffset = 1 << 20;
inline constexpr uint64_t kMinSegmentBytes = 64ull << 10;
inline constexpr uint64_t kMaxSegmentBytes = 1ull << 30;
inline constexpr uint64_t kMaxSlots = 1 << 20;
inline constexpr size_t kMaxFrameRecords = 1024;
inline constexpr size_t kMaxFrameNamespaces = 256;
inline constexpr size_t kMaxDescriptorPages = 26;
inline constexpr size_t kMaxSegmentRecords = kMaxSegmentBytes / kUnit;
inline constexpr size_t kMaxSegmentNamespaces = 4096;
inline constexpr uint32_t kFormatVersion = 1;
// Incompatible features: records in another representation than raw.
inline constexpr uint64_t kIncompatRepresentations = 1;
inline constexpr uint64_t kKnownIncompat = kIncompatRepresentations;

using DeviceUuid = std::array<uint8_t, 16>;
std::string UuidText(const DeviceUuid& uuid);

struct Superblock {
  uint64_t incompat = 0;  // features that a reader must know
  uint64_t compat = 0;    // features that it may ignore
  DeviceUuid uuid{};
  uint64_t seq = 0;    // of the two copies the higher counts
  uint64_t epoch = 0;  // a start; segment ids and sequence numbers begin with it
  uint64_t segment_bytes = 0;
  uint64_t slots = 0;
  uint64_t created_at = 0;  // seconds since 1970
  std::array<uint8_t, 32> secret{};

  uint64_t device_bytes() const { return kFirstSlotOffset + slots * segment_bytes; }
  uint64_t slot_offset(uint64_t slot) const { return kFirstSlotOffset + slot * segment_bytes; }
};
bool HasSuperblockMagic(std::span<const std::byte> bytes);
void EncodeSuperblock(const Superblock& superblock, std::span<std::byte, kUnit> page);
// DataLoss: no superblock, or damaged. FailedPrecondition: one that this version must not use
// (unknown version, incompat bit, unit, impossible sizes), with what to do.
absl::StatusOr<Superblock> ParseSuperblock(std::span<const std::byte, kUnit> page);

// What the CRCs of one device start from.
uint64_t FormatKey(const Superblock& superblock);

enum class StreamClass : uint8_t { kFresh = 0, kSurvivor = 1 };

struct SegmentHeader {
  DeviceUuid uuid{};
  uint32_t slot = 0;
  uint32_t generation = 0;  // how often the slot was used
  uint64_t segment_id = 0;  // epoch << 32 | count: never used again
  StreamClass stream = StreamClass::kFresh;
  uint64_t boot_id = 0;
  uint64_t opened_at = 0;  // seconds since 1970
  uint64_t key_id = 0;     // of encryption; 0: none
};
// Returns the CRC, which the first frame repeats.
uint64_t EncodeSegmentHeader(const SegmentHeader& header, uint64_t key,
                             std::span<std::byte, kUnit> page);
// None: damaged, or of another device. `crc`, if not null, gets the header's.
std::optional<SegmentHeader> ParseSegmentHeader(std::span<const std::byte, kUnit> page,
                                                uint64_t key, const DeviceUuid& uuid,
                                                uint64_t* crc = nullptr);

// One block, as it lies in descriptors, footers and catalogue values.
struct BlockRecord {
  // Of `flags`: no block. Earlier ones of the namespace went, or, with a key, those of the key.
  static constexpr uint8_t kErase = 1;

  BlockKey key;             // zeros behind a 16-byte key
  uint64_t c64_stored = 0;  // BlockChecksum of the stored bytes
  uint64_t c64_raw = 0;     // of the block itself
  uint64_t parent_hash = 0;
  uint64_t seq = 0;    // grows over all segments: of two records of a block the later counts
  uint32_t off4k = 0;  // pages from the segment's start
  uint32_t stored_len = 0;
  uint32_t raw_len = 0;
  uint32_t recompute_us = 0;
  uint32_t depth_flags = 0;  // depth in the low 24 bits
  uint16_t ns_ref = 0;       // into the namespaces beside the records
  uint8_t key_len = 0;
  uint8_t repr = 0;  // 0: raw; the owner knows the others
  uint8_t hits = 0;
  uint8_t lives = 0;  // how often it was carried on from a segment that ended
  std::array<uint8_t, 6> reserved{};

  uint32_t depth() const { return depth_flags & 0xffffff; }
  uint8_t flags() const { return static_cast<uint8_t>(depth_flags >> 24); }
  bool is_erase() const { return (flags() & kErase) != 0; }
  bool is_erase_of_key() const { return is_erase() && key_len != 0; }
  uint64_t pages() const { return (uint64_t{stored_len} + kUnit - 1) / kUnit; }
};
static_assert(sizeof(BlockRecord) == 96 && std::is_trivially_copyable_v<BlockRecord>);
uint64_t ParentHash(const BlockKey& parent);

// Where records may point: pages [1, end_page) of the segment.
bool ValidRecord(const BlockRecord& record, size_t namespaces, uint64_t end_page);

struct FrameHead {
  uint64_t segment_id = 0;
  uint32_t generation = 0;
  uint32_t frame_no = 0;
  uint64_t prev_crc = 0;  // of the frame before, or of the segment header
  uint32_t descriptor_pages = 0;
  uint32_t payload_pages = 0;
};
struct Frame {
  FrameHead head;
  uint64_t crc = 0;
  std::vector<NamespaceId> namespaces;
  std::vector<BlockRecord> records;
};
size_t DescriptorPages(size_t namespaces, size_t records);
// Fills `pages` (DescriptorPages of them) and returns the CRC. REQUIRES: at most kMaxFrame... each.
uint64_t EncodeFrame(const Frame& frame, uint64_t key, std::span<std::byte> pages);
// How many pages the descriptor that begins with `page` claims; 0: it is none.
size_t ClaimedDescriptorPages(std::span<const std::byte, kUnit> page);
// None unless it is the frame `expected` names (segment id, generation, number, chained CRC), lies
// in pages [first_page, end_page) and its records point into its payload.
std::optional<Frame> ParseFrame(std::span<const std::byte> pages, uint64_t key,
                                const FrameHead& expected, uint64_t first_page, uint64_t end_page);

// What is known of a segment that was sealed.
struct SegmentFacts {
  DeviceUuid uuid{};
  uint64_t segment_id = 0;
  uint32_t generation = 0;
  uint32_t slot = 0;
  uint32_t records = 0;
  uint32_t namespaces = 0;
  uint32_t table_pages = 0;
  uint32_t frames = 0;
  uint64_t live_bytes = 0;  // stored bytes of all records
  uint64_t table_crc = 0;
  StreamClass stream = StreamClass::kFresh;
  uint64_t opened_at = 0;
  uint64_t sealed_at = 0;
  uint64_t first_seq = 0;
  uint64_t last_seq = 0;
};
struct SegmentTable {
  SegmentFacts facts;
  std::vector<NamespaceId> namespaces;
  std::vector<BlockRecord> records;
};
inline constexpr size_t kFactsBytes = 112;

size_t TablePages(size_t namespaces, size_t records);
// Table and trailer: (TablePages + 1) pages, the last of the segment. Fills in facts.records,
// namespaces, table_pages, live_bytes, table_crc, first_seq and last_seq.
void EncodeFooter(SegmentTable* table, uint64_t key, std::span<std::byte> pages);
// The trailer page alone. None: damaged, or of another device.
std::optional<SegmentFacts> ParseTrailer(std::span<const std::byte, kUnit> page, uint64_t key,
                                         const DeviceUuid& uuid, uint64_t segment_bytes);
// The pages before it. None: not the ones that the trailer means.
std::optional<SegmentTable> ParseTable(std::span<const std::byte> pages, const SegmentFacts& facts,
                                       uint64_t key, uint64_t segment_bytes);

// The same table as one value. REQUIRES: the facts as EncodeFooter made them.
std::string EncodeCatalogueValue(const SegmentTable& table, uint64_t key);
std::optional<SegmentTable> ParseCatalogueValue(std::string_view value, uint64_t key,
                                                const DeviceUuid& uuid, uint64_t segment_bytes);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_FORMAT_H_
