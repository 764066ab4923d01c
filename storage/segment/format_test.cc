#include "storage/segment/format.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/block/checksum.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSegmentBytes = 64 << 10;

std::string ReadFile(const std::string& name) {
  std::ifstream file("storage/segment/testdata/" + name, std::ios::binary);
  KV_CHECK(file.is_open());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
std::span<const std::byte> BytesOf(const std::string& text, size_t at = 0,
                                   size_t size = std::string::npos) {
  return std::as_bytes(std::span(text)).subspan(at, std::min(size, text.size() - at));
}
std::span<const std::byte, kUnit> PageOf(const std::string& text, size_t page = 0) {
  return std::span<const std::byte, kUnit>(BytesOf(text).data() + page * kUnit, kUnit);
}
template <size_t n>
std::array<uint8_t, n> Unhex(const nlohmann::json& hex) {
  const std::string bytes = FromHex(hex.get<std::string>()).value();
  std::array<uint8_t, n> out{};
  std::memcpy(out.data(), bytes.data(), std::min(n, bytes.size()));
  return out;
}

// What make_golden.py put into its files, as C++ would write it.
struct Golden {
  nlohmann::json facts = nlohmann::json::parse(ReadFile("golden.json"));
  Superblock superblock;
  uint64_t key = 0;
  SegmentHeader header;
  std::vector<Frame> frames;
  SegmentTable table;

  Golden() {
    superblock.uuid = Unhex<16>(facts["uuid"]);
    superblock.secret = Unhex<32>(facts["secret"]);
    superblock.seq = facts["seq"];
    superblock.epoch = facts["epoch"];
    superblock.segment_bytes = kSegmentBytes;
    superblock.slots = 4;
    superblock.created_at = 1'800'000'000;
    key = FormatKey(superblock);
    header.uuid = superblock.uuid;
    header.slot = facts["slot"];
    header.generation = facts["generation"];
    header.segment_id = facts["segment_id"];
    header.boot_id = 3;
    header.opened_at = facts["opened_at"];
    table.facts.uuid = header.uuid;
    table.facts.segment_id = header.segment_id;
    table.facts.generation = header.generation;
    table.facts.slot = header.slot;
    table.facts.frames = 2;
    table.facts.opened_at = header.opened_at;
    table.facts.sealed_at = facts["sealed_at"];
    for (const auto& ns : facts["namespaces"]) table.namespaces.push_back({Unhex<16>(ns)});
    for (const auto& blocks : facts["frames"]) AddFrame(blocks);
  }

  void AddFrame(const nlohmann::json& blocks) {
    const std::string image = ReadFile("segment.bin");
    Frame& frame = frames.emplace_back();
    frame.head.segment_id = header.segment_id;
    frame.head.generation = header.generation;
    frame.head.frame_no = static_cast<uint32_t>(frames.size() - 1);
    frame.head.descriptor_pages = 1;
    for (const auto& block : blocks) {
      const NamespaceId ns{Unhex<16>(block["ns"])};
      size_t ref = 0;
      while (ref < frame.namespaces.size() && frame.namespaces[ref] != ns) ++ref;
      if (ref == frame.namespaces.size()) frame.namespaces.push_back(ns);
      BlockRecord record;
      record.key.bytes = Unhex<32>(block["key"]);
      record.key_len = static_cast<uint8_t>(block["key"].get<std::string>().size() / 2);
      record.stored_len = record.raw_len = block["bytes"];
      record.off4k = block["page"];
      record.seq = block["seq"];
      record.recompute_us = block["recompute_us"];
      record.depth_flags = block["depth"].get<uint32_t>() | block["flags"].get<uint32_t>() << 24;
      record.hits = block["hits"];
      record.lives = block["lives"];
      record.ns_ref = static_cast<uint16_t>(ref);
      if (const BlockKey parent{Unhex<32>(block["parent"])};
          !block["parent"].get<std::string>().empty())
        record.parent_hash = ParentHash(parent);
      if (record.stored_len > 0) {
        const auto payload = BytesOf(image, record.off4k * kUnit, record.stored_len);
        record.c64_raw = record.c64_stored = BlockChecksum(
            ChecksumSeed(ns, record.key, payload.size()), payload.data(), payload.size());
      }
      frame.head.payload_pages += static_cast<uint32_t>(record.pages());
      frame.records.push_back(record);
      record.ns_ref = static_cast<uint16_t>(ns == table.namespaces[0] ? 0 : 1);
      table.records.push_back(record);
    }
  }
};

TEST(FormatTest, SuperblockIsTheGoldenOne) {
  const Golden golden;
  const std::string bytes = ReadFile("superblock.bin");
  std::array<std::byte, kUnit> page;
  EncodeSuperblock(golden.superblock, page);
  EXPECT_EQ(std::memcmp(page.data(), bytes.data(), kUnit), 0);
  const auto parsed = ParseSuperblock(PageOf(bytes));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->uuid, golden.superblock.uuid);
  EXPECT_EQ(parsed->epoch, 3u);
  EXPECT_EQ(parsed->seq, 9u);
  EXPECT_EQ(parsed->slots, 4u);
  EXPECT_EQ(parsed->segment_bytes, kSegmentBytes);
  EXPECT_EQ(parsed->secret, golden.superblock.secret);
}

TEST(FormatTest, SegmentIsTheGoldenOne) {
  Golden golden;
  const std::string image = ReadFile("segment.bin");
  ASSERT_EQ(image.size(), kSegmentBytes);
  std::vector<std::byte> page(kUnit);
  uint64_t crc = EncodeSegmentHeader(golden.header, golden.key,
                                     std::span<std::byte, kUnit>(page.data(), kUnit));
  EXPECT_EQ(std::memcmp(page.data(), image.data(), kUnit), 0);
  uint64_t parsed_crc = 0;
  const auto header =
      ParseSegmentHeader(PageOf(image), golden.key, golden.superblock.uuid, &parsed_crc);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->segment_id, golden.header.segment_id);
  EXPECT_EQ(parsed_crc, crc);

  uint64_t at = 1;
  for (Frame& frame : golden.frames) {
    frame.head.prev_crc = crc;
    crc = EncodeFrame(frame, golden.key, page);
    EXPECT_EQ(std::memcmp(page.data(), image.data() + at * kUnit, kUnit), 0) << at;
    ASSERT_EQ(ClaimedDescriptorPages(PageOf(image, at)), 1u);
    const auto parsed =
        ParseFrame(BytesOf(image, at * kUnit, kUnit), golden.key, frame.head, at, 15);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->crc, crc);
    EXPECT_EQ(parsed->records.size(), frame.records.size());
    EXPECT_EQ(std::memcmp(parsed->records.data(), frame.records.data(),
                          frame.records.size() * sizeof(BlockRecord)),
              0);
    at += 1 + frame.head.payload_pages;
  }

  std::vector<std::byte> footer(2 * kUnit);
  EncodeFooter(&golden.table, golden.key, footer);
  EXPECT_EQ(std::memcmp(footer.data(), image.data() + image.size() - footer.size(), footer.size()),
            0);
  EXPECT_EQ(golden.table.facts.live_bytes, 5000u + 4096 + 1);
  const auto facts =
      ParseTrailer(PageOf(image, 15), golden.key, golden.superblock.uuid, kSegmentBytes);
  ASSERT_TRUE(facts);
  const auto table =
      ParseTable(BytesOf(image, 14 * kUnit, kUnit), *facts, golden.key, kSegmentBytes);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->records.size(), 4u);
  EXPECT_TRUE(table->records[2].is_erase());
  EXPECT_EQ(table->records[3].depth(), 70000u);
}

TEST(FormatTest, CatalogueValueIsTheGoldenOne) {
  Golden golden;
  std::vector<std::byte> footer(2 * kUnit);
  EncodeFooter(&golden.table, golden.key, footer);
  const std::string value = ReadFile("catalogue_value.bin");
  EXPECT_EQ(EncodeCatalogueValue(golden.table, golden.key), value);
  const auto parsed = ParseCatalogueValue(value, golden.key, golden.superblock.uuid, kSegmentBytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->facts.sealed_at, 1'800'000'200u);
  EXPECT_EQ(parsed->namespaces, golden.table.namespaces);
}

// Another device's, another key's, or with any one bit changed: nothing is believed.
TEST(FormatTest, EveryBitOfEveryPageCounts) {
  const Golden golden;
  const std::string image = ReadFile("segment.bin");
  const auto believed = [&](const std::string& bytes, size_t page, uint64_t key,
                            const DeviceUuid& uuid) {
    if (page == 0) return ParseSegmentHeader(PageOf(bytes), key, uuid).has_value();
    if (page == 15) return ParseTrailer(PageOf(bytes, 15), key, uuid, kSegmentBytes).has_value();
    FrameHead head = golden.frames[0].head;
    ParseSegmentHeader(PageOf(image), golden.key, golden.superblock.uuid, &head.prev_crc);
    return ParseFrame(BytesOf(bytes, kUnit, kUnit), key, head, 1, 15).has_value();
  };
  DeviceUuid other = golden.superblock.uuid;
  other[3] ^= 1;
  for (const size_t page : {0, 1, 15}) {
    ASSERT_TRUE(believed(image, page, golden.key, golden.superblock.uuid));
    EXPECT_FALSE(believed(image, page, golden.key + 1, golden.superblock.uuid));
    EXPECT_TRUE(page == 1 || !believed(image, page, golden.key, other));
    for (size_t bit = 0; bit < kUnit * 8; bit += 7) {
      std::string damaged = image;
      damaged[page * kUnit + bit / 8] ^= static_cast<char>(1 << bit % 8);
      ASSERT_FALSE(believed(damaged, page, golden.key, golden.superblock.uuid)) << page << bit;
    }
  }
  const std::string value = ReadFile("catalogue_value.bin");
  for (size_t bit = 0; bit < value.size() * 8; bit += 3) {
    std::string damaged = value;
    damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ASSERT_FALSE(ParseCatalogueValue(damaged, golden.key, golden.superblock.uuid, kSegmentBytes));
  }
  for (size_t size = 0; size < value.size(); size += 13) {
    ASSERT_FALSE(ParseCatalogueValue(value.substr(0, size), golden.key, golden.superblock.uuid,
                                     kSegmentBytes));
  }
}

// A frame elsewhere, of another segment, generation or number, or behind another frame.
TEST(FormatTest, AFrameCountsOnlyInItsPlace) {
  const Golden golden;
  const std::string image = ReadFile("segment.bin");
  FrameHead head = golden.frames[0].head;
  ParseSegmentHeader(PageOf(image), golden.key, golden.superblock.uuid, &head.prev_crc);
  const auto parses = [&](const FrameHead& expected, uint64_t first, uint64_t end) {
    return ParseFrame(BytesOf(image, kUnit, kUnit), golden.key, expected, first, end).has_value();
  };
  EXPECT_TRUE(parses(head, 1, 5));
  EXPECT_FALSE(parses(head, 1, 4));  // it would reach over the end
  EXPECT_FALSE(parses(head, 3, 15));
  for (int field = 0; field < 4; ++field) {
    FrameHead other = head;
    (field == 0 ? other.segment_id : other.prev_crc) += field == 0 || field == 1 ? 1 : 0;
    (field == 2 ? other.generation : other.frame_no) += field == 2 || field == 3 ? 1 : 0;
    EXPECT_FALSE(parses(other, 1, 15)) << field;
  }
}

TEST(FormatTest, ASuperblockOfTheFutureIsRefusedWithAdvice) {
  const auto refusal = [](size_t at, uint32_t value) {
    std::string bytes = ReadFile("superblock.bin");
    std::memcpy(bytes.data() + at, &value, 4);
    const uint64_t crc = Crc64(0, bytes.data(), kUnit - 8);
    std::memcpy(bytes.data() + kUnit - 8, &crc, 8);
    const auto parsed = ParseSuperblock(PageOf(bytes));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(ToStd(parsed.status().message())), HasSubstr("--force"));
    return std::string(ToStd(parsed.status().message()));
  };
  EXPECT_THAT(refusal(8, 2), HasSubstr("version 2"));
  EXPECT_THAT(refusal(12, 16384), HasSubstr("unit is 16384"));
  EXPECT_THAT(refusal(16, 4), HasSubstr("features 0x4"));
  EXPECT_THAT(refusal(64, 12345), HasSubstr("12345"));
  EXPECT_THAT(refusal(72, 0), HasSubstr("0 segments"));
}

// Random frames and tables come back as they were.
TEST(FormatTest, RandomTablesRoundTrip) {
  testing::SeededRandom random(5);
  const Golden golden;
  for (int round = 0; round < 200; ++round) {
    SegmentTable table;
    table.facts = golden.table.facts;
    const size_t namespaces = 1 + random.Below(40);
    for (size_t i = 0; i < namespaces; ++i) {
      table.namespaces.emplace_back();
      table.namespaces.back().bytes[random.Below(16)] = static_cast<uint8_t>(i + 1);
    }
    for (uint64_t i = random.Below(900); i > 0; --i) {
      BlockRecord record;
      record.key.bytes[random.Below(32)] = static_cast<uint8_t>(random.Next());
      record.key_len = random.OneIn(2) ? 16 : 32;
      record.seq = random.Next();
      record.off4k = static_cast<uint32_t>(2 + random.Below(100));
      record.stored_len = record.raw_len = static_cast<uint32_t>(1 + random.Below(4 << 20));
      record.ns_ref = static_cast<uint16_t>(random.Below(namespaces));
      table.records.push_back(record);
    }
    constexpr uint64_t kLarge = 64 << 20;
    std::vector<std::byte> footer((TablePages(namespaces, table.records.size()) + 1) * kUnit);
    EncodeFooter(&table, golden.key, footer);
    const std::span<const std::byte> bytes = footer;
    const auto facts =
        ParseTrailer(std::span<const std::byte, kUnit>(bytes.last(kUnit).data(), kUnit), golden.key,
                     golden.superblock.uuid, kLarge);
    ASSERT_TRUE(facts);
    const auto again = ParseTable(bytes.first(bytes.size() - kUnit), *facts, golden.key, kLarge);
    ASSERT_TRUE(again);
    ASSERT_EQ(again->records.size(), table.records.size());
    EXPECT_EQ(std::memcmp(again->records.data(), table.records.data(),
                          table.records.size() * sizeof(BlockRecord)),
              0);
    EXPECT_EQ(EncodeCatalogueValue(*again, golden.key), EncodeCatalogueValue(table, golden.key));
  }
}

}  // namespace
}  // namespace kvarve
