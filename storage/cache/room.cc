// Room for new blocks: who leaves, and how a whole extent or chunk changes hands.
#include <algorithm>

#include "storage/base/status_macros.h"
#include "storage/cache/cache_rep.h"

namespace kvarve {
namespace {

// One put's search for room ends after so many steps, whatever it found.
constexpr int kMaxRoomSteps = 4096;
// And looks at so many extents of other slot sizes that a lease or a put in progress keeps.
constexpr size_t kMaxKeptExtents = 16;

}  // namespace

void Cache::Rep::AllocateWithRoom(const NamespaceRecord& ns, size_t count,
                                  std::vector<SlotRef>* slots) {
  const size_t want = slots->size() + count;
  KeptExtents kept;
  for (int step = 0; step < kMaxRoomSteps; ++step) {
    arena->Allocate(ns.info.pool, SlotBytes(ns), want - slots->size(), slots);
    const size_t missing = want - slots->size();
    if (missing == 0) break;
    if (StealChunk(ns.info.pool)) continue;
    // As many as are missing at once, so that neighbours freed together can be given out as one
    // run.
    size_t made = 0;
    while (made < missing && MakeRoom(ns, &kept)) ++made;
    if (made == 0) break;
  }
  for (const EntryId id : kept.set_aside) {  // ids are not given out again meanwhile
    const IndexEntry& entry = index->Get(id);
    if (entry.used && entry.live && index->IsLeaf(id)) policy->OnEvictable(id, true);
  }
  reserved_slots += slots->size() - (want - count);
}

// Inside a pool the oldest victim decides: if it has another slot size, its whole extent goes,
// since one slot of another size would help nobody; and if part of that extent must stay, none of
// it goes.
bool Cache::Rep::MakeRoom(const NamespaceRecord& ns, KeptExtents* kept) {
  const EntryId own = VictimOf(ns.group);
  while (kept->extents < kMaxKeptExtents) {
    const EntryId other = OldestVictim(ns.info.pool, ns.group);
    if (other == kNoEntry) break;
    if (own != kNoEntry && policy->LastTouch(own) < policy->LastTouch(other)) break;
    if (ReclaimExtentOf(other, kept)) return true;
  }
  if (own == kNoEntry) return false;
  Remove(own);
  ++counters.evicted_blocks;
  return true;
}

// Leasing tells the policy nothing, so that a read costs it no more than the touch: leased entries
// are taken out of its candidates here, and put back when their last lease ends.
EntryId Cache::Rep::VictimOf(uint32_t group) {
  while (true) {
    const EntryId victim = policy->Victim(group);
    if (victim == kNoEntry || index->Get(victim).leases == 0) return victim;
    policy->OnEvictable(victim, false);
  }
}

EntryId Cache::Rep::OldestVictim(PoolId pool, uint32_t except_group) {
  EntryId oldest = kNoEntry;
  for (auto it = groups.lower_bound({pool, 0}); it != groups.end() && it->first.first == pool;
       ++it) {
    if (it->second == except_group) continue;
    const EntryId victim = VictimOf(it->second);
    if (victim == kNoEntry) continue;
    if (oldest == kNoEntry || policy->LastTouch(victim) < policy->LastTouch(oldest))
      oldest = victim;
  }
  return oldest;
}

// False, and nothing removed, when a lease or a put in progress keeps part of the extent: then its
// other blocks are no victims for the rest of this search.
bool Cache::Rep::ReclaimExtentOf(EntryId victim, KeptExtents* kept) {
  const std::vector<uint32_t> owners = arena->OwnersInExtent(SlotRef{index->Get(victim).slot});
  const auto removable = [this](uint32_t owner) {
    return owner != kNoOwner && index->Get(owner).live && index->Get(owner).leases == 0;
  };
  if (std::ranges::all_of(owners, removable)) {
    for (uint32_t owner : owners) Remove(owner);
    counters.reclaimed_blocks += owners.size();
    return true;
  }
  ++kept->extents;
  for (uint32_t owner : owners) {
    if (!removable(owner) || !index->IsLeaf(owner)) continue;
    policy->OnEvictable(owner, false);
    kept->set_aside.push_back(owner);
  }
  return false;
}

// A pool below its fair share takes a chunk from the pool furthest above it. True when a chunk has
// changed hands.
bool Cache::Rep::StealChunk(PoolId pool) {
  // One chunk on its way is enough: it is charged until its last lease has ended and no client maps
  // it any more.
  if (pools.size() < 2 || !arena->Dropped().empty()) return false;
  const uint64_t share = capacity_bytes / pools.size();
  uint64_t own = 0, most = share, chunk_bytes = 0;
  PoolId richest = pool;
  for (const auto& [tenant, candidate] : pools) {
    uint64_t bytes = 0;
    for (const ChunkInfo& chunk : arena->Chunks(candidate)) {
      if (chunk.state == ChunkState::kRetiring) return false;
      bytes += chunk.bytes;
      chunk_bytes = std::max(chunk_bytes, chunk.bytes);
    }
    if (candidate == pool) {
      own = bytes;
    } else if (bytes > most) {
      richest = candidate, most = bytes;
    }
  }
  if (richest == pool || own >= share) return false;
  // With fewer chunks than pools a chunk would only wander: it moves when that brings them closer.
  if (most < own + 2 * chunk_bytes) return false;
  const EntryId oldest = OldestVictim(richest, UINT32_MAX);
  if (oldest == kNoEntry) return false;
  const uint32_t chunk = SlotRef{index->Get(oldest).slot}.chunk_index();
  const uint64_t chunk_id = arena->ChunkId(SlotRef::Of(chunk, 0));
  const std::vector<uint32_t> owners = arena->OwnersInChunk(chunk);
  arena->RetireChunk(chunk);
  for (uint32_t owner : owners) {
    if (owner == kNoOwner || !index->Get(owner).live) continue;
    Remove(owner);
    ++counters.reclaimed_blocks;
  }
  return std::ranges::none_of(arena->Chunks(richest),
                              [&](const ChunkInfo& info) { return info.id == chunk_id; }) &&
         arena->Dropped().empty();
}

void Cache::Rep::Remove(EntryId id) {
  const IndexEntry& entry = index->Get(id);
  const SlotRef slot{entry.slot};
  const bool leased = entry.leases > 0;
  policy->OnRemove(id);
  const EntryId parent = index->Remove(id);
  if (!leased) arena->Free(slot);
  if (parent != kNoEntry && index->Get(parent).live && index->Get(parent).leases == 0) {
    policy->OnEvictable(parent, true);
  }
}

uint64_t Cache::Rep::RemoveOwners(const std::vector<uint32_t>& owners, uint64_t chunk_id) {
  uint64_t removed = 0;
  for (size_t begin = 0; begin < owners.size(); begin += kKeysPerHold) {
    MutexLock lock(&mutex);
    const size_t end = std::min(begin + kKeysPerHold, owners.size());
    for (size_t i = begin; i < end; ++i) {
      if (owners[i] == kNoOwner) continue;
      // The id may have gone and come back since the list was made.
      const IndexEntry& entry = index->Get(owners[i]);
      if (!entry.used || !entry.live || arena->ChunkId(SlotRef{entry.slot}) != chunk_id) continue;
      Remove(owners[i]);
      ++removed;
    }
  }
  return removed;
}

}  // namespace kvarve
