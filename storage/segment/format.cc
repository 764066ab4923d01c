#include "storage/segment/format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/block/checksum.h"

namespace kvarve {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

constexpr std::string_view kSuperblockMagic = "KVSEGS01";
constexpr std::string_view kHeaderMagic = "KVSEGH01";
constexpr std::string_view kFrameMagic = "KVFRAME1";
constexpr std::string_view kTrailerMagic = "KVFOOT01";
constexpr size_t kCrcBytes = 8;
constexpr size_t kFrameHeadBytes = 64;
constexpr size_t kNamespaceBytes = sizeof(NamespaceId);
constexpr size_t kRecordBytes = sizeof(BlockRecord);

using Page = std::span<std::byte, kUnit>;
using ConstPage = std::span<const std::byte, kUnit>;

template <typename T>
void Put(std::span<std::byte> bytes, size_t at, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}
void PutText(std::span<std::byte> bytes, size_t at, std::string_view text) {
  std::memcpy(bytes.data() + at, text.data(), text.size());
}
template <typename T>
T Get(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
bool HasMagic(std::span<const std::byte> bytes, std::string_view magic) {
  return std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

// The last 8 bytes are the CRC of those before.
uint64_t Seal(std::span<std::byte> bytes, uint64_t key) {
  const uint64_t crc = Crc64(key, bytes.data(), bytes.size() - kCrcBytes);
  Put(bytes, bytes.size() - kCrcBytes, crc);
  return crc;
}
bool IsSealed(std::span<const std::byte> bytes, uint64_t key) {
  return Get<uint64_t>(bytes, bytes.size() - kCrcBytes) ==
         Crc64(key, bytes.data(), bytes.size() - kCrcBytes);
}

template <typename T>
std::byte* PutAll(std::byte* at, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(at, values.data(), values.size() * sizeof(T));
  return at + values.size() * sizeof(T);
}
template <typename T>
const std::byte* GetAll(const std::byte* at, size_t count, std::vector<T>* values) {
  values->resize(count);
  if (count > 0) std::memcpy(values->data(), at, count * sizeof(T));
  return at + count * sizeof(T);
}

uint64_t TableBytes(size_t namespaces, size_t records) {
  return namespaces * kNamespaceBytes + records * kRecordBytes;
}

void EncodeFacts(const SegmentFacts& facts, std::span<std::byte> bytes) {
  PutText(bytes, 0, kTrailerMagic);
  Put(bytes, 8, facts.segment_id);
  Put(bytes, 16, facts.generation);
  Put(bytes, 20, facts.slot);
  Put(bytes, 24, facts.uuid);
  Put(bytes, 40, facts.records);
  Put(bytes, 44, facts.namespaces);
  Put(bytes, 48, facts.table_pages);
  Put(bytes, 52, facts.frames);
  Put(bytes, 56, facts.live_bytes);
  Put(bytes, 64, facts.table_crc);
  Put(bytes, 72, static_cast<uint64_t>(facts.stream));
  Put(bytes, 80, facts.opened_at);
  Put(bytes, 88, facts.sealed_at);
  Put(bytes, 96, facts.first_seq);
  Put(bytes, 104, facts.last_seq);
}

// None: not a segment's, or counts that its size cannot hold.
std::optional<SegmentFacts> ParseFacts(std::span<const std::byte> bytes, const DeviceUuid& uuid,
                                       uint64_t segment_bytes) {
  if (!HasMagic(bytes, kTrailerMagic)) return std::nullopt;
  SegmentFacts facts;
  facts.segment_id = Get<uint64_t>(bytes, 8);
  facts.generation = Get<uint32_t>(bytes, 16);
  facts.slot = Get<uint32_t>(bytes, 20);
  facts.uuid = Get<DeviceUuid>(bytes, 24);
  facts.records = Get<uint32_t>(bytes, 40);
  facts.namespaces = Get<uint32_t>(bytes, 44);
  facts.table_pages = Get<uint32_t>(bytes, 48);
  facts.frames = Get<uint32_t>(bytes, 52);
  facts.live_bytes = Get<uint64_t>(bytes, 56);
  facts.table_crc = Get<uint64_t>(bytes, 64);
  const auto stream = Get<uint64_t>(bytes, 72);
  facts.opened_at = Get<uint64_t>(bytes, 80);
  facts.sealed_at = Get<uint64_t>(bytes, 88);
  facts.first_seq = Get<uint64_t>(bytes, 96);
  facts.last_seq = Get<uint64_t>(bytes, 104);
  if (facts.uuid != uuid || stream > static_cast<uint64_t>(StreamClass::kSurvivor) ||
      facts.records > kMaxSegmentRecords || facts.namespaces > kMaxSegmentNamespaces ||
      facts.table_pages != TablePages(facts.namespaces, facts.records) ||
      facts.table_pages + 2 > segment_bytes / kUnit)
    return std::nullopt;
  facts.stream = static_cast<StreamClass>(stream);
  return facts;
}

// From namespaces and records that lie one after the other.
std::optional<SegmentTable> TableFrom(const std::byte* at, const SegmentFacts& facts,
                                      uint64_t segment_bytes) {
  SegmentTable table;
  table.facts = facts;
  at = GetAll(at, facts.namespaces, &table.namespaces);
  GetAll(at, facts.records, &table.records);
  const uint64_t end_page = segment_bytes / kUnit - 1 - facts.table_pages;
  for (const BlockRecord& record : table.records) {
    if (!ValidRecord(record, facts.namespaces, end_page)) return std::nullopt;
  }
  return table;
}

absl::Status Unusable(const std::string& what) {
  return absl::FailedPreconditionError(
      what +
      "; use the kvarved that wrote it, or give its contents up with 'kvarve device format "
      "--force'");
}

}  // namespace

std::string UuidText(const DeviceUuid& uuid) { return ToHex(uuid); }

bool HasSuperblockMagic(std::span<const std::byte> bytes) {
  return bytes.size() >= kUnit && HasMagic(bytes, kSuperblockMagic);
}

void EncodeSuperblock(const Superblock& superblock, Page page) {
  std::fill(page.begin(), page.end(), std::byte{0});
  PutText(page, 0, kSuperblockMagic);
  Put(page, 8, kFormatVersion);
  Put(page, 12, static_cast<uint32_t>(kUnit));
  Put(page, 16, superblock.incompat);
  Put(page, 24, superblock.compat);
  Put(page, 32, superblock.uuid);
  Put(page, 48, superblock.seq);
  Put(page, 56, superblock.epoch);
  Put(page, 64, superblock.segment_bytes);
  Put(page, 72, superblock.slots);
  Put(page, 80, superblock.created_at);
  Put(page, 88, superblock.secret);
  Seal(page, 0);
}

absl::StatusOr<Superblock> ParseSuperblock(ConstPage page) {
  if (!HasSuperblockMagic(page)) return absl::DataLossError("no kvarve superblock");
  if (!IsSealed(page, 0)) return absl::DataLossError("a damaged superblock");
  const auto version = Get<uint32_t>(page, 8);
  const auto unit = Get<uint32_t>(page, 12);
  Superblock superblock;
  superblock.incompat = Get<uint64_t>(page, 16);
  superblock.compat = Get<uint64_t>(page, 24);
  superblock.uuid = Get<DeviceUuid>(page, 32);
  superblock.seq = Get<uint64_t>(page, 48);
  superblock.epoch = Get<uint64_t>(page, 56);
  superblock.segment_bytes = Get<uint64_t>(page, 64);
  superblock.slots = Get<uint64_t>(page, 72);
  superblock.created_at = Get<uint64_t>(page, 80);
  superblock.secret = Get<std::array<uint8_t, 32>>(page, 88);
  if (version != kFormatVersion)
    return Unusable(absl::StrFormat("format version %d is not known here", version));
  if ((superblock.incompat & ~kKnownIncompat) != 0) {
    return Unusable(absl::StrFormat("incompatible features %#x are not known here",
                                    superblock.incompat & ~kKnownIncompat));
  }
  if (unit != kUnit) return Unusable(absl::StrFormat("its unit is %d bytes, not %d", unit, kUnit));
  if (superblock.segment_bytes % kUnit != 0 || superblock.segment_bytes < kMinSegmentBytes ||
      superblock.segment_bytes > kMaxSegmentBytes || superblock.slots == 0 ||
      superblock.slots > kMaxSlots) {
    return Unusable(absl::StrFormat("impossible sizes: %d segments of %d bytes", superblock.slots,
                                    superblock.segment_bytes));
  }
  return superblock;
}

uint64_t FormatKey(const Superblock& superblock) {
  const uint64_t secret = Crc64(0, superblock.secret.data(), superblock.secret.size());
  return Crc64(secret, superblock.uuid.data(), superblock.uuid.size());
}

uint64_t EncodeSegmentHeader(const SegmentHeader& header, uint64_t key, Page page) {
  std::fill(page.begin(), page.end(), std::byte{0});
  PutText(page, 0, kHeaderMagic);
  Put(page, 8, kFormatVersion);
  Put(page, 12, header.slot);
  Put(page, 16, header.uuid);
  Put(page, 32, header.segment_id);
  Put(page, 40, header.generation);
  Put(page, 44, static_cast<uint32_t>(header.stream));
  Put(page, 48, header.boot_id);
  Put(page, 56, header.opened_at);
  Put(page, 64, header.key_id);
  return Seal(page, key);
}

std::optional<SegmentHeader> ParseSegmentHeader(ConstPage page, uint64_t key,
                                                const DeviceUuid& uuid, uint64_t* crc) {
  if (!HasMagic(page, kHeaderMagic) || !IsSealed(page, key)) return std::nullopt;
  SegmentHeader header;
  header.slot = Get<uint32_t>(page, 12);
  header.uuid = Get<DeviceUuid>(page, 16);
  header.segment_id = Get<uint64_t>(page, 32);
  header.generation = Get<uint32_t>(page, 40);
  const auto stream = Get<uint32_t>(page, 44);
  header.boot_id = Get<uint64_t>(page, 48);
  header.opened_at = Get<uint64_t>(page, 56);
  header.key_id = Get<uint64_t>(page, 64);
  if (Get<uint32_t>(page, 8) != kFormatVersion || header.uuid != uuid ||
      stream > static_cast<uint32_t>(StreamClass::kSurvivor))
    return std::nullopt;
  header.stream = static_cast<StreamClass>(stream);
  if (crc != nullptr) *crc = Get<uint64_t>(page, kUnit - kCrcBytes);
  return header;
}

uint64_t ParentHash(const BlockKey& parent) {
  return Crc64(0, parent.bytes.data(), parent.bytes.size());
}

bool ValidRecord(const BlockRecord& record, size_t namespaces, uint64_t end_page) {
  if (record.ns_ref >= namespaces) return false;
  if (record.is_erase()) {
    return record.stored_len == 0 && record.off4k == 0 &&
           (record.key_len == 0 || record.key_len == 16 || record.key_len == 32);
  }
  return (record.key_len == 16 || record.key_len == 32) && record.stored_len > 0 &&
         record.stored_len <= kMaxBlockBytes && record.raw_len > 0 &&
         record.raw_len <= kMaxBlockBytes && record.off4k > 1 && record.off4k < end_page &&
         record.pages() <= end_page - record.off4k;
}

size_t DescriptorPages(size_t namespaces, size_t records) {
  return (kFrameHeadBytes + TableBytes(namespaces, records) + kCrcBytes + kUnit - 1) / kUnit;
}

uint64_t EncodeFrame(const Frame& frame, uint64_t key, std::span<std::byte> pages) {
  KV_CHECK(frame.records.size() <= kMaxFrameRecords &&
           frame.namespaces.size() <= kMaxFrameNamespaces);
  KV_CHECK(pages.size() == DescriptorPages(frame.namespaces.size(), frame.records.size()) * kUnit);
  std::fill(pages.begin(), pages.end(), std::byte{0});
  PutText(pages, 0, kFrameMagic);
  Put(pages, 8, frame.head.segment_id);
  Put(pages, 16, frame.head.generation);
  Put(pages, 20, frame.head.frame_no);
  Put(pages, 24, static_cast<uint32_t>(frame.records.size()));
  Put(pages, 28, static_cast<uint32_t>(frame.namespaces.size()));
  Put(pages, 32, static_cast<uint32_t>(pages.size() / kUnit));
  Put(pages, 36, frame.head.payload_pages);
  Put(pages, 40, frame.head.prev_crc);
  PutAll(PutAll(pages.data() + kFrameHeadBytes, frame.namespaces), frame.records);
  return Seal(pages, key);
}

size_t ClaimedDescriptorPages(ConstPage page) {
  if (!HasMagic(page, kFrameMagic)) return 0;
  const auto records = Get<uint32_t>(page, 24);
  const auto namespaces = Get<uint32_t>(page, 28);
  const auto pages = Get<uint32_t>(page, 32);
  if (records == 0 || records > kMaxFrameRecords || namespaces > kMaxFrameNamespaces) return 0;
  return pages == DescriptorPages(namespaces, records) ? pages : 0;
}

std::optional<Frame> ParseFrame(std::span<const std::byte> pages, uint64_t key,
                                const FrameHead& expected, uint64_t first_page, uint64_t end_page) {
  if (pages.size() < kUnit) return std::nullopt;
  const size_t claimed = ClaimedDescriptorPages(ConstPage(pages.data(), kUnit));
  if (claimed == 0 || claimed * kUnit != pages.size() || !IsSealed(pages, key)) return std::nullopt;
  Frame frame;
  frame.crc = Get<uint64_t>(pages, pages.size() - kCrcBytes);
  frame.head.segment_id = Get<uint64_t>(pages, 8);
  frame.head.generation = Get<uint32_t>(pages, 16);
  frame.head.frame_no = Get<uint32_t>(pages, 20);
  frame.head.descriptor_pages = static_cast<uint32_t>(claimed);
  frame.head.payload_pages = Get<uint32_t>(pages, 36);
  frame.head.prev_crc = Get<uint64_t>(pages, 40);
  const uint64_t frame_end = first_page + claimed + frame.head.payload_pages;
  if (frame.head.segment_id != expected.segment_id ||
      frame.head.generation != expected.generation || frame.head.frame_no != expected.frame_no ||
      frame.head.prev_crc != expected.prev_crc || frame_end > end_page)
    return std::nullopt;
  const auto records = Get<uint32_t>(pages, 24);
  const auto namespaces = Get<uint32_t>(pages, 28);
  const std::byte* at = GetAll(pages.data() + kFrameHeadBytes, namespaces, &frame.namespaces);
  GetAll(at, records, &frame.records);
  for (const BlockRecord& record : frame.records) {
    if (!ValidRecord(record, namespaces, frame_end) ||
        (!record.is_erase() && record.off4k < first_page + claimed))
      return std::nullopt;
  }
  return frame;
}

size_t TablePages(size_t namespaces, size_t records) {
  return (TableBytes(namespaces, records) + kUnit - 1) / kUnit;
}

void EncodeFooter(SegmentTable* table, uint64_t key, std::span<std::byte> pages) {
  SegmentFacts& facts = table->facts;
  facts.records = static_cast<uint32_t>(table->records.size());
  facts.namespaces = static_cast<uint32_t>(table->namespaces.size());
  facts.table_pages = static_cast<uint32_t>(TablePages(facts.namespaces, facts.records));
  facts.live_bytes = 0;
  facts.first_seq = table->records.empty() ? 0 : table->records.front().seq;
  facts.last_seq = 0;
  for (const BlockRecord& record : table->records) {
    facts.live_bytes += record.stored_len;
    facts.first_seq = std::min(facts.first_seq, record.seq);
    facts.last_seq = std::max(facts.last_seq, record.seq);
  }
  KV_CHECK(pages.size() == (facts.table_pages + size_t{1}) * kUnit);
  std::fill(pages.begin(), pages.end(), std::byte{0});
  PutAll(PutAll(pages.data(), table->namespaces), table->records);
  facts.table_crc = Crc64(key, pages.data(), TableBytes(facts.namespaces, facts.records));
  const std::span<std::byte> trailer = pages.last(kUnit);
  EncodeFacts(facts, trailer);
  Seal(trailer, key);
}

std::optional<SegmentFacts> ParseTrailer(ConstPage page, uint64_t key, const DeviceUuid& uuid,
                                         uint64_t segment_bytes) {
  if (!HasMagic(page, kTrailerMagic) || !IsSealed(page, key)) return std::nullopt;
  return ParseFacts(page, uuid, segment_bytes);
}

std::optional<SegmentTable> ParseTable(std::span<const std::byte> pages, const SegmentFacts& facts,
                                       uint64_t key, uint64_t segment_bytes) {
  const uint64_t bytes = TableBytes(facts.namespaces, facts.records);
  if (pages.size() != facts.table_pages * kUnit || bytes > pages.size() ||
      Crc64(key, pages.data(), bytes) != facts.table_crc)
    return std::nullopt;
  return TableFrom(pages.data(), facts, segment_bytes);
}

std::string EncodeCatalogueValue(const SegmentTable& table, uint64_t key) {
  std::string value(
      kFactsBytes + TableBytes(table.namespaces.size(), table.records.size()) + kCrcBytes, '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(value));
  EncodeFacts(table.facts, bytes);
  PutAll(PutAll(bytes.data() + kFactsBytes, table.namespaces), table.records);
  Seal(bytes, key);
  return value;
}

std::optional<SegmentTable> ParseCatalogueValue(std::string_view value, uint64_t key,
                                                const DeviceUuid& uuid, uint64_t segment_bytes) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  if (bytes.size() < kFactsBytes + kCrcBytes || !IsSealed(bytes, key)) return std::nullopt;
  const std::optional<SegmentFacts> facts = ParseFacts(bytes, uuid, segment_bytes);
  if (!facts ||
      bytes.size() != kFactsBytes + TableBytes(facts->namespaces, facts->records) + kCrcBytes)
    return std::nullopt;
  return TableFrom(bytes.data() + kFactsBytes, *facts, segment_bytes);
}

}  // namespace kvarve
