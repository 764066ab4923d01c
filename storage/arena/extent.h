// One extent: kExtentBytes of a chunk, cut into slots of one exact size. Which slots are in use,
// and who owns each. Extents of one slot size with room are kept in a SizeClass, by how much room
// they have.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_ARENA_EXTENT_H_
#define KVARVE_STORAGE_ARENA_EXTENT_H_

#include <array>
#include <cstdint>
#include <vector>

#include "storage/arena/arena.h"

namespace kvarve {

class SizeClass;

// Slots [first, first + count) of an extent.
struct SlotRun {
  uint32_t first = 0;
  uint32_t count = 0;
};

class Extent {
 public:
  // Of the chunk that it lies in; fixed.
  uint32_t chunk_index = 0;
  uint32_t number = 0;
  // Pages were asked for, or the extent was in use: its memory is no promise any more.
  bool touched = false;

  bool assigned() const { return slot_bytes_ != 0; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slots() const { return slots_; }
  uint32_t free_slots() const { return free_slots_; }
  uint32_t used_slots() const { return slots_ - free_slots_; }
  uint64_t tail_bytes() const { return assigned() ? kExtentBytes - slots_ * slot_bytes_ : 0; }

  // REQUIRES: not assigned / assigned and no slot in use.
  void Assign(uint64_t slot_bytes);
  void Unassign();

  // The shortest free run of at least `count` slots, or the longest run when none is that long.
  // REQUIRES: free_slots() > 0.
  SlotRun FindRun(uint32_t count) const;

  bool used(uint32_t slot) const { return used_[slot / 64] >> (slot % 64) & 1; }
  // REQUIRES: all free / in use.
  void Take(SlotRun run);
  void Release(uint32_t slot);

  void SetOwner(uint32_t slot, uint32_t owner) { owners_[slot] = owner; }
  uint32_t owner(uint32_t slot) const { return owners_[slot]; }
  void AppendOwners(std::vector<uint32_t>* out) const;

 private:
  friend class SizeClass;

  uint32_t NextFree(uint32_t from) const;
  uint32_t NextUsed(uint32_t from) const;

  uint64_t slot_bytes_ = 0;  // 0: not assigned
  uint32_t slots_ = 0;
  uint32_t free_slots_ = 0;
  std::vector<uint64_t> used_;
  std::vector<uint32_t> owners_;
  // Of the SizeClass's list.
  Extent* previous_ = nullptr;
  Extent* next_ = nullptr;
  int bucket_ = -1;
};

// The extents of one (pool, slot size) that have both used and free slots, in buckets by the
// logarithm of their free slots.
class SizeClass {
 public:
  // Puts the extent where its free slots say, or takes it out when it is full, empty or `out`.
  void Update(Extent* extent, bool out = false);

  // A free run of at least `count` slots in the fullest extents that may have one; looks at no more
  // than kMaxProbes extents of a bucket. Null: none seen.
  Extent* FindWithRun(uint32_t count, SlotRun* run) const;
  // The extent with about the most free slots; null: none.
  Extent* Roomiest() const;

 private:
  static constexpr int kBuckets = 14;  // 2^13 slots of 4 KiB is an extent
  static constexpr int kMaxProbes = 4;

  std::array<Extent*, kBuckets> heads_{};
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_EXTENT_H_
