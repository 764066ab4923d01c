// Mistakes that tests make the NVMe tier commit, one at a time, to show that the checks would
// notice (the log has its own, storage/segment/planted_bug.h). No product sets one. THREADS: any.
#ifndef KVARVE_STORAGE_CACHE_PLANTED_TIER_BUG_H_
#define KVARVE_STORAGE_CACHE_PLANTED_TIER_BUG_H_

#include <cstdint>

namespace kvarve {

enum class PlantedTierBug : uint8_t {
  kNone,
  // Recovery
  kErasesIgnored,         // what was erased counts as living
  kFirstNamespaceForAll,  // records of a segment count as of the first namespace in it
  // Reclaiming
  kReclaimedStays,  // blocks of a segment that ended are still found
  kHotNotKept,      // nothing is carried on
  // Single flight
  kFailedIsPublished,       // what was read is not heeded to have failed
  kFailedFlightIsBelieved,  // who waits does not look whether the block came
  kLandsBeforePublished,    // waiters are told before the blocks can be found
  // Writing
  kClearedArrives,  // a block that was invalidated on its way is found when it has arrived
  kStaleIsWritten,  // and, queued behind the erase, is written after it
  kDirtyUncounted,  // what is on its way has no bound
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_PLANTED_TIER_BUG_H_
