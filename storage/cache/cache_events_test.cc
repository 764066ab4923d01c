// Events and eviction by request. The oracle of events is the cache itself: who
// replays them all knows exactly the blocks that lookups find.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "storage/block/checksum.h"
#include "storage/cache/cache.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve {
namespace {

constexpr uint64_t kBlockBytes = 256 << 10;
constexpr size_t kCapacityBlocks = 128;

NamespaceDescriptor Descriptor(std::string tenant, std::string model) {
  NamespaceDescriptor d = OpaqueNamespace(std::move(model), kBlockBytes);
  d.tenant = std::move(tenant);
  return d;
}

BlockKey KeyOf(uint64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

class CacheEventsTest : public testing::Test {
 protected:
  void Make(size_t event_window) {
    CacheOptions options;
    options.arena.capacity_bytes = kCapacityBlocks * kBlockBytes;
    options.arena.huge_pages = false;
    options.arena.prefault = false;
    options.event_window = event_window;
    cache_ = *Cache::Create(options);
  }
  std::vector<PutResult> Put(NamespaceHandle ns, std::span<const BlockKey> keys) {
    const std::vector<std::byte> block(kBlockBytes, std::byte{7});
    const std::vector<const std::byte*> sources(keys.size(), block.data());
    PutRequest request;
    request.ns = ns;
    request.keys = keys;
    request.sources = sources;
    std::vector<PutResult> results(keys.size());
    EXPECT_TRUE(cache_->Put(request, results).ok());
    return results;
  }
  std::unique_ptr<Cache> cache_;
};

TEST_F(CacheEventsTest, ReplayedEventsAreTheContents) {
  Make(1 << 16);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const NamespaceHandle spaces[] = {cache_->OpenNamespace(Descriptor("a", "x"))->handle,
                                    cache_->OpenNamespace(Descriptor("a", "y"))->handle};
  std::set<std::pair<uint32_t, uint64_t>> told;
  uint64_t next = 1;
  constexpr uint64_t kKeys = 200;
  for (int round = 0; round < 300; ++round) {
    const NamespaceHandle ns = spaces[random() % 2];
    std::vector<BlockKey> keys;
    for (uint64_t i = random() % kKeys, end = i + random() % 8; i < end; ++i)
      keys.push_back(KeyOf(i));
    switch (random() % 10) {
      case 0:
        cache_->InvalidateKeys(ns, keys);
        break;
      case 1:
        if (random() % 4 == 0) cache_->Invalidate(ns);
        break;
      case 2:
        cache_->Evict(kBlockBytes * (random() % 4), "");
        break;
      default:
        Put(ns, keys);
    }
    std::vector<CacheEvent> events;
    const absl::StatusOr<uint64_t> end = cache_->Events(next, 1000, &events);
    ASSERT_TRUE(end.ok()) << end.status();
    for (const CacheEvent& event : events) {
      EXPECT_EQ(event.sequence, next++);
      uint64_t number = 0;
      std::memcpy(&number, event.key.bytes.data(), sizeof(number));
      switch (event.kind) {
        case CacheEventKind::kStored:
          EXPECT_TRUE(told.emplace(event.ns->handle, number).second);
          break;
        case CacheEventKind::kRemoved:
          EXPECT_EQ(told.erase({event.ns->handle, number}), 1u);
          break;
        case CacheEventKind::kCleared:
          std::erase_if(told, [&](const auto& block) { return block.first == event.ns->handle; });
          break;
        case CacheEventKind::kTierChanged:
          FAIL() << "there is one tier";
      }
    }
    EXPECT_EQ(*end, next);
    EXPECT_EQ(cache_->next_event(), next);
    for (const NamespaceHandle space : spaces) {
      for (uint64_t i = 0; i < kKeys + 8; ++i) {
        const BlockKey key = KeyOf(i);
        ASSERT_EQ(cache_->Lookup(space, {&key, 1}) == 1, told.contains({space, i})) << i;
      }
    }
  }
}

TEST_F(CacheEventsTest, TheWindowEnds) {
  Make(4);
  const NamespaceHandle ns = cache_->OpenNamespace(Descriptor("a", "x"))->handle;
  std::vector<CacheEvent> events;
  EXPECT_EQ(*cache_->Events(1, 10, &events), 1u);
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; i < 6; ++i) keys.push_back(KeyOf(i));
  Put(ns, keys);
  EXPECT_EQ(cache_->Events(2, 10, &events).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(cache_->Events(8, 10, &events).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(*cache_->Events(3, 2, &events), 5u);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].sequence, 3u);
  EXPECT_EQ(events[0].key, keys[2]);
  EXPECT_EQ(events[0].depth, 2u);
  EXPECT_EQ(*cache_->Events(7, 2, &events), 7u);
}

TEST_F(CacheEventsTest, EvictTakesLeavesOfOneTenantAndNoLeasedBlock) {
  Make(0);
  const NamespaceInfo a = *cache_->OpenNamespace(Descriptor("a", "x"));
  const NamespaceInfo b = *cache_->OpenNamespace(Descriptor("b", "x"));
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; i < 10; ++i) keys.push_back(KeyOf(i));
  Put(a.handle, keys);
  EXPECT_EQ(cache_->Evict(kBlockBytes, "b"), std::make_pair(uint64_t{0}, uint64_t{0}));
  EXPECT_EQ(cache_->Evict(3 * kBlockBytes - 1, "a"), std::make_pair(uint64_t{3}, 3 * kBlockBytes));
  EXPECT_EQ(cache_->Lookup(a.handle, keys), 7u);  // the ends of the chain went
  LeaseAccount account;
  const AcquireResult read = cache_->Acquire(a.handle, std::span(keys).first(2), &account, 0);
  EXPECT_EQ(cache_->Evict(1ull << 40, "").first, 5u);
  EXPECT_EQ(cache_->Lookup(a.handle, keys), 2u);
  cache_->Release(read.lease, &account);
  EXPECT_EQ(cache_->Evict(1ull << 40, "").first, 2u);
  EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  cache_->ReleaseAll(&account);
  EXPECT_EQ(b.tenant, "b");
}

}  // namespace
}  // namespace kvarve
