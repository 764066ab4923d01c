// Rules of the cache one by one: concurrent puts, invalidation, resize under leases, tenants and
// slot sizes sharing one capacity, holds, accesses counted once a request, corruption.
#include "storage/cache/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "storage/block/checksum.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr uint64_t kMiBytes = 1ull << 20;

NamespaceDescriptor Descriptor(std::string tenant, uint64_t block_bytes) {
  NamespaceDescriptor d = OpaqueNamespace("model", block_bytes);
  d.tenant = std::move(tenant);
  return d;
}

std::vector<BlockKey> Chain(uint64_t id, size_t length) {
  std::mt19937_64 rng(id);
  std::vector<BlockKey> keys(length);
  for (BlockKey& key : keys) {
    for (uint8_t& byte : key.bytes) byte = rng();
  }
  return keys;
}

class CacheTest : public testing::Test {
 protected:
  void Make(uint64_t capacity, uint64_t chunk = 256 * kMiBytes) {
    CacheOptions options;
    options.arena.capacity_bytes = capacity;
    options.arena.chunk_bytes = chunk;
    options.arena.huge_pages = false;
    options.clock = &clock_;
    auto cache = Cache::Create(options);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  NamespaceInfo Open(const std::string& tenant, uint64_t block_bytes) {
    auto info = cache_->OpenNamespace(Descriptor(tenant, block_bytes));
    EXPECT_TRUE(info.ok()) << info.status();
    return *info;
  }
  std::vector<PutResult> Put(const NamespaceInfo& ns, std::span<const BlockKey> keys, uint8_t fill,
                             uint64_t request_id = 0) {
    const std::vector<std::byte> block(ns.block_bytes, std::byte{fill});
    const std::vector<const std::byte*> sources(keys.size(), block.data());
    PutRequest request;
    request.ns = ns.handle;
    request.keys = keys;
    request.sources = sources;
    request.request_id = request_id;
    std::vector<PutResult> results(keys.size());
    EXPECT_TRUE(cache_->Put(request, results).ok());
    return results;
  }
  void TearDown() override {
    if (cache_ == nullptr) return;
    EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  }

  ManualClock clock_;
  std::unique_ptr<Cache> cache_;
  LeaseAccount account_;
};

TEST_F(CacheTest, ANamespaceIsOpenedOnceAndKnowsItsBlockSize) {
  Make(64 * kMiBytes);
  const NamespaceInfo a = Open("t", kMiBytes);
  EXPECT_EQ(Open("t", kMiBytes).handle, a.handle);
  EXPECT_NE(Open("u", kMiBytes).id, a.id);
  EXPECT_NE(Open("t", 2 * kMiBytes).id, a.id);
  EXPECT_EQ(cache_->OpenNamespace(Descriptor("t", 17ull << 20)).status().code(),
            absl::StatusCode::kInvalidArgument);
  PutRequest request;
  const auto keys = Chain(1, 2);
  request.ns = a.handle;
  request.keys = keys;
  std::vector<PutResult> results(2);
  EXPECT_EQ(cache_->Put(request, results).code(),
            absl::StatusCode::kInvalidArgument);  // no sources
}

// Eight threads put the same chain with other bytes each: one wins per block, and what is found
// verifies.
TEST_F(CacheTest, FirstPublishWinsAndVerifies) {
  Make(256 * kMiBytes);
  const NamespaceInfo ns = Open("t", 64 * 1024);
  constexpr int kThreads = 8;
  for (int round = 0; round < 20; ++round) {
    const auto keys = Chain(round, 16);
    std::atomic<int> stored{0}, exists{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (PutResult result : Put(ns, keys, t + 1)) {
          (result == PutResult::kStored ? stored : exists).fetch_add(1);
          EXPECT_TRUE(result == PutResult::kStored || result == PutResult::kExists);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(stored.load(), 16);
    EXPECT_EQ(exists.load(), 16 * (kThreads - 1));
    const AcquireResult got = cache_->Acquire(ns.handle, keys, &account_, 0);
    ASSERT_EQ(got.grants.size(), 16u);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(BlockChecksum(ChecksumSeed(ns.id, keys[i], ns.block_bytes),
                              cache_->Data(got.grants[i].slot), ns.block_bytes),
                got.grants[i].checksum);
    }
    EXPECT_TRUE(cache_->Release(got.lease, &account_));
  }
}

// While one thread empties the namespace over and over, puts either publish into the new life or
// answer rejected(invalidated); nothing put before an invalidation that has returned is found after
// it.
TEST_F(CacheTest, InvalidationLeavesNothingBehind) {
  Make(64 * kMiBytes);
  const NamespaceInfo ns = Open("t", 64 * 1024);
  std::atomic<bool> stop{false};
  std::thread putter([&] {
    for (uint64_t i = 0; !stop; ++i) {
      const auto results = Put(ns, Chain(i % 10, 8), 1);
      for (PutResult result : results) EXPECT_NE(result, PutResult::kRejectedNoSpace);
    }
  });
  for (int i = 0; i < 200; ++i) {
    const auto keys = Chain(1000 + i, 4);
    Put(ns, keys, 2);
    cache_->Invalidate(ns.handle);
    EXPECT_EQ(cache_->Lookup(ns.handle, keys), 0u);
  }
  stop = true;
  putter.join();
  cache_->Invalidate(ns.handle);
  EXPECT_EQ(cache_->Stats().index.entries, 0u);
  EXPECT_EQ(cache_->Stats().arena.used_bytes, 0u);
}

TEST_F(CacheTest, ALeaseOutlivesInvalidationAndResize) {
  Make(128 * kMiBytes, 32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  const auto keys = Chain(1, 100);
  EXPECT_THAT(Put(ns, keys, 7), Each(PutResult::kStored));
  const AcquireResult got = cache_->Acquire(ns.handle, std::span(keys).first(3), &account_, 0);
  ASSERT_EQ(got.grants.size(), 3u);
  EXPECT_EQ(cache_->Invalidate(ns.handle), 100u);
  EXPECT_EQ(cache_->Lookup(ns.handle, keys), 0u);
  ASSERT_TRUE(cache_->Resize(32 * kMiBytes).ok());
  const std::vector<std::byte> want(kMiBytes, std::byte{7});
  for (const Grant& grant : got.grants) {
    EXPECT_EQ(std::memcmp(cache_->Data(grant.slot), want.data(), kMiBytes), 0);
  }
  EXPECT_EQ(cache_->Stats().index.doomed, 3u);
  EXPECT_TRUE(cache_->Release(got.lease, &account_));
  EXPECT_FALSE(cache_->Release(got.lease, &account_));  // ids are never used again
  EXPECT_EQ(cache_->Stats().releases_unknown, 1u);
  EXPECT_EQ(cache_->Stats().index.doomed, 0u);
  EXPECT_LE(cache_->Stats().arena.chunk_bytes, 32 * kMiBytes);
  EXPECT_THAT(Put(ns, Chain(2, 32), 1), Each(PutResult::kStored));
}

TEST_F(CacheTest, ResizeShrinksAndGrowsOnline) {
  Make(128 * kMiBytes, 32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  for (int i = 0; i < 16; ++i) Put(ns, Chain(i, 8), 1);
  EXPECT_EQ(cache_->Stats().arena.used_bytes, 128 * kMiBytes);
  ASSERT_TRUE(cache_->Resize(64 * kMiBytes).ok());
  EXPECT_LE(cache_->Stats().arena.chunk_bytes, 64 * kMiBytes);
  ASSERT_TRUE(cache_->Resize(128 * kMiBytes).ok());
  for (int i = 100; i < 116; ++i) EXPECT_THAT(Put(ns, Chain(i, 8), 1), Each(PutResult::kStored));
  EXPECT_EQ(cache_->Stats().arena.used_bytes, 128 * kMiBytes);
}

// A chain longer than the cache: its first blocks stay, the rest is refused; never does a block
// push out its ancestor.
TEST_F(CacheTest, AChainNeverEvictsItself) {
  Make(32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  const auto keys = Chain(1, 40);
  const auto results = Put(ns, keys, 1);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(results[i], PutResult::kStored) << i;
  EXPECT_EQ(results[32], PutResult::kRejectedNoSpace);
  for (size_t i = 33; i < 40; ++i) EXPECT_EQ(results[i], PutResult::kRejectedParent) << i;
  EXPECT_EQ(cache_->Lookup(ns.handle, keys), 32u);
}

// Two slot sizes share a pool: the idle one gives its extents to the busy one, and leased blocks
// stay.
TEST_F(CacheTest, AnIdleSlotSizeGivesItsExtents) {
  Make(128 * kMiBytes);
  const NamespaceInfo small = Open("t", kMiBytes), large = Open("t", 8 * kMiBytes);
  for (int i = 0; i < 16; ++i) Put(small, Chain(i, 8), 1);
  const auto leased = Chain(0, 8);
  const AcquireResult got = cache_->Acquire(small.handle, leased, &account_, 0);
  ASSERT_EQ(got.grants.size(), 8u);
  for (int i = 0; i < 12; ++i)
    EXPECT_THAT(Put(large, Chain(100 + i, 1), 2), Each(PutResult::kStored)) << i;
  EXPECT_EQ(cache_->Lookup(small.handle, leased), 8u);
  size_t found = 0;
  for (int i = 0; i < 12; ++i) found += cache_->Lookup(large.handle, Chain(100 + i, 1));
  EXPECT_EQ(found, 12u);
  EXPECT_TRUE(cache_->Release(got.lease, &account_));
}

// An extent of another slot size with a leased slot cannot change hands: none of its blocks is
// evicted for it, and when the lease has ended it goes.
TEST_F(CacheTest, AnExtentThatCannotGoIsLeftAlone) {
  Make(64 * kMiBytes);
  const NamespaceInfo small = Open("t", kMiBytes), large = Open("t", 8 * kMiBytes);
  for (int i = 0; i < 64; ++i) Put(small, Chain(i, 1), 1);
  std::vector<LeaseId> leases;
  for (const int chain : {0, 63}) {  // one in each of the two extents
    leases.push_back(cache_->Acquire(small.handle, Chain(chain, 1), &account_, 0).lease);
  }
  EXPECT_EQ(Put(large, Chain(100, 1), 2)[0], PutResult::kRejectedNoSpace);
  const auto found = [&] {
    size_t blocks = 0;
    for (int i = 0; i < 64; ++i) blocks += cache_->Lookup(small.handle, Chain(i, 1));
    return blocks;
  };
  EXPECT_EQ(found(), 64u);
  EXPECT_EQ(cache_->Stats().evicted_blocks, 0u);
  // What was set aside can still be evicted, in order.
  EXPECT_EQ(Put(small, Chain(64, 1), 1)[0], PutResult::kStored);
  EXPECT_EQ(cache_->Lookup(small.handle, Chain(1, 1)), 0u);
  EXPECT_EQ(found(), 63u);
  EXPECT_TRUE(cache_->Release(leases[1], &account_));
  EXPECT_EQ(Put(large, Chain(100, 1), 2)[0], PutResult::kStored);
  EXPECT_EQ(cache_->Lookup(small.handle, Chain(0, 1)), 1u);
  EXPECT_TRUE(cache_->Release(leases[0], &account_));
}

// One tenant has filled everything; another gets its fair share, chunk by chunk, and not more.
TEST_F(CacheTest, TenantsGetTheirShare) {
  Make(256 * kMiBytes, 32 * kMiBytes);
  const NamespaceInfo a = Open("a", kMiBytes), b = Open("b", kMiBytes);
  EXPECT_NE(a.pool, b.pool);
  for (int i = 0; i < 32; ++i) Put(a, Chain(i, 8), 1);
  EXPECT_EQ(cache_->Stats().pools[0].chunk_bytes, 256 * kMiBytes);
  for (int i = 0; i < 64; ++i) EXPECT_THAT(Put(b, Chain(i, 8), 1), Each(PutResult::kStored)) << i;
  const CacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.pools[0].chunk_bytes, 128 * kMiBytes);
  EXPECT_EQ(stats.pools[1].chunk_bytes, 128 * kMiBytes);
}

// Fewer chunks than tenants: who came first keeps its blocks, nobody's put empties another's chunk.
TEST_F(CacheTest, AChunkDoesNotWander) {
  Make(64 * kMiBytes, 32 * kMiBytes);
  const NamespaceInfo a = Open("a", kMiBytes), b = Open("b", kMiBytes), c = Open("c", kMiBytes);
  EXPECT_THAT(Put(a, Chain(1, 4), 1), Each(PutResult::kStored));
  EXPECT_THAT(Put(b, Chain(1, 4), 1), Each(PutResult::kStored));
  EXPECT_EQ(Put(c, Chain(1, 4), 1)[0], PutResult::kRejectedNoSpace);
  EXPECT_EQ(cache_->Lookup(a.handle, Chain(1, 4)), 4u);
  EXPECT_EQ(cache_->Lookup(b.handle, Chain(1, 4)), 4u);
}

TEST_F(CacheTest, HoldsEndByThemselves) {
  Make(32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  const auto keys = Chain(1, 4);
  Put(ns, keys, 1);
  const AcquireResult hold = cache_->Acquire(ns.handle, keys, &account_, 0, /*hold_nanos=*/1000);
  EXPECT_EQ(hold.grants.size(), 4u);
  EXPECT_EQ(cache_->Stats().leased_bytes, 4 * kMiBytes);
  clock_.Advance(999);
  cache_->ExpireHolds();
  EXPECT_EQ(cache_->Stats().leases, 1u);
  clock_.Advance(1);
  cache_->ExpireHolds();
  EXPECT_EQ(cache_->Stats().leases, 0u);
  EXPECT_EQ(cache_->Stats().holds_expired, 1u);
  EXPECT_FALSE(cache_->Release(hold.lease, &account_));
}

// A client that outlives a daemon releases at the next one what it had leased of the one before.
TEST_F(CacheTest, LeasesOfAnotherIncarnationAreNobodys) {
  std::vector<LeaseId> leases;
  std::unique_ptr<Cache> earlier;
  for (int incarnation = 0; incarnation < 2; ++incarnation) {
    earlier = std::move(cache_);
    Make(32 * kMiBytes);
    const NamespaceInfo ns = Open("t", kMiBytes);
    const auto keys = Chain(1, 1);
    Put(ns, keys, 1);
    for (int i = 0; i < 8; ++i) {
      leases.push_back(cache_->Acquire(ns.handle, keys, &account_, 0).lease);
    }
  }
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(cache_->Release(leases[i], &account_));
  for (int i = 8; i < 16; ++i) EXPECT_TRUE(cache_->Release(leases[i], &account_));
}

// A put that is copying while its chunk is given up stores nothing there: nothing would ever push
// it out.
TEST_F(CacheTest, AShrinkIsDoneThoughPutsAreUnderWay) {
  Make(128 * kMiBytes, 32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      for (int i = 0; !stop; ++i) Put(ns, Chain(i % 50, 32), 1);
    });
    while (cache_->Stats().arena.used_bytes < 96 * kMiBytes) std::this_thread::yield();
    EXPECT_EQ(cache_->Resize(32 * kMiBytes), absl::OkStatus());
    stop = true;
    writer.join();
    EXPECT_LE(cache_->Stats().arena.chunk_bytes, 32 * kMiBytes) << "round " << round;
    EXPECT_EQ(cache_->Resize(128 * kMiBytes), absl::OkStatus());
  }
}

// The second access of a request to a block does not make it more recent; lookups and holds never
// do.
TEST_F(CacheTest, AnAccessIsOnceARequest) {
  Make(32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  const auto old_chain = Chain(1, 1), other = Chain(2, 31);
  Put(ns, old_chain, 1, /*request_id=*/77);
  Put(ns, other, 1);
  const auto acquire = [&](uint64_t request, int64_t hold) {
    const AcquireResult got = cache_->Acquire(ns.handle, old_chain, &account_, request, hold);
    ASSERT_EQ(got.grants.size(), 1u);
    cache_->Release(got.lease, &account_);
  };
  acquire(77, 0);
  acquire(0, /*hold=*/5);
  EXPECT_EQ(cache_->Lookup(ns.handle, old_chain), 1u);
  Put(ns, Chain(3, 1), 1);  // needs one slot: the oldest access is old_chain's
  EXPECT_EQ(cache_->Lookup(ns.handle, old_chain), 0u);

  Put(ns, old_chain, 1, 77);  // a tail block of `other` went for it
  acquire(78, 0);
  Put(ns, Chain(4, 1), 1);
  EXPECT_EQ(cache_->Lookup(ns.handle, old_chain), 1u);
}

TEST_F(CacheTest, CapsRefuseLeasesButNotLookups) {
  Make(64 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  const auto keys = Chain(1, 20);
  Put(ns, keys, 1);
  LeaseAccount process, session{.parent = &process}, second{.parent = &process},
      copies{.parent = &process, .exempt = true};
  process.bytes_max = 10 * kMiBytes;
  const AcquireResult a = cache_->Acquire(ns.handle, std::span(keys).first(6), &session, 0);
  EXPECT_EQ(a.grants.size(), 6u);
  const AcquireResult b = cache_->Acquire(ns.handle, keys, &second, 0);
  EXPECT_EQ(b.grants.size(), 4u);
  EXPECT_TRUE(b.over_lease_cap);
  EXPECT_EQ(cache_->Lookup(ns.handle, keys), 20u);
  EXPECT_EQ(cache_->Acquire(ns.handle, keys, &copies, 0).grants.size(), 20u);
  cache_->Quarantine(&session);
  EXPECT_EQ(cache_->Stats().quarantined_bytes, 6 * kMiBytes);
  EXPECT_FALSE(cache_->Release(a.lease, &second));  // another account's
  cache_->ReleaseAll(&session);
  cache_->ReleaseAll(&second);
  cache_->ReleaseAll(&copies);
  EXPECT_EQ(cache_->Stats().quarantined_bytes, 0u);
  EXPECT_EQ(process.leased_bytes, 0u);
}

TEST_F(CacheTest, ACorruptBlockIsRemovedAndAGoodOneStays) {
  Make(32 * kMiBytes);
  const NamespaceInfo ns = Open("t", kMiBytes);
  const auto keys = Chain(1, 2);
  Put(ns, keys, 1);
  EXPECT_FALSE(cache_->ReportCorrupt(ns.handle, keys[1]));
  const AcquireResult got = cache_->Acquire(ns.handle, keys, &account_, 0);
  const_cast<std::byte*>(cache_->Data(got.grants[1].slot))[12345] ^= std::byte{1};
  EXPECT_TRUE(cache_->ReportCorrupt(ns.handle, keys[1]));
  EXPECT_EQ(cache_->Lookup(ns.handle, keys), 1u);
  EXPECT_EQ(cache_->Stats().corrupt_blocks, 1u);
  cache_->Release(got.lease, &account_);
}

// Readers verify what they were granted while writers keep the cache full and evicting.
TEST_F(CacheTest, LeasedBlocksNeverChange) {
  Make(64 * kMiBytes);
  const NamespaceInfo ns = Open("t", 256 * 1024);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> verified{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(t);
      while (!stop) Put(ns, Chain(rng() % 100, 1 + rng() % 16), 1 + rng() % 250);
    });
  }
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(100 + t);
      LeaseAccount account;
      while (verified < 3000 && !stop) {
        const auto keys = Chain(rng() % 100, 16);
        const AcquireResult got = cache_->Acquire(ns.handle, keys, &account, 0);
        for (size_t i = 0; i < got.grants.size(); ++i) {
          const uint64_t seed = ChecksumSeed(ns.id, keys[i], ns.block_bytes);
          EXPECT_EQ(BlockChecksum(seed, cache_->Data(got.grants[i].slot), ns.block_bytes),
                    got.grants[i].checksum);
          ++verified;
        }
        if (got.lease != 0) cache_->Release(got.lease, &account);
      }
      stop = true;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GE(verified.load(), 3000u);
}

}  // namespace
}  // namespace kvarve
