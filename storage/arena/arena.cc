// Extents and slots, and what is asked of the whole arena.
#include "storage/arena/arena.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/arena/arena_rep.h"
#include "storage/base/units.h"

namespace kvarve {

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
  auto rep = std::make_unique<Rep>(options);
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
  ArenaChunk* chunk = rep_->ChunkOf(slot);
  ArenaPool& pool = rep_->pools[chunk->pool];
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
