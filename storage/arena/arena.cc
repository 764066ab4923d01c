#include "storage/arena/arena.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/arena/chunk.h"
#include "storage/arena/extent.h"
#include "storage/arena/page_worker.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

// Invariants, after every public call:
//  - charged_bytes (chunks and draining ones) <= capacity_bytes, but after a shrink, until the
//  retiring chunks
//    are gone.
//  - An extent is assigned exactly while it has a slot in use; it is in its SizeClass exactly while
//  it also
//    has a free slot and its chunk is active.
//  - A pool's `roomy` holds exactly its active chunks that have an unassigned extent.
//  - A retiring chunk has a slot in use.
namespace kvarve {
namespace {

// What SlotRef can address.
constexpr uint32_t kMaxChunks = (1u << 20) - 1;  // the last index would make SlotRef::kNone
constexpr uint64_t kMaxChunkBytes = (1ull << 28) * kSlotUnitBytes;

struct Chunk {
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

struct PoolState {
  std::string name;
  std::map<uint64_t, SizeClass> classes;  // by slot size
  std::map<uint64_t, Chunk*> chunks;      // by id
  std::map<uint64_t, Chunk*> roomy;  // by id: the oldest is filled first, so that young ones can go
  uint64_t chunk_bytes = 0;
  uint64_t used_bytes = 0;
};

ChunkInfo InfoOf(const Chunk& chunk) {
  return {chunk.id,           chunk.index,   chunk.pool,
          chunk.memory->fd(), chunk.bytes(), chunk.memory->page_bytes(),
          chunk.state};
}

}  // namespace

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
  std::array<std::atomic<Leaf*>, (kMaxChunks + kLeaf) / kLeaf> leaves_{};
};

struct Arena::Rep {
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

// ---- Chunks.

bool Arena::Rep::MayAddChunk(uint64_t* bytes) const {
  if (charged_bytes >= capacity_bytes) return false;
  *bytes = std::min(options.chunk_bytes, capacity_bytes - charged_bytes);
  *bytes -= *bytes % kExtentBytes;
  return *bytes > 0 && (!free_indices.empty() || chunks.size() < kMaxChunks);
}

// Null when capacity, host or kernel say no.
Chunk* Arena::Rep::AddChunk(PoolId pool) {
  uint64_t bytes = 0;
  if (!MayAddChunk(&bytes)) {
    DropIdleChunkOfAnother(pool);
    if (!MayAddChunk(&bytes)) return nullptr;
  }
  if (options.available_bytes) {
    const uint64_t promised = untouched_extents * kExtentBytes;
    if (options.available_bytes() < promised + bytes) {
      DropIdleChunkOfAnother(pool);  // helps a later call: the host counts it when it is unmapped
      return nullptr;
    }
  }
  auto memory =
      ChunkMemory::Create(absl::StrFormat("kvarve-pool-%d", pool), bytes, options.hugetlb);
  if (!memory.ok()) return nullptr;

  auto chunk = std::make_unique<Chunk>();
  chunk->id = next_chunk_id++;
  chunk->pool = pool;
  chunk->memory = *std::move(memory);
  chunk->extents.resize(bytes / kExtentBytes);
  chunk->free_extents = static_cast<uint32_t>(chunk->extents.size());
  if (free_indices.empty()) {
    chunk->index = static_cast<uint32_t>(chunks.size());
    chunks.emplace_back();
  } else {
    chunk->index = *free_indices.begin();
    free_indices.erase(free_indices.begin());
  }
  for (uint32_t i = 0; i < chunk->extents.size(); ++i) {
    chunk->extents[i].chunk_index = chunk->index;
    chunk->extents[i].number = i;
  }
  Chunk* added = chunk.get();
  bases.Set(added->index, added->memory->base());
  pools[pool].chunks.emplace(added->id, added);
  pools[pool].roomy.emplace(added->id, added);
  pools[pool].chunk_bytes += bytes;
  charged_bytes += bytes;
  untouched_extents += added->extents.size();
  ++live_chunks;
  chunks[added->index] = std::move(chunk);
  epoch.fetch_add(1, std::memory_order_release);
  return added;
}

// REQUIRES: no slot in use.
void Arena::Rep::DropChunk(Chunk* chunk) {
  KV_CHECK(chunk->used_slots == 0);
  PoolState& pool = pools[chunk->pool];
  for (Extent& extent : chunk->extents) {
    KV_CHECK(!extent.assigned());
    if (!extent.touched) --untouched_extents;
  }
  pool.chunks.erase(chunk->id);
  pool.roomy.erase(chunk->id);
  pool.chunk_bytes -= chunk->bytes();
  if (options.hold_dropped) {
    dropped.push_back(InfoOf(*chunk));
    draining_bytes += chunk->bytes();
  } else {
    charged_bytes -= chunk->bytes();
  }
  bases.Set(chunk->index, nullptr);
  worker.Unmap(std::move(chunk->memory));
  free_indices.insert(chunk->index);
  --live_chunks;
  chunks[chunk->index].reset();
  epoch.fetch_add(1, std::memory_order_release);
}

// Makes room for a chunk of `pool` when one of another pool lies idle. What drains already will be
// room soon: then nothing more is dropped.
void Arena::Rep::DropIdleChunkOfAnother(PoolId pool) {
  if (draining_bytes > 0) return;
  for (auto& chunk : chunks) {
    if (chunk && chunk->pool != pool && chunk->used_slots == 0) {
      DropChunk(chunk.get());
      return;
    }
  }
}

// ---- Pages.

void Arena::Rep::Touch(Chunk* chunk, Extent* extent, bool in_use) {
  if (extent->touched) return;
  const bool queued =
      options.prefault &&
      worker.Populate(chunk->memory, extent->number * kExtentBytes, kExtentBytes, in_use);
  if (!queued && !in_use) return;
  extent->touched = true;
  --untouched_extents;
}

// The extent that FreshExtent would give next.
void Arena::Rep::TouchNext(PoolId pool) {
  if (pools[pool].roomy.empty()) return;
  Chunk* chunk = pools[pool].roomy.begin()->second;
  for (Extent& extent : chunk->extents) {
    if (!extent.assigned()) return Touch(chunk, &extent, /*in_use=*/false);
  }
}

// ---- Extents.

Extent* Arena::Rep::AssignExtent(Chunk* chunk, Extent* extent, uint64_t slot_bytes) {
  extent->Assign(slot_bytes);
  wasted_bytes += extent->tail_bytes();
  if (--chunk->free_extents == 0) pools[chunk->pool].roomy.erase(chunk->id);
  Touch(chunk, extent, /*in_use=*/true);
  TouchNext(chunk->pool);
  return extent;
}

// An unassigned extent, the first of a run of `extents_wanted` when one of the first chunks has
// such a run, else the first of the longest run there; from a new chunk when no chunk has room.
// Null: nothing left.
Extent* Arena::Rep::FreshExtent(PoolId pool, uint64_t slot_bytes, size_t extents_wanted) {
  constexpr int kMaxChunkProbes = 8;
  Chunk* best_chunk = nullptr;
  size_t best_first = 0, best_length = 0;
  int probes = 0;
  for (auto& [id, chunk] : pools[pool].roomy) {
    if (++probes > kMaxChunkProbes || best_length >= extents_wanted) break;
    for (size_t first = 0; first < chunk->extents.size(); ++first) {
      size_t end = first;
      while (end < chunk->extents.size() && !chunk->extents[end].assigned()) ++end;
      if (end - first > best_length) {
        best_chunk = chunk, best_first = first, best_length = end - first;
        if (best_length >= extents_wanted) break;
      }
      first = end;
    }
  }
  if (best_chunk == nullptr) {
    best_chunk = AddChunk(pool);
    best_first = 0;
  }
  if (best_chunk == nullptr) return nullptr;
  return AssignExtent(best_chunk, &best_chunk->extents[best_first], slot_bytes);
}

// The extent right behind `extent` when it is free and its slots go on without a gap.
Extent* Arena::Rep::FollowingExtent(const Extent& extent, uint64_t slot_bytes) {
  Chunk* chunk = chunks[extent.chunk_index].get();
  const uint32_t number = extent.number + 1;
  if (extent.tail_bytes() != 0 || number >= chunk->extents.size()) return nullptr;
  Extent* next = &chunk->extents[number];
  return next->assigned() ? nullptr : AssignExtent(chunk, next, slot_bytes);
}

// ---- Slots.

void Arena::Rep::Take(Extent* extent, SlotRun run, std::vector<SlotRef>* out) {
  extent->Take(run);
  Chunk* chunk = chunks[extent->chunk_index].get();
  PoolState& pool = pools[chunk->pool];
  const uint64_t bytes = run.count * extent->slot_bytes();
  chunk->used_slots += run.count;
  chunk->used_bytes += bytes;
  pool.used_bytes += bytes;
  used_bytes += bytes;
  const uint64_t start = extent->number * kExtentBytes;
  for (uint32_t slot = run.first; slot < run.first + run.count; ++slot) {
    out->push_back(SlotRef::Of(chunk->index, start + slot * extent->slot_bytes()));
  }
  pool.classes[extent->slot_bytes()].Update(extent);
}

// Up to `count` free slots of the extent, run after run.
void Arena::Rep::TakeScattered(Extent* extent, size_t count, std::vector<SlotRef>* out) {
  while (count > 0 && extent->free_slots() > 0) {
    SlotRun run = extent->FindRun(static_cast<uint32_t>(std::min<size_t>(count, extent->slots())));
    run.count = static_cast<uint32_t>(std::min<size_t>(count, run.count));
    Take(extent, run, out);
    count -= run.count;
  }
}

void Arena::Rep::Retire(Chunk* chunk) {
  if (chunk->state == ChunkState::kRetiring) return;
  chunk->state = ChunkState::kRetiring;
  pools[chunk->pool].roomy.erase(chunk->id);
  for (Extent& extent : chunk->extents) {
    if (extent.assigned()) pools[chunk->pool].classes[extent.slot_bytes()].Update(&extent, true);
  }
  if (chunk->used_slots == 0) DropChunk(chunk);
}

// ---- Public.

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(const ArenaOptions& options) {
  if (options.capacity_bytes < kExtentBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("arena capacity of %s is below one extent (%s)",
                        FormatBytes(options.capacity_bytes), FormatBytes(kExtentBytes)));
  }
  if (options.chunk_bytes == 0 || options.chunk_bytes % kExtentBytes != 0 ||
      options.chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "arena chunk size of %d bytes is not a multiple of %s, or above %s", options.chunk_bytes,
        FormatBytes(kExtentBytes), FormatBytes(kMaxChunkBytes)));
  }
  auto rep = std::make_unique<Rep>();
  rep->options = options;
  rep->capacity_bytes = options.capacity_bytes;
  return std::unique_ptr<Arena>(new Arena(std::move(rep)));
}

Arena::Arena(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Arena::~Arena() = default;

PoolId Arena::AddPool(std::string name) {
  rep_->pools.emplace_back().name = std::move(name);
  return static_cast<PoolId>(rep_->pools.size() - 1);
}

size_t Arena::Allocate(PoolId pool, uint64_t bytes, size_t count, std::vector<SlotRef>* out) {
  KV_CHECK(pool < rep_->pools.size() && bytes > 0 && bytes <= kExtentBytes);
  const uint64_t slot_bytes = RoundUp(bytes, kSlotUnitBytes);
  const uint64_t per_extent = kExtentBytes / slot_bytes;
  SizeClass& same_size = rep_->pools[pool].classes[slot_bytes];
  const size_t before = out->size();
  Extent* last = nullptr;  // what this call took from last, to its end
  for (size_t left = count; left > 0; left = count - (out->size() - before)) {
    const auto want = static_cast<uint32_t>(std::min<uint64_t>(left, per_extent));
    SlotRun run{0, want};
    // In this order: go on behind the last slot; a run that is long enough in an extent of this
    // size; a fresh extent, for which a chunk may be made; whatever is left.
    Extent* extent = last == nullptr ? nullptr : rep_->FollowingExtent(*last, slot_bytes);
    if (extent == nullptr) {
      extent = same_size.FindWithRun(want, &run);
      run.count = std::min(run.count, want);
    }
    if (extent == nullptr) {
      run = {0, want};
      extent = rep_->FreshExtent(pool, slot_bytes, (left + per_extent - 1) / per_extent);
    }
    if (extent != nullptr) {
      rep_->Take(extent, run, out);
      last = run.first + run.count == extent->slots() ? extent : nullptr;
      continue;
    }
    extent = same_size.Roomiest();
    if (extent == nullptr) break;
    rep_->TakeScattered(extent, left, out);
    last = nullptr;
  }
  return out->size() - before;
}

void Arena::Free(SlotRef slot) {
  const auto [extent, number] = rep_->Locate(slot);
  Chunk* chunk = rep_->ChunkOf(slot);
  PoolState& pool = rep_->pools[chunk->pool];
  const uint64_t bytes = extent->slot_bytes();
  const bool active = chunk->state == ChunkState::kActive;
  extent->Release(number);
  chunk->used_slots -= 1;
  chunk->used_bytes -= bytes;
  pool.used_bytes -= bytes;
  rep_->used_bytes -= bytes;
  if (active) pool.classes[bytes].Update(extent);
  if (extent->used_slots() > 0) return;
  rep_->wasted_bytes -= extent->tail_bytes();
  extent->Unassign();
  ++chunk->free_extents;
  if (active) {
    pool.roomy.emplace(chunk->id, chunk);
  } else if (chunk->used_slots == 0) {
    rep_->DropChunk(chunk);
  }
}

void Arena::SetOwner(SlotRef slot, uint32_t owner) {
  const auto [extent, number] = rep_->Locate(slot);
  extent->SetOwner(number, owner);
}

uint32_t Arena::Owner(SlotRef slot) const {
  const auto [extent, number] = rep_->Locate(slot);
  return extent->owner(number);
}

std::byte* Arena::Data(SlotRef slot) const {
  std::byte* base = rep_->bases.Get(slot.chunk_index());
  KV_CHECK(slot.valid() && base != nullptr);
  return base + slot.offset();
}

uint64_t Arena::ChunkId(SlotRef slot) const { return rep_->ChunkOf(slot)->id; }
PoolId Arena::Pool(SlotRef slot) const { return rep_->ChunkOf(slot)->pool; }
bool Arena::IsRetiring(SlotRef slot) const {
  return rep_->ChunkOf(slot)->state == ChunkState::kRetiring;
}

std::vector<uint32_t> Arena::OwnersInExtent(SlotRef slot) const {
  std::vector<uint32_t> owners;
  rep_->Locate(slot).first->AppendOwners(&owners);
  return owners;
}

std::vector<uint32_t> Arena::OwnersInChunk(uint32_t chunk_index) const {
  std::vector<uint32_t> owners;
  if (chunk_index >= rep_->chunks.size() || !rep_->chunks[chunk_index]) return owners;
  for (const Extent& extent : rep_->chunks[chunk_index]->extents) extent.AppendOwners(&owners);
  return owners;
}

void Arena::RetireChunk(uint32_t chunk_index) {
  KV_CHECK(chunk_index < rep_->chunks.size() && rep_->chunks[chunk_index]);
  rep_->Retire(rep_->chunks[chunk_index].get());
}

absl::StatusOr<std::vector<uint32_t>> Arena::SetCapacity(uint64_t capacity_bytes) {
  if (capacity_bytes < kExtentBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("arena capacity of %s is below one extent (%s)",
                        FormatBytes(capacity_bytes), FormatBytes(kExtentBytes)));
  }
  rep_->capacity_bytes = capacity_bytes;
  uint64_t staying = 0;
  std::vector<Chunk*> active;
  for (auto& chunk : rep_->chunks) {
    if (!chunk || chunk->state != ChunkState::kActive) continue;
    staying += chunk->bytes();
    active.push_back(chunk.get());
  }
  std::sort(active.begin(), active.end(), [](const Chunk* a, const Chunk* b) {
    return std::pair(a->used_bytes, b->id) < std::pair(b->used_bytes, a->id);
  });
  std::vector<uint32_t> retired;
  for (Chunk* chunk : active) {
    if (staying <= capacity_bytes) break;
    staying -= chunk->bytes();
    const uint32_t index = chunk->index;
    rep_->Retire(chunk);
    if (rep_->chunks[index]) retired.push_back(index);
  }
  return retired;
}

uint64_t Arena::chunk_epoch() const { return rep_->epoch.load(std::memory_order_acquire); }

std::vector<ChunkInfo> Arena::Chunks(PoolId pool) const {
  KV_CHECK(pool < rep_->pools.size());
  std::vector<ChunkInfo> infos;
  for (const auto& [id, chunk] : rep_->pools[pool].chunks) infos.push_back(InfoOf(*chunk));
  return infos;
}

std::vector<ChunkInfo> Arena::Dropped() const { return rep_->dropped; }

void Arena::ForgetDropped(uint64_t chunk_id) {
  auto at = std::find_if(rep_->dropped.begin(), rep_->dropped.end(),
                         [&](const ChunkInfo& info) { return info.id == chunk_id; });
  if (at == rep_->dropped.end()) return;
  rep_->charged_bytes -= at->bytes;
  rep_->draining_bytes -= at->bytes;
  rep_->dropped.erase(at);
}

void Arena::WaitPrefaulted() { rep_->worker.Drain(); }

PoolUsage Arena::Usage(PoolId pool) const {
  KV_CHECK(pool < rep_->pools.size());
  return {rep_->pools[pool].chunk_bytes, rep_->pools[pool].used_bytes};
}

ArenaStats Arena::Stats() const {
  ArenaStats stats;
  stats.capacity_bytes = rep_->capacity_bytes;
  stats.chunk_bytes = rep_->charged_bytes;
  stats.used_bytes = rep_->used_bytes;
  stats.wasted_bytes = rep_->wasted_bytes;
  stats.draining_bytes = rep_->draining_bytes;
  stats.chunks = rep_->live_chunks;
  stats.pools = static_cast<uint32_t>(rep_->pools.size());
  return stats;
}

}  // namespace kvarve
