// The host tier's memory. A pool per security domain (tenant) is a list of chunks; a chunk is a
// memfd that same-host clients map read-only, sealed against growing, shrinking and any new
// writable mapping. A chunk is cut into extents, an extent into slots of one exact size. Memory is
// given and taken by whole chunks (a sealed memfd cannot punch holes). Descriptors live in private
// heap, never in the shared memory.
//
// THREADS: externally synchronised (the cache's mutex), except where a method says otherwise.
// BLOCKS: Allocate may create a memfd and map it (microseconds); pages are touched by the arena's
// own
//         prefault thread or by the first copy.
#ifndef KVARVE_STORAGE_ARENA_ARENA_H_
#define KVARVE_STORAGE_ARENA_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

inline constexpr uint64_t kSlotUnitBytes = 4096;
inline constexpr uint64_t kExtentBytes = 32ull << 20;

using PoolId = uint32_t;
inline constexpr uint32_t kNoOwner = 0xffffffffu;

// A slot's address, packed in 48 bits: chunk index (20 bits, reused) and offset in units of 4 KiB
// (28).
struct SlotRef {
  uint64_t packed = kNone;
  static constexpr uint64_t kNone = (1ull << 48) - 1;
  static SlotRef Of(uint32_t chunk_index, uint64_t offset) {
    return {uint64_t{chunk_index} << 28 | offset / kSlotUnitBytes};
  }
  uint32_t chunk_index() const { return static_cast<uint32_t>(packed >> 28); }
  uint64_t offset() const { return (packed & ((1ull << 28) - 1)) * kSlotUnitBytes; }
  bool valid() const { return packed != kNone; }
  friend bool operator==(SlotRef, SlotRef) = default;
};

enum class ChunkState { kActive, kRetiring };

// What a client needs to map a chunk. `id` is never reused within one daemon; `index` is.
struct ChunkInfo {
  uint64_t id = 0;
  uint32_t index = 0;
  PoolId pool = 0;
  std::shared_ptr<const UniqueFd> fd;  // O_RDONLY re-open of the sealed memfd
  uint64_t bytes = 0;
  uint64_t page_bytes = 0;  // of what was made present last: 2 MiB or 4096
  ChunkState state = ChunkState::kActive;
};

struct ArenaOptions {
  uint64_t capacity_bytes = 0;
  uint64_t chunk_bytes =
      256ull << 20;        // multiple of kExtentBytes; cut to the capacity when that is smaller
  bool huge_pages = true;  // of 2 MiB: reserved ones when there are enough, else by MADV_COLLAPSE
  bool prefault = true;    // touch pages of new chunks in a background thread
  bool hold_dropped = false;  // see Dropped()
  bool is_writable = false;   // whoever gets a chunk's descriptor can map it writable
  // Bytes that the host can still give (MemAvailable and the cgroup); asked before a chunk is made,
  // and asked again by each Allocate that gets none. Null: no limit but the capacity.
  std::function<uint64_t()> available_bytes;
  // Of pages that were touched ahead of their need, and of whole chunks before they are unmapped.
  // Called on the arena's own thread.
  std::function<void(std::byte*base, size_t bytes)> on_present, on_unmap;
};

struct ArenaStats {
  uint64_t capacity_bytes = 0;
  uint64_t chunk_bytes = 0;     // of all chunks, retiring ones and draining ones included
  uint64_t used_bytes = 0;      // slots in use, rounded sizes
  uint64_t wasted_bytes = 0;    // tails of extents that no slot fits in
  uint64_t draining_bytes = 0;  // dropped by us, still mapped by some client
  uint32_t chunks = 0;
  uint32_t pools = 0;
};

struct PoolUsage {
  uint64_t chunk_bytes = 0;  // retiring chunks included
  uint64_t used_bytes = 0;
};

class Arena {
 public:
  // InvalidArgument: capacity below one extent, chunk size not a multiple of kExtentBytes.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(const ArenaOptions& options);
  ~Arena();

  PoolId AddPool(std::string name);

  // Takes up to `count` slots of exactly RoundUp(bytes, 4 KiB); prefers one contiguous ascending
  // run, then few runs. Appends to `out`, returns how many (fewer, or 0, when pool and capacity are
  // full). Never evicts. REQUIRES: 0 < bytes <= kExtentBytes.
  size_t Allocate(PoolId pool, uint64_t bytes, size_t count, std::vector<SlotRef>* out);
  // REQUIRES: `slot` is in use (KV_CHECK). An extent whose last slot goes becomes free for any
  // size; a retiring chunk whose last slot goes is dropped at once.
  void Free(SlotRef slot);

  // The 32-bit owner that the caller attaches to a slot in use (an entry of the index), for
  // reclaiming.
  void SetOwner(SlotRef slot, uint32_t owner);
  uint32_t Owner(SlotRef slot) const;

  // Start of the slot's bytes; writable only in this process. THREADS: any, while the slot is in
  // use.
  std::byte* Data(SlotRef slot) const;
  uint64_t ChunkId(SlotRef slot) const;
  PoolId Pool(SlotRef slot) const;
  bool IsRetiring(SlotRef slot) const;  // its chunk goes with its last slot

  // Owners of all slots in use in the extent (or chunk) of `slot`: what has to go to free it whole.
  std::vector<uint32_t> OwnersInExtent(SlotRef slot) const;
  std::vector<uint32_t> OwnersInChunk(uint32_t chunk_index) const;
  // No more allocations from the chunk; dropped when its last slot is freed (at once if none).
  void RetireChunk(uint32_t chunk_index);

  // Growing takes effect for later allocations. Shrinking retires whole chunks, emptiest first,
  // until the rest fits; returns the indices of those that still hold slots: the caller evicts
  // OwnersInChunk of each. InvalidArgument below one extent.
  absl::StatusOr<std::vector<uint32_t>> SetCapacity(uint64_t capacity_bytes);

  // Changes whenever a chunk is added or dropped. THREADS: any (atomic).
  uint64_t chunk_epoch() const;
  std::vector<ChunkInfo> Chunks(PoolId pool) const;
  // With hold_dropped, a dropped chunk stays charged to the capacity (draining) until the local
  // plane says that no client maps it any more.
  std::vector<ChunkInfo> Dropped() const;
  void ForgetDropped(uint64_t chunk_id);

  ArenaStats Stats() const;
  PoolUsage Usage(PoolId pool) const;

  // Waits until the pages asked for so far are touched and dropped chunks are unmapped (tests,
  // benches). THREADS: any.
  void WaitPrefaulted();

 private:
  struct Rep;
  explicit Arena(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_ARENA_H_
