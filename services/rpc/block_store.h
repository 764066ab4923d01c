// What the gRPC services ask of the node: the seam between the wire and the store. THREADS: any.
// BLOCKS: never on I/O; a BlockPut for the copies.
#ifndef KVARVE_SERVICES_RPC_BLOCK_STORE_H_
#define KVARVE_SERVICES_RPC_BLOCK_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"
#include "storage/cache/cache.h"

namespace kvarve {

struct StoredBlock {
  const std::byte* data = nullptr;
  uint64_t checksum = 0;
};

// Leading blocks of a run, whose bytes stay in place while `hold` lives.
struct BlockLease {
  std::shared_ptr<void> hold;  // null when blocks is empty
  std::vector<StoredBlock> blocks;
  bool over_cap = false;  // more were found than may be read now
};

struct PinAnswer {
  uint64_t pin = 0;  // 0: nothing is pinned
  size_t hit_blocks = 0;
  size_t pinned_blocks = 0;
};

class BlockStore {
 public:
  virtual ~BlockStore() = default;

  virtual uint64_t incarnation() const = 0;
  // Opens the namespace of a client's part of a descriptor for a tenant.
  virtual absl::StatusOr<NamespaceInfo> OpenNamespace(const std::string& tenant,
                                                      const NamespaceDescriptor& descriptor,
                                                      const NamespaceDigest& digest) = 0;
  // NotFound: nobody opened it on this node, or it was empty and was forgotten. A call keeps the
  // info until it ends, so that its handle stays valid.
  virtual absl::StatusOr<NamespaceInfo> FindNamespace(const NamespaceId& id) = 0;
  virtual std::vector<NamespaceInfo> Namespaces() const = 0;

  // REQUIRES: an open handle, keys.size() <= kMaxKeysPerCall (here and below).
  // `in_host`, if not null, and `recompute_us`: Cache::Lookup.
  virtual size_t Lookup(NamespaceHandle ns, std::span<const BlockKey> keys,
                        size_t* in_host = nullptr, uint32_t recompute_us = 0) = 0;
  virtual size_t Touch(NamespaceHandle ns, std::span<const BlockKey> keys, uint64_t request_id) = 0;
  // Cache::WantsLoad, Cache::Load.
  virtual bool WantsLoad(NamespaceHandle ns, std::span<const BlockKey> keys) = 0;
  virtual void Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
                    std::function<void()> done) = 0;
  // A lease on the leading blocks found in memory; its end may come on any thread.
  virtual BlockLease Acquire(const NamespaceInfo& ns, std::span<const BlockKey> keys,
                             uint64_t request_id) = 0;
  // Cache::BeginPut.
  virtual absl::StatusOr<std::unique_ptr<BlockPut>> BeginPut(const PutRequest& request) = 0;
  virtual PinAnswer Pin(const NamespaceInfo& ns, std::span<const BlockKey> keys, int64_t ttl_nanos,
                        uint64_t request_id) = 0;
  // False: the tenant has no such pin, or it is over.
  virtual bool Unpin(const std::string& tenant, uint64_t pin) = 0;
  // How many of the blocks were damaged indeed.
  virtual size_t ReportCorrupt(NamespaceHandle ns, std::span<const BlockKey> keys) = 0;
  virtual uint64_t Invalidate(NamespaceHandle ns) = 0;
  virtual uint64_t InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys) = 0;
  virtual CacheStats Stats() const = 0;
  // Cache::Events, Cache::next_event.
  virtual absl::StatusOr<uint64_t> Events(uint64_t from, size_t most,
                                          std::vector<CacheEvent>* events) const = 0;
  virtual uint64_t next_event() const = 0;
};

struct BlockStoreOptions {
  // Leased for reads under way, all together, by one tenant eight ninths of it; 0: the cache's cap
  // only.
  uint64_t read_bytes_max = 0;
  uint64_t pin_bytes_max = 0;  // pinned by one tenant; 0: likewise
  // Writes tenant and salt into a client's part of a descriptor.
  std::function<absl::StatusOr<NamespaceDescriptor>(
      const std::string& tenant, const NamespaceDescriptor&, const NamespaceDigest&)>
      complete;
};
inline constexpr size_t kMaxPinsPerTenant = 4096;

// `cache` outlives it and the holds that it gave out.
std::unique_ptr<BlockStore> BlockStoreOf(Cache* cache, BlockStoreOptions options);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_BLOCK_STORE_H_
