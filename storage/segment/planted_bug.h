// Mistakes that tests make the log commit, one at a time, to show that the simulation would notice.
// No product sets one.
// THREADS: any.
#ifndef KVARVE_STORAGE_SEGMENT_PLANTED_BUG_H_
#define KVARVE_STORAGE_SEGMENT_PLANTED_BUG_H_

#include <cstdint>

namespace kvarve {

enum class PlantedBug : uint8_t {
  kNone,
  kReadUnverified,       // a read is not compared with its checksum
  kSealWithoutSync,      // a segment counts as sealed before it is durable
  kFramesBeforeHeader,   // frames are written before the header of a reused slot is
  kSealOverFailedFrame,  // a footer lists what was not written
  kFooterOfOldLife,      // recovery takes a footer that is not of the header's segment
  kWalkDropsLastFrame,   // recovery takes the last complete frame for a torn one
  kEpochReused,          // a start does not take a new epoch
  kFreeBeforeMoved,      // a reclaimed slot is reused before its survivors are durable
  kReclaimWhileRead,     // a slot is reused although somebody reads from it
  kErasesForgotten,      // reclaiming drops an erase that older segments still need
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_PLANTED_BUG_H_
