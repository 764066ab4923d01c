// Blocks that are put in pieces (Cache::BeginPut): the same as in one, nobody's before they are
// whole, and nothing when they never are. Oracles: the bytes themselves, BlockChecksum over all of
// them, the arena's own account, and the cache's invariants.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "storage/base/clock.h"
#include "storage/block/checksum.h"
#include "storage/cache/cache.h"
#include "storage/cache/devices_testing.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::KeyChain;
using testing::kMiBytes;
using testing::kTestBlock;
using testing::TestNode;

class BlockPutTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockPut> Begin(const NamespaceInfo& ns, std::span<const BlockKey> chain,
                                  size_t i) {
    PutRequest request;
    request.ns = ns.handle;
    if (i > 0) request.parent = chain[i - 1];
    request.first_depth = static_cast<uint32_t>(i);
    request.keys = chain.subspan(i, 1);
    request.quota_status = &quota_;
    auto put = node_->cache().BeginPut(request);
    EXPECT_TRUE(put.ok()) << put.status();
    return *std::move(put);
  }
  static std::vector<std::byte> BytesOf(const NamespaceInfo& ns, const BlockKey& key) {
    return testing::MakeMixedBlock(TestNode::SeedOf(ns), key, ns.block_bytes);
  }
  // The bytes from `from` to `end` in random pieces.
  void Append(BlockPut* put, std::span<const std::byte> block, size_t from, size_t end) {
    while (from < end) {
      const uint64_t most = random_.OneIn(2) ? 100 : 70'000;
      const size_t size = std::min<size_t>(random_.Below(most), end - from);
      put->Append(block.subspan(from, size));
      from += size;
    }
  }
  absl::StatusOr<PutResult> PutWhole(const NamespaceInfo& ns, std::span<const BlockKey> chain,
                                     size_t i) {
    const auto put = Begin(ns, chain, i);
    Append(put.get(), BytesOf(ns, chain[i]), 0, ns.block_bytes);
    return put->Finish(std::nullopt);
  }
  uint64_t UsedBytes() { return node_->cache().Stats().arena.used_bytes; }

  testing::SeededRandom random_{41};
  absl::Status quota_;
  std::optional<TestNode> node_;
};

TEST_F(BlockPutTest, PiecesMakeTheSameBlockOrNone) {
  node_.emplace(testing::NodeOptions{.devices = 0});
  const NamespaceInfo ns = node_->Open();
  for (uint64_t round = 0; round < 20; ++round) {
    const std::vector<BlockKey> chain = KeyChain(round, 2);
    const std::vector<std::byte> block = BytesOf(ns, chain[0]);
    const uint64_t sum =
        BlockChecksum(ChecksumSeed(ns.id, chain[0], block.size()), block.data(), block.size());
    const uint64_t used = UsedBytes();
    // Of another checksum than promised it is not stored, nor is one that ends early.
    auto put = Begin(ns, chain, 0);
    Append(put.get(), block, 0, block.size());
    EXPECT_EQ(put->Finish(sum + 1).status().code(), absl::StatusCode::kDataLoss);
    put = Begin(ns, chain, 0);
    Append(put.get(), block, 0, block.size() - 1);
    EXPECT_EQ(put->Finish(sum).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(node_->cache().Lookup(ns.handle, chain), 0u);
    put.reset();
    EXPECT_EQ(UsedBytes(), used);
    put = Begin(ns, chain, 0);
    Append(put.get(), block, 0, block.size());
    EXPECT_EQ(node_->cache().Lookup(ns.handle, chain), 0u);
    EXPECT_EQ(*put->Finish(sum), PutResult::kStored);
    LeaseAccount account;
    const AcquireResult read = node_->cache().Acquire(ns.handle, chain, &account, 0);
    ASSERT_EQ(read.grants.size(), 1u);
    EXPECT_EQ(read.grants[0].checksum, sum);
    node_->cache().ReleaseAll(&account);
    EXPECT_EQ(*PutWhole(ns, chain, 1), PutResult::kStored);
    EXPECT_EQ(node_->Read(ns, chain), 2u);  // compares the bytes
  }
  EXPECT_EQ(node_->cache().Stats().put_blocks[static_cast<int>(PutResult::kStored)], 40u);
}

TEST_F(BlockPutTest, OneThatIsDroppedLeavesNothing) {
  node_.emplace(testing::NodeOptions{.host_bytes = 32 * kMiBytes, .devices = 0});
  const NamespaceInfo ns = node_->Open();
  const std::vector<BlockKey> chain = KeyChain(1, 2);
  ASSERT_EQ(*PutWhole(ns, chain, 0), PutResult::kStored);
  const uint64_t used = UsedBytes();
  {
    const auto put = Begin(ns, chain, 1);
    Append(put.get(), BytesOf(ns, chain[1]), 0, 1000);
    EXPECT_EQ(UsedBytes(), used + kTestBlock);
    // Its parent stays meanwhile, or nobody would find it.
    EXPECT_EQ(node_->cache().Evict(kTestBlock, "").first, 0u);
  }
  EXPECT_EQ(UsedBytes(), used);
  EXPECT_EQ(node_->cache().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(node_->cache().Evict(kTestBlock, "").first, 1u);
  EXPECT_EQ(node_->cache().Stats().put_blocks[static_cast<int>(PutResult::kStored)], 1u);
}

TEST_F(BlockPutTest, TheFirstThatIsWholeIsPublishedAndAnInvalidationKeepsBothAway) {
  node_.emplace(testing::NodeOptions{.devices = 0});
  const NamespaceInfo ns = node_->Open();
  const std::vector<BlockKey> chain = KeyChain(1, 1);
  const std::vector<std::byte> block = BytesOf(ns, chain[0]);
  auto one = Begin(ns, chain, 0), two = Begin(ns, chain, 0);
  Append(one.get(), block, 0, block.size());
  Append(two.get(), block, 0, block.size());
  EXPECT_EQ(*two->Finish(std::nullopt), PutResult::kStored);
  EXPECT_EQ(*one->Finish(std::nullopt), PutResult::kExists);
  const auto three = Begin(ns, chain, 0);
  EXPECT_FALSE(three->wants_bytes());
  EXPECT_EQ(*three->Finish(std::nullopt), PutResult::kExists);

  const std::vector<BlockKey> other = KeyChain(2, 1);
  one = Begin(ns, other, 0);
  Append(one.get(), BytesOf(ns, other[0]), 0, ns.block_bytes);
  EXPECT_EQ(node_->cache().Invalidate(ns.handle), 1u);
  EXPECT_EQ(*one->Finish(std::nullopt), PutResult::kRejectedInvalidated);
  EXPECT_EQ(node_->cache().Lookup(ns.handle, other), 0u);
  EXPECT_EQ(UsedBytes(), 0u);
}

// What is begun counts as used: neither a quota nor the memory is ever exceeded.
TEST_F(BlockPutTest, WhatIsBegunCounts) {
  constexpr size_t kMay = 10;
  testing::NodeOptions options{.host_bytes = 64 * kMiBytes, .devices = 0};  // a chunk for each
  options.quotas["small"].of(Resource::kHostBytes).ceiling = kMay * kTestBlock;
  node_.emplace(options);
  const NamespaceInfo small = node_->Open("model", "small");
  std::vector<std::unique_ptr<BlockPut>> puts;
  for (size_t i = 0; i < kMay; ++i) {
    puts.push_back(Begin(small, KeyChain(i, 1), 0));
    EXPECT_TRUE(puts.back()->wants_bytes()) << i;
  }
  const auto over = Begin(small, KeyChain(99, 1), 0);
  EXPECT_FALSE(over->wants_bytes());
  EXPECT_EQ(*over->Finish(std::nullopt), PutResult::kRejectedQuota);
  EXPECT_EQ(quota_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(quota_.message().find("2.50 MiB in use of at most 2.50 MiB"), std::string::npos)
      << quota_;

  const NamespaceInfo other = node_->Open("model", "other");
  while (puts.size() < kMay + 32 * kMiBytes / kTestBlock) {
    puts.push_back(Begin(other, KeyChain(puts.size(), 1), 0));
    ASSERT_TRUE(puts.back()->wants_bytes()) << puts.size();
  }
  EXPECT_EQ(*Begin(other, KeyChain(1000, 1), 0)->Finish(std::nullopt), PutResult::kRejectedNoSpace);
  puts.clear();
  EXPECT_EQ(UsedBytes(), 0u);
}

// A peer that sends slowly must not keep everybody else's blocks from the devices.
TEST_F(BlockPutTest, SlowOnesTakeNoneOfWhatMayBeOnItsWayToDevices) {
  constexpr uint64_t kDirty = 8 * kMiBytes;
  constexpr size_t kMost = kDirty / kTestBlock;
  node_.emplace(testing::NodeOptions{.dirty_bytes = kDirty});
  const NamespaceInfo ns = node_->Open();
  std::vector<std::pair<std::unique_ptr<BlockPut>, BlockKey>> puts;
  for (size_t i = 0; i < 2 * kMost; ++i) {
    const std::vector<BlockKey> chain = KeyChain(i, 1);
    puts.emplace_back(Begin(ns, chain, 0), chain[0]);
    Append(puts.back().first.get(), BytesOf(ns, chain[0]), 0, 5);
  }
  const std::vector<BlockKey> quick = KeyChain(1000, 4);
  for (const PutResult result : node_->Put(ns, quick)) EXPECT_EQ(result, PutResult::kStored);
  ASSERT_TRUE(node_->WaitDevices());
  // When they are whole they are bounded as all others.
  node_->faults().Set(&testing::DeviceFaults::hold_writes, true);
  size_t stored = 0, shed = 0;
  for (const auto& [put, key] : puts) {
    Append(put.get(), BytesOf(ns, key), 5, ns.block_bytes);
    const PutResult result = *put->Finish(std::nullopt);
    stored += result == PutResult::kStored ? 1 : 0;
    shed += result == PutResult::kShed ? 1 : 0;
  }
  EXPECT_EQ(stored, kMost);
  EXPECT_EQ(shed, kMost);
  EXPECT_EQ(node_->Stats().dirty_bytes, kDirty);
  node_->faults().ReleaseWrites();
  ASSERT_TRUE(node_->WaitDevices());
  EXPECT_EQ(node_->Read(ns, quick), 4u);
}

// Where it is decided otherwise, it is not for want of devices.
TEST_F(BlockPutTest, OnlyWhatWouldBeStoredIsShed) {
  constexpr uint64_t kDirty = 8 * kMiBytes;
  node_.emplace(testing::NodeOptions{.dirty_bytes = kDirty});
  const NamespaceInfo ns = node_->Open("a"), other = node_->Open("b");
  const std::vector<BlockKey> chain = KeyChain(1, kDirty / kTestBlock), root = KeyChain(2, 1);
  const auto late = Begin(ns, chain, 0), gone = Begin(other, root, 0), wrong = Begin(ns, root, 0);
  auto dropped = Begin(ns, KeyChain(3, 1), 0);
  node_->cache().Invalidate(other.handle);
  node_->faults().Set(&testing::DeviceFaults::hold_writes, true);
  for (const PutResult result : node_->Put(ns, chain)) EXPECT_EQ(result, PutResult::kStored);
  ASSERT_EQ(node_->Stats().dirty_bytes, kDirty);
  Append(late.get(), BytesOf(ns, chain[0]), 0, ns.block_bytes);
  EXPECT_EQ(*late->Finish(std::nullopt), PutResult::kExists);
  Append(gone.get(), BytesOf(other, root[0]), 0, ns.block_bytes);
  EXPECT_EQ(*gone->Finish(std::nullopt), PutResult::kRejectedInvalidated);
  Append(wrong.get(), BytesOf(ns, root[0]), 0, ns.block_bytes);
  EXPECT_EQ(wrong->Finish(1).status().code(), absl::StatusCode::kDataLoss);
  dropped.reset();
  EXPECT_EQ(node_->Stats().shed_blocks, 0u);
  EXPECT_EQ(node_->cache().Stats().put_blocks[static_cast<int>(PutResult::kShed)], 0u);
  node_->faults().ReleaseWrites();
  ASSERT_TRUE(node_->WaitDevices());
}

// Else a peer could use up others' rate with the first bytes of blocks.
TEST_F(BlockPutTest, OnesThatAreDroppedCostNothingOfTheRate) {
  constexpr uint64_t kBlocksASecond = 8;
  testing::NodeOptions options{.devices = 0};
  options.quotas["slow"].of(Resource::kIngest).ceiling = kBlocksASecond * kTestBlock;
  node_.emplace(options);
  const NamespaceInfo ns = node_->Open("model", "slow");
  for (uint64_t i = 0; i < 100 * kBlocksASecond; ++i) {
    ASSERT_TRUE(Begin(ns, KeyChain(i, 1), 0)->wants_bytes()) << i << quota_;
  }
  // Those that are stored do cost it.
  uint64_t stored = 0;
  const int64_t start = SystemClock::Get()->NowNanos();
  while (stored < 100 && Begin(ns, KeyChain(stored, 1), 0)->wants_bytes()) {
    ASSERT_EQ(*PutWhole(ns, KeyChain(stored++, 1), 0), PutResult::kStored);
    const int64_t seconds = (SystemClock::Get()->NowNanos() - start) / 1'000'000'000;
    ASSERT_LE(stored, kBlocksASecond * (static_cast<uint64_t>(seconds) + 3));
  }
}

// Begun, fed, finished and dropped in any order, between invalidations, evictions and other sizes
// of memory: every block that is found has its bytes, and nothing is lost count of.
TEST_F(BlockPutTest, InAnyOrder) {
  node_.emplace(testing::NodeOptions{.host_bytes = 64 * kMiBytes, .devices = 0});
  const NamespaceInfo ns = node_->Open();
  struct Pending {
    std::unique_ptr<BlockPut> put;
    std::vector<std::byte> block;
    size_t at = 0;
  };
  std::vector<Pending> pending;
  std::map<PutResult, int> seen;
  for (int step = 0; step < 4000; ++step) {
    const std::vector<BlockKey> chain = KeyChain(random_.Below(80), 4);
    const uint64_t choice = random_.Below(100);
    if (choice < 35 && pending.size() < 40) {
      const size_t i = random_.Below(chain.size());
      pending.push_back({Begin(ns, chain, i), BytesOf(ns, chain[i])});
    } else if (choice < 85 && !pending.empty()) {
      std::swap(pending[random_.Below(pending.size())], pending.back());
      Pending& one = pending.back();
      const size_t end =
          random_.OneIn(2) ? one.block.size() : one.at + random_.Below(one.block.size() - one.at);
      Append(one.put.get(), one.block, one.at, end);
      one.at = end;
      if (one.at == one.block.size()) {
        ++seen[*one.put->Finish(std::nullopt)];
        pending.pop_back();
      }
    } else if (choice < 90 && !pending.empty()) {
      pending.erase(pending.begin() + static_cast<long>(random_.Below(pending.size())));
    } else if (choice < 92) {
      node_->cache().Evict(random_.Below(8) * kTestBlock, "");
    } else if (choice == 92) {
      node_->cache().Invalidate(ns.handle);
    } else if (choice < 95) {
      ASSERT_TRUE(node_->cache().Resize((1 + random_.Below(2)) * 32 * kMiBytes).ok());
    } else {
      node_->Read(ns, chain);
    }
    if (step % 50 == 0) {
      ASSERT_EQ(node_->cache().CheckInvariants(), absl::OkStatus()) << step;
    }
  }
  pending.clear();
  EXPECT_EQ(node_->cache().CheckInvariants(), absl::OkStatus());
  EXPECT_GT(seen[PutResult::kStored], 100);
  EXPECT_GT(seen[PutResult::kExists], 10);
  EXPECT_GT(seen[PutResult::kRejectedInvalidated], 3);
  node_->cache().Invalidate(ns.handle);
  EXPECT_EQ(UsedBytes(), 0u);
}

}  // namespace
}  // namespace kvarve
