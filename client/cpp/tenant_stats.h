// What a tenant has on a daemon and did there. A value: THREADS: any.
#ifndef KVARVE_CLIENT_CPP_TENANT_STATS_H_
#define KVARVE_CLIENT_CPP_TENANT_STATS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "storage/block/namespace.h"

namespace kvarve {

struct TenantNamespace {
  NamespaceId id;
  std::string tenant, model;
  uint64_t block_bytes = 0;
  uint32_t key_bytes = 0;
};

struct TenantStats {
  std::string daemon_version;
  uint64_t incarnation = 0;
  // The node's; all else is the tenant's.
  uint64_t capacity_bytes = 0, chunk_bytes = 0;
  uint64_t used_bytes = 0, leased_bytes = 0, blocks = 0;
  // Since the daemon's start.
  uint64_t lookups = 0, lookup_keys = 0;
  uint64_t hit_blocks = 0, miss_blocks = 0, hit_bytes = 0;
  uint64_t stored_blocks = 0, stored_bytes = 0, evicted_blocks = 0;
  std::vector<TenantNamespace> namespaces;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_TENANT_STATS_H_
