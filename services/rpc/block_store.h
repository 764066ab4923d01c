// What the gRPC services ask of the node: the seam between the wire and the store. Data streams
// join here with two more calls (reading leased blocks, writing a chain). THREADS: any.  BLOCKS:
// never on I/O.
#ifndef KVARVE_SERVICES_RPC_BLOCK_STORE_H_
#define KVARVE_SERVICES_RPC_BLOCK_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"
#include "storage/cache/cache.h"

namespace kvarve {

class BlockStore {
 public:
  virtual ~BlockStore() = default;

  virtual uint64_t incarnation() const = 0;
  // NotFound: nobody opened it on this node.
  virtual absl::StatusOr<NamespaceInfo> FindNamespace(const NamespaceId& id) = 0;
  virtual std::vector<NamespaceInfo> Namespaces() const = 0;

  // REQUIRES: an open handle, keys.size() <= kMaxKeysPerCall (here and below).
  virtual size_t Lookup(NamespaceHandle ns, std::span<const BlockKey> keys) = 0;
  virtual uint64_t Invalidate(NamespaceHandle ns) = 0;
  virtual uint64_t InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys) = 0;
  virtual CacheStats Stats() const = 0;
};

// `cache` outlives it.
std::unique_ptr<BlockStore> BlockStoreOf(Cache* cache);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_BLOCK_STORE_H_
