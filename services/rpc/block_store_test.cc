// The seam over a real cache: what gRPC callers are told equals what the cache says.
#include "services/rpc/block_store.h"

#include <gtest/gtest.h>

#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr uint64_t kBlockBytes = 4096;

NamespaceDescriptor Descriptor(std::string model) {
  return OpaqueNamespace(std::move(model), kBlockBytes);
}

class BlockStoreTest : public ::testing::Test {
 protected:
  BlockStoreTest() {
    CacheOptions options;
    options.arena.capacity_bytes = 2 * kExtentBytes;
    options.arena.chunk_bytes = kExtentBytes;
    options.arena.huge_pages = false;
    options.arena.prefault = false;
    cache_ = *Cache::Create(options);
    BlockStoreOptions store;
    store.pin_bytes_max = 4 * kBlockBytes;
    store.read_bytes_max = 8 * kBlockBytes;
    store.complete = [](const std::string& tenant, NamespaceDescriptor descriptor,
                        const NamespaceDigest&) {
      descriptor.tenant = tenant;
      return descriptor;
    };
    store_ = BlockStoreOf(cache_.get(), store);
  }
  void Put(const NamespaceInfo& ns, std::span<const BlockKey> keys) {
    const std::vector<std::byte> block(kBlockBytes, std::byte{1});
    const std::vector<const std::byte*> sources(keys.size(), block.data());
    PutRequest request;
    request.ns = ns.handle;
    request.keys = keys;
    request.sources = sources;
    std::vector<PutResult> results(keys.size());
    ASSERT_TRUE(cache_->Put(request, results).ok());
  }

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<BlockStore> store_;
};

TEST_F(BlockStoreTest, LookupAndInvalidateEqualTheCaches) {
  const NamespaceInfo ns = *cache_->OpenNamespace(Descriptor("a"));
  testing::SeededRandom random(11);
  for (int round = 0; round < 50; ++round) {
    const size_t length = 1 + random.Below(40);
    const std::vector<BlockKey> chain = testing::KeyChain(static_cast<uint64_t>(round), length);
    const size_t stored = random.Below(length + 1);
    if (stored > 0) Put(ns, std::span(chain).first(stored));
    EXPECT_EQ(store_->Lookup(ns.handle, chain), stored);
    EXPECT_EQ(cache_->Lookup(ns.handle, chain), stored);
    if (stored > 1) {
      const size_t removed = random.Below(stored);
      EXPECT_EQ(store_->InvalidateKeys(ns.handle, std::span(chain).subspan(removed, 1)), 1u);
      EXPECT_EQ(cache_->Lookup(ns.handle, chain), removed);
    }
  }
  const uint64_t entries = cache_->Stats().index.entries;
  EXPECT_GT(entries, 0u);
  EXPECT_EQ(store_->Stats().index.entries, entries);
  EXPECT_EQ(store_->Invalidate(ns.handle), entries);
  EXPECT_EQ(cache_->Stats().index.entries, 0u);
}

// Of eight blocks' bytes for reads (4 KiB each) seven at most are one tenant's.
TEST_F(BlockStoreTest, ReadsOfOneTenantLeaveRoomForOthers) {
  NamespaceDescriptor other = Descriptor("a");
  other.tenant = "others";
  const NamespaceInfo ours = *cache_->OpenNamespace(Descriptor("a")),
                      theirs = *cache_->OpenNamespace(other);
  const std::vector<BlockKey> keys = testing::KeyChain(1, 8);
  Put(ours, keys);
  Put(theirs, keys);
  BlockLease greedy = store_->Acquire(ours, keys, 0);
  EXPECT_EQ(greedy.blocks.size(), 7u);
  EXPECT_TRUE(greedy.over_cap);
  BlockLease modest = store_->Acquire(theirs, keys, 0);
  EXPECT_EQ(modest.blocks.size(), 1u);
  EXPECT_TRUE(modest.over_cap);
  greedy.hold.reset();
  EXPECT_EQ(store_->Acquire(theirs, keys, 0).blocks.size(), 6u);  // seven, with the one it has
  modest.hold.reset();
  EXPECT_EQ(cache_->Stats().leased_bytes, 0u);
}

TEST_F(BlockStoreTest, FindsNamespacesOpenedLater) {
  EXPECT_EQ(store_->FindNamespace(NamespaceId()).status().code(), absl::StatusCode::kNotFound);
  for (const char* model : {"a", "b", "c"}) {
    const NamespaceInfo ns = *cache_->OpenNamespace(Descriptor(model));
    const absl::StatusOr<NamespaceInfo> found = store_->FindNamespace(ns.id);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->handle, ns.handle);
    EXPECT_EQ(found->model, model);
  }
  EXPECT_EQ(store_->Namespaces().size(), 3u);
  EXPECT_EQ(store_->incarnation(), cache_->incarnation());
}

}  // namespace
}  // namespace kvarve
