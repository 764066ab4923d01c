// The arena's state and the steps that its operations share. Private to storage/arena.
//
// Invariants, after every public call:
//  * charged_bytes (chunks and draining ones) <= capacity_bytes, but after a shrink, until the
//  retiring chunks are gone;
//  * an extent is assigned exactly while it has a slot in use; it is in its SizeClass exactly while
//  it also has a free slot and its chunk is active;
//  * a pool's `roomy` holds exactly its active chunks that have an unassigned extent;
//  * a retiring chunk has a slot in use.
// THREADS: externally synchronised; `bases` and `epoch` are read by any.
#ifndef KVARVE_STORAGE_ARENA_ARENA_REP_H_
#define KVARVE_STORAGE_ARENA_ARENA_REP_H_

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/arena/arena.h"
#include "storage/arena/chunk.h"
#include "storage/arena/extent.h"
#include "storage/arena/page_worker.h"
#include "storage/base/status_macros.h"

namespace kvarve {

// What SlotRef can address.
inline constexpr uint32_t kMaxArenaChunks =
    (1u << 20) - 1;  // the last index would make SlotRef::kNone
inline constexpr uint64_t kMaxChunkBytes = (1ull << 28) * kSlotUnitBytes;

struct ArenaChunk {
  uint64_t id = 0;
  uint32_t index = 0;
  PoolId pool = 0;
  ChunkState state = ChunkState::kActive;
  std::shared_ptr<ChunkMemory> memory;
  std::vector<Extent> extents;  // never resized: SizeClass points into it
  uint32_t free_extents = 0;
  uint64_t used_slots = 0;
  uint64_t used_bytes = 0;

  uint64_t bytes() const { return extents.size() * kExtentBytes; }
};

struct ArenaPool {
  std::string name;
  std::map<uint64_t, SizeClass> classes;   // by slot size
  std::map<uint64_t, ArenaChunk*> chunks;  // by id
  std::map<uint64_t, ArenaChunk*>
      roomy;  // by id: the oldest is filled first, so that young ones can go
  uint64_t chunk_bytes = 0;
  uint64_t used_bytes = 0;
};

inline ChunkInfo InfoOf(const ArenaChunk& chunk) {
  return {chunk.id,           chunk.index,   chunk.pool,
          chunk.memory->fd(), chunk.bytes(), chunk.memory->page_bytes(),
          chunk.state};
}

// Chunk index -> start of its memory, for readers without a lock. A reader holds a slot in use, so
// its chunk's entry was published before it got the slot, and stays until the slot is freed.
class BaseTable {
 public:
  BaseTable() = default;
  ~BaseTable() {
    for (auto& leaf : leaves_) delete leaf.load(std::memory_order_relaxed);
  }
  void Set(uint32_t index, std::byte* base) {
    std::atomic<Leaf*>& leaf = leaves_[index / kLeaf];
    if (leaf.load(std::memory_order_relaxed) == nullptr) {
      leaf.store(new Leaf(), std::memory_order_release);
    }
    (*leaf.load(std::memory_order_relaxed))[index % kLeaf].store(base, std::memory_order_release);
  }
  std::byte* Get(uint32_t index) const {
    const Leaf* leaf = leaves_[index / kLeaf].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : (*leaf)[index % kLeaf].load(std::memory_order_acquire);
  }

 private:
  static constexpr uint32_t kLeaf = 1024;
  using Leaf = std::array<std::atomic<std::byte*>, kLeaf>;
  std::array<std::atomic<Leaf*>, (kMaxArenaChunks + kLeaf) / kLeaf> leaves_{};
};

struct Arena::Rep {
  using Chunk = ArenaChunk;
  using PoolState = ArenaPool;

  explicit Rep(const ArenaOptions& with)
      : options(with), worker(options.on_present, options.on_unmap) {}

  ArenaOptions options;
  uint64_t capacity_bytes = 0;
  uint64_t charged_bytes = 0;   // of `chunks` and `dropped`
  uint64_t draining_bytes = 0;  // of `dropped`
  uint64_t used_bytes = 0;
  uint64_t wasted_bytes = 0;
  uint64_t untouched_extents = 0;  // memory that is promised but not taken from the host yet
  uint64_t next_chunk_id = 1;
  std::vector<std::unique_ptr<Chunk>> chunks;  // by index; null: free
  std::set<uint32_t> free_indices;
  uint32_t live_chunks = 0;
  std::vector<PoolState> pools;
  std::vector<ChunkInfo> dropped;
  std::atomic<uint64_t> epoch{0};
  BaseTable bases;
  PageWorker worker;  // last: its thread ends first

  Chunk* ChunkOf(SlotRef slot) const {
    KV_CHECK(slot.valid() && slot.chunk_index() < chunks.size() && chunks[slot.chunk_index()]);
    return chunks[slot.chunk_index()].get();
  }

  // The extent and the number of a slot in use.
  std::pair<Extent*, uint32_t> Locate(SlotRef slot) const {
    Chunk* chunk = ChunkOf(slot);
    const uint64_t number = slot.offset() / kExtentBytes;
    KV_CHECK(number < chunk->extents.size());
    Extent* extent = &chunk->extents[number];
    const uint64_t within = slot.offset() % kExtentBytes;
    KV_CHECK(extent->assigned() && within % extent->slot_bytes() == 0);
    const auto index = static_cast<uint32_t>(within / extent->slot_bytes());
    KV_CHECK(index < extent->slots() && extent->used(index));
    return {extent, index};
  }

  bool MayAddChunk(uint64_t* bytes) const;
  Chunk* AddChunk(PoolId pool);
  void DropChunk(Chunk* chunk);
  void DropIdleChunkOfAnother(PoolId pool);

  void Touch(Chunk* chunk, Extent* extent, bool in_use);
  void TouchNext(PoolId pool);
  Extent* AssignExtent(Chunk* chunk, Extent* extent, uint64_t slot_bytes);
  Extent* FreshExtent(PoolId pool, uint64_t slot_bytes, size_t extents_wanted);
  Extent* FollowingExtent(const Extent& extent, uint64_t slot_bytes);
  void Take(Extent* extent, SlotRun run, std::vector<SlotRef>* out);
  void TakeScattered(Extent* extent, size_t count, std::vector<SlotRef>* out);
  void Retire(Chunk* chunk);
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_ARENA_REP_H_
