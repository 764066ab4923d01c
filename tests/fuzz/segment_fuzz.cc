// Goal: no bytes make a parser of the device's formats read outside them, and what passes points
// nowhere outside its segment. The first byte says which parser; most inputs get a right CRC, since
// one that is wrong ends every parser at its door. Under a sanitizer.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/segment/format.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace kvarve;  // NOLINT: one file, one subject

constexpr uint64_t kSegmentBytes = 64 << 10;
constexpr uint64_t kEndPage = kSegmentBytes / kUnit - 1;

std::string ReadFile(const std::string& name) {
  std::ifstream file("storage/segment/testdata/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Superblock GoldenSuperblock() {
  const std::string bytes = ReadFile("superblock.bin");
  KV_CHECK(bytes.size() == kUnit);
  return ParseSuperblock(std::span<const std::byte, kUnit>(
                             reinterpret_cast<const std::byte*>(bytes.data()), kUnit))
      .value();
}

void SealBytes(std::string* bytes, uint64_t key) {
  if (bytes->size() < 8) return;
  const uint64_t crc = Crc64(key, bytes->data(), bytes->size() - 8);
  std::memcpy(bytes->data() + bytes->size() - 8, &crc, 8);
}

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
std::span<const std::byte, kUnit> Page(const std::string& text) {
  return std::span<const std::byte, kUnit>(Bytes(text).data(), kUnit);
}

void CheckTable(const SegmentTable& table) {
  KV_CHECK(table.records.size() == table.facts.records);
  for (const BlockRecord& record : table.records) {
    KV_CHECK(record.ns_ref < table.namespaces.size());
    KV_CHECK(record.off4k + record.pages() <= kEndPage);
  }
}

void FuzzFrame(std::string bytes, uint64_t key) {
  bytes.resize(std::max<size_t>(bytes.size() / kUnit, 1) * kUnit);
  const size_t pages = ClaimedDescriptorPages(Page(bytes));
  KV_CHECK(pages <= kMaxDescriptorPages);
  if (pages == 0) return;
  bytes.resize(pages * kUnit);
  SealBytes(&bytes, key);
  FrameHead expected;
  std::memcpy(&expected.segment_id, bytes.data() + 8, 8);
  std::memcpy(&expected.generation, bytes.data() + 16, 4);
  std::memcpy(&expected.frame_no, bytes.data() + 20, 4);
  std::memcpy(&expected.prev_crc, bytes.data() + 40, 8);
  const auto frame = ParseFrame(Bytes(bytes), key, expected, 1, kEndPage);
  if (!frame) return;
  KV_CHECK(1 + pages + frame->head.payload_pages <= kEndPage);
  for (const BlockRecord& record : frame->records) {
    KV_CHECK(record.ns_ref < frame->namespaces.size());
    KV_CHECK(record.is_erase() || record.off4k >= 1 + pages);
    KV_CHECK(record.off4k + record.pages() <= 1 + pages + frame->head.payload_pages);
  }
}

void FuzzFooter(std::string bytes, uint64_t key, const DeviceUuid& uuid) {
  bytes.resize(std::max<size_t>(bytes.size() / kUnit, 2) * kUnit);
  std::string trailer = bytes.substr(bytes.size() - kUnit);
  SealBytes(&trailer, key);
  auto facts = ParseTrailer(Page(trailer), key, uuid, kSegmentBytes);
  if (!facts) return;
  KV_CHECK(facts->table_pages < kEndPage);
  std::string table = bytes.substr(0, bytes.size() - kUnit);
  table.resize(facts->table_pages * kUnit);
  facts->table_crc = Crc64(key, table.data(), facts->namespaces * 16 + facts->records * 96);
  if (const auto parsed = ParseTable(Bytes(table), *facts, key, kSegmentBytes)) CheckTable(*parsed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Superblock superblock = GoldenSuperblock();
  static const uint64_t key = FormatKey(superblock);
  if (size < 1) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool sealed = (data[0] & 0x80) == 0;
  std::string page = bytes;
  page.resize(kUnit);
  switch (data[0] % 5) {
    case 0: {
      if (sealed) SealBytes(&page, 0);
      const auto parsed = ParseSuperblock(Page(page));
      if (!parsed.ok()) break;
      KV_CHECK(parsed->slots > 0 && parsed->device_bytes() > parsed->slots * kMinSegmentBytes);
      std::array<std::byte, kUnit> again;
      EncodeSuperblock(*parsed, again);
      KV_CHECK(ParseSuperblock(again).ok());
      break;
    }
    case 1:
      if (sealed) SealBytes(&page, key);
      ParseSegmentHeader(Page(page), key, superblock.uuid);
      break;
    case 2:
      FuzzFrame(bytes, key);
      break;
    case 3:
      FuzzFooter(bytes, key, superblock.uuid);
      break;
    default:
      if (sealed) SealBytes(&bytes, key);
      if (const auto table = ParseCatalogueValue(bytes, key, superblock.uuid, kSegmentBytes)) {
        CheckTable(*table);
        KV_CHECK(EncodeCatalogueValue(*table, key) == bytes);
      }
  }
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  const std::string segment = ReadFile("segment.bin");
  const auto seed = [](char kind, const std::string& bytes) { return kind + bytes; };
  return {seed(0, ReadFile("superblock.bin")),
          seed(1, segment.substr(0, kUnit)),
          seed(2, segment.substr(kUnit, kUnit)),
          seed(2, segment.substr(5 * kUnit, kUnit)),
          seed(3, segment.substr(segment.size() - 2 * kUnit)),
          seed(4, ReadFile("catalogue_value.bin"))};
}

}  // namespace kvarve::fuzz
