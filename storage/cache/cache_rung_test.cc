// Goal: with a rung blocks take less on devices and are the same, bit by bit, whatever form each
// lies in and whatever the life that wrote it; what cannot be decoded is a miss.
#include <gmock/gmock.h>

#include <fstream>
#include <numeric>

#include "storage/block/checksum.h"
#include "storage/cache/devices_testing.h"

namespace kvarve {
namespace {

using testing::KeyChain;
using testing::kMiBytes;
using testing::kTestBlock;
using testing::MakeMixedBlock;
using testing::NodeOptions;
using testing::TestNode;

size_t Compressible(std::span<const BlockKey> keys) {
  return static_cast<size_t>(
      std::ranges::count_if(keys, [](const BlockKey& key) { return key.bytes[0] % 2 != 0; }));
}

TEST(CacheRungTest, BlocksTakeLessAndComeBack) {
  TestNode node({.rung = Representation::kPlanes});
  const std::vector<BlockKey> chain = KeyChain(1, 60);
  const size_t compressible = Compressible(chain);
  ASSERT_EQ(node.PutAll(node.Open(), chain), 60u);
  ASSERT_TRUE(node.WaitDevices());
  DeviceTierStats stats = node.Stats();
  EXPECT_EQ(stats.encoded_blocks, compressible);
  EXPECT_EQ(stats.kept_raw_blocks, 60 - compressible);
  EXPECT_GT(stats.encoded_saved_bytes, compressible * kTestBlock / 4);
  // Accounted by what they take.
  EXPECT_EQ(stats.bytes, 60 * kTestBlock - stats.encoded_saved_bytes);
  const uint64_t bytes = stats.bytes;
  for (const bool loses_catalogue : {false, true}) {
    node.Crash(loses_catalogue);
    ASSERT_TRUE(node.WaitDevices());
    const NamespaceInfo ns = node.Open();
    EXPECT_EQ(node.Stats().bytes, bytes);
    EXPECT_EQ(node.cache().Lookup(ns.handle, chain), 60u);
    EXPECT_EQ(node.Read(ns, chain), 60u);
    stats = node.Stats();
    EXPECT_EQ(stats.decoded_blocks, compressible);
    EXPECT_EQ(stats.loaded_bytes, 60 * kTestBlock);
    EXPECT_EQ(stats.undecodable_blocks, 0u);
  }
}

// Raw, planes and raw again write into the same device; each life reads all.
TEST(CacheRungTest, EachLifeReadsWhatTheOthersWrote) {
  TestNode node({});
  std::vector<std::vector<BlockKey>> chains;
  for (const Representation rung :
       {Representation::kRaw, Representation::kPlanes, Representation::kRaw}) {
    node.SetRung(rung);
    node.Crash(/*loses_catalogue=*/chains.size() == 1);
    ASSERT_TRUE(node.WaitDevices());
    const NamespaceInfo ns = node.Open();
    chains.push_back(KeyChain(chains.size(), 24));
    ASSERT_EQ(node.PutAll(ns, chains.back()), 24u);
    ASSERT_TRUE(node.WaitDevices());
    EXPECT_EQ(node.Stats().encoded_blocks,
              rung == Representation::kRaw ? 0 : Compressible(chains.back()));
    node.cache().Evict(64 * kMiBytes, "");
    for (const auto& chain : chains) EXPECT_EQ(node.Read(ns, chain), 24u);
  }
  // One chain whose begin is raw and whose rest is not.
  const NamespaceInfo ns = node.Open();
  std::vector<BlockKey> longer = chains[0];
  for (const BlockKey& key : KeyChain(9, 24, 24)) longer.push_back(key);
  node.SetRung(Representation::kPlanes);
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  const NamespaceInfo again = node.Open();
  ASSERT_EQ(node.PutAll(again, longer), 48u);
  ASSERT_TRUE(node.WaitDevices());
  node.cache().Evict(64 * kMiBytes, "");
  EXPECT_EQ(node.Read(again, longer), 48u);
}

TEST(CacheRungTest, QuotasCountWhatBlocksTake) {
  NodeOptions options;
  options.rung = Representation::kPlanes;
  TenantQuota quota;
  quota.of(Resource::kDeviceBytes).ceiling = 4 * kMiBytes;
  options.quotas["small"] = quota;
  TestNode node(options);
  const NamespaceInfo ns = node.Open("model", "small");
  for (uint64_t c = 1; c <= 20; ++c) {
    ASSERT_EQ(node.PutAll(ns, KeyChain(c, 2)), 2u);
    ASSERT_TRUE(node.WaitDevices());
  }
  EXPECT_GT(node.Stats().blocks, 4 * kMiBytes / kTestBlock);
  EXPECT_LE(node.Stats().bytes, 4 * kMiBytes);
}

TEST(CacheRungTest, NoneWhereElementsHaveNoPlanes) {
  TestNode node({.rung = Representation::kPlanes});
  auto info = node.cache().OpenNamespace(OpaqueNamespace("bytes", kTestBlock));
  ASSERT_TRUE(info.ok());
  const std::vector<BlockKey> chain = KeyChain(1, 8);
  ASSERT_EQ(node.PutAll(*info, chain), 8u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().encoded_blocks, 0u);
  node.cache().Evict(64 * kMiBytes, "");
  EXPECT_EQ(node.Read(*info, chain), 8u);
}

uint64_t IncompatOf(const std::string& path) {
  std::array<std::byte, kUnit> page;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(page.data()), kUnit);
  const auto superblock = ParseSuperblock(page);
  EXPECT_TRUE(superblock.ok()) << superblock.status();
  return superblock->incompat;
}

// A version that knows of no representations refuses the device by that bit's name; it stays.
TEST(CacheRungTest, TheSuperblockSaysThatThereAreRepresentations) {
  TestNode node({});
  EXPECT_EQ(IncompatOf(node.PathOf(0)), 0u);
  node.SetRung(Representation::kPlanes);
  node.Crash();
  EXPECT_EQ(IncompatOf(node.PathOf(0)), kIncompatRepresentations);
  node.SetRung(Representation::kRaw);
  node.Crash();
  EXPECT_EQ(IncompatOf(node.PathOf(0)), kIncompatRepresentations);
}

class Nobody final : public LogOwner {
  void OnRecovered(const SegmentTable&) override {}
};

// Writes a block with the stored bytes and the number of the form that somebody made up.
void WriteForged(const std::string& path, const NamespaceId& ns, const BlockKey& key,
                 std::span<const std::byte> stored, uint8_t form) {
  auto device = OpenDevice(path, {});
  ASSERT_TRUE(device.ok());
  Nobody nobody;
  const auto catalogue = NewMemoryCatalogue();
  auto log = SegmentLog::Open(device->get(), catalogue.get(), &nobody, {});
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Recover().ok());
  const AlignedBuffer memory(stored.size());
  std::ranges::copy(stored, memory.data());
  AppendBlock block;
  block.ns = ns;
  block.data = memory.data();
  block.record.key = key;
  block.record.key_len = 32;
  block.record.stored_len = static_cast<uint32_t>(stored.size());
  block.record.raw_len = kTestBlock;
  block.record.repr = form;
  block.record.c64_stored =
      BlockChecksum(ChecksumSeed(ns, key, stored.size()), stored.data(), stored.size());
  const std::vector<std::byte> raw = MakeMixedBlock(ns.bytes[0], key, kTestBlock);
  block.record.c64_raw = BlockChecksum(ChecksumSeed(ns, key, raw.size()), raw.data(), raw.size());
  (*log)->Append(StreamClass::kFresh, {&block, 1});
  (*log)->Seal();
}

TEST(CacheRungTest, WhatCannotBeDecodedIsAMiss) {
  TestNode node({.rung = Representation::kPlanes});
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> keys = KeyChain(1, 4);
  std::vector<std::byte> other(kTestBlock, std::byte{0x3d}), planes(kTestBlock);
  const auto bytes = Encode(Representation::kPlanes, ns.layout, other, planes);
  ASSERT_TRUE(bytes.has_value());
  planes.resize(*bytes);
  const std::vector<std::byte> garbage(100'000, std::byte{7});
  const std::vector<std::byte> right = MakeMixedBlock(TestNode::SeedOf(ns), keys[3], kTestBlock);
  node.Stop();
  WriteForged(node.PathOf(0), ns.id, keys[0], planes, 1);   // decodes to another block
  WriteForged(node.PathOf(0), ns.id, keys[1], garbage, 1);  // does not decode
  WriteForged(node.PathOf(0), ns.id, keys[2], garbage, 2);  // of a later version
  WriteForged(node.PathOf(0), ns.id, keys[3], right, 0);    // as it should be
  node.Start();
  ASSERT_TRUE(node.WaitDevices());
  const NamespaceInfo again = node.Open();
  EXPECT_EQ(node.Stats().unknown_form_blocks, 1u);
  EXPECT_EQ(node.Stats().blocks, 3u);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(node.Read(again, {&keys[i], 1}), i == 3 ? 1u : 0u) << i;
    EXPECT_EQ(node.cache().Lookup(again.handle, {&keys[i], 1}), i == 3 ? 1u : 0u) << i;
  }
  EXPECT_EQ(node.Stats().undecodable_blocks, 2u);
  EXPECT_EQ(node.Stats().load_failed_blocks, 2u);
}

// A flipped bit of what is stored is found before a decoder sees it.
TEST(CacheRungTest, OtherBytesOnTheDeviceAreAMiss) {
  TestNode node({.rung = Representation::kPlanes});
  const std::vector<BlockKey> chain = KeyChain(1, 20);
  ASSERT_EQ(node.PutAll(node.Open(), chain), 20u);
  ASSERT_TRUE(node.WaitDevices());
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  const NamespaceInfo ns = node.Open();
  node.faults().Set(&testing::DeviceFaults::flip_reads, true);
  EXPECT_LT(node.Read(ns, chain), 20u);
  node.faults().Set(&testing::DeviceFaults::flip_reads, false);
  EXPECT_GT(node.Stats().devices[0].log.corrupt_blocks, 0u);
  EXPECT_EQ(node.Stats().undecodable_blocks, 0u);
  EXPECT_EQ(node.PutAll(ns, chain), 20u);
  EXPECT_EQ(node.Read(ns, chain), 20u);
}

}  // namespace
}  // namespace kvarve
