// Chunks: how they come and go, and their pages.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/arena/arena_rep.h"
#include "storage/base/units.h"

namespace kvarve {

bool Arena::Rep::MayAddChunk(uint64_t* bytes) const {
  if (charged_bytes >= capacity_bytes) return false;
  *bytes = std::min(options.chunk_bytes, capacity_bytes - charged_bytes);
  *bytes -= *bytes % kExtentBytes;
  return *bytes > 0 && (!free_indices.empty() || chunks.size() < kMaxArenaChunks);
}

// Null when capacity, host or kernel say no.
ArenaChunk* Arena::Rep::AddChunk(PoolId pool) {
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
  auto memory = ChunkMemory::Create(absl::StrFormat("kvarve-pool-%d", pool), bytes,
                                    options.huge_pages, options.is_writable);
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

void Arena::Rep::Retire(Chunk* chunk) {
  if (chunk->state == ChunkState::kRetiring) return;
  chunk->state = ChunkState::kRetiring;
  pools[chunk->pool].roomy.erase(chunk->id);
  for (Extent& extent : chunk->extents) {
    if (extent.assigned()) pools[chunk->pool].classes[extent.slot_bytes()].Update(&extent, true);
  }
  if (chunk->used_slots == 0) DropChunk(chunk);
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
  std::vector<ArenaChunk*> active;
  for (auto& chunk : rep_->chunks) {
    if (!chunk || chunk->state != ChunkState::kActive) continue;
    staying += chunk->bytes();
    active.push_back(chunk.get());
  }
  std::sort(active.begin(), active.end(), [](const ArenaChunk* a, const ArenaChunk* b) {
    return std::pair(a->used_bytes, b->id) < std::pair(b->used_bytes, a->id);
  });
  std::vector<uint32_t> retired;
  for (ArenaChunk* chunk : active) {
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

}  // namespace kvarve
