// "hazard": who leaves is the evictable block whose keeping is worth least, by what is learned of
// reuse (ReuseModel) and by the cost of computing it again; of those that are worth about the same
// (within 20 %) the longest untouched.
//
// The victim is the least of a random sample of the group's evictable blocks, of all of them where
// they are no more than the sample. Until something is learned all blocks are worth the same, so
// that it is leaf-first LRU and admits everything. A block comes in unless the victim is worth
// clearly more. All blocks of a group have the same bytes, so that worth a byte is worth.
//
// A touch, the first one of a block in a request, counts a reuse and no more. A block that comes or
// is refused also looks at `census` blocks for the running census, or fits one class: O(1). Ghosts:
// at most 4 a resident, each of a run of blocks (GhostRuns); 93 bytes a resident with them, and
// 200 KiB of tables. Deterministic for a seed.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_HAZARD_POLICY_H_
#define KVARVE_STORAGE_POLICY_HAZARD_POLICY_H_

#include <cstdint>
#include <memory>

#include "storage/policy/eviction_policy.h"
#include "storage/policy/reuse_model.h"

namespace kvarve {

struct HazardOptions {
  uint32_t sample = 32;
  uint32_t census = 64;       // blocks looked at by a newcomer, while a census runs
  uint64_t first_fit = 500;   // accesses before the first census
  uint64_t fit_every = 2000;  // accesses between a fit and the next census
  // Worths that differ by less than this are equal: they are estimates, and recency is a better
  // guide between them.
  double tie = 1.2;
  ReuseOptions reuse;
  uint64_t seed = 8;
};

std::unique_ptr<EvictionPolicy> NewHazardPolicy(const HazardOptions& options = {});

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_HAZARD_POLICY_H_
