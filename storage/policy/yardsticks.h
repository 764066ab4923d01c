// Reference policies over the ids of a trace, to compare with: they know no chains (an id is one
// block, whoever its parent is) and put every block of every request. Of a request only the leading
// blocks found are hits. THREADS: any.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_YARDSTICKS_H_
#define KVARVE_STORAGE_POLICY_YARDSTICKS_H_

#include <cstdint>

#include "storage/policy/trace.h"

namespace kvarve {

// Least recently used; leaf first: a request's blocks are touched from the last to the first.
double LruHitRatio(const Trace& trace, uint64_t capacity, bool leaf_first);
// Small queue of a tenth, as many ghosts as the capacity (Yang et al., SOSP 2023).
double S3FifoHitRatio(const Trace& trace, uint64_t capacity);
// Belady's minimum for each block by itself; what is never used again is not kept. It knows the
// future; a bound where ids are chained.
double BeladyHitRatio(const Trace& trace, uint64_t capacity);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_YARDSTICKS_H_
