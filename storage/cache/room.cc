// Room for new blocks: who leaves, and how a whole extent or chunk changes hands.
#include <algorithm>

#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

// One put's search for room ends after so many steps, whatever it found.
constexpr int kMaxRoomSteps = 4096;
// And looks at so many extents of other slot sizes that a lease or a put in progress keeps.
constexpr size_t kMaxKeptExtents = 16;

}  // namespace

std::optional<Resource> Cache::Rep::AllocateWithRoom(const NamespaceRecord& ns, size_t count,
                                                     std::vector<SlotRef>* slots,
                                                     Admission admits) {
  const size_t want = slots->size() + count;
  const uint64_t slot_bytes = SlotBytes(ns);
  TenantState& tenant = tenants[ns.info.pool];
  // No room that could be made would do: nobody leaves for it.
  if (slot_bytes > tenant.quota.of(Resource::kHostBytes).ceiling) return Resource::kHostBytes;
  std::optional<Resource> limit;
  KeptExtents kept;
  for (int step = 0; step < kMaxRoomSteps && slots->size() < want; ++step) {
    const Allowance allowance = AllowanceOf(ns.info.pool, slot_bytes);
    const size_t batch = std::min<uint64_t>(want - slots->size(), allowance.slots);
    const size_t got = batch > 0 ? arena->Allocate(ns.info.pool, slot_bytes, batch, slots) : 0;
    tenant.slots += got;
    slots_used += got;
    const size_t missing = want - slots->size();
    if (missing == 0) break;
    limit.reset();
    if (got < batch && StealChunk(ns.info.pool, missing * slot_bytes)) continue;
    // As many as are missing at once, so that neighbours freed together can be given out as one
    // run.
    size_t made = 0;
    const auto admits_next = [&](EntryId victim) { return admits(count - missing + made, victim); };
    if (got < batch) {
      while (made < missing && MakeRoom(ns, admits_next, &kept)) ++made;
    } else {
      while (made < missing && MakeRoomUnder(allowance.limit, ns, admits_next, &kept)) ++made;
      limit = allowance.limit;
    }
    if (made == 0) break;
  }
  for (const EntryId id : kept.set_aside) {  // ids are not given out again meanwhile
    const IndexEntry& entry = index->Get(id);
    if (entry.used && entry.live && index->IsLeaf(id)) policy->OnEvictable(id, true);
  }
  reserved_slots += slots->size() - (want - count);
  const size_t missing = want - slots->size();
  tenant.wanted_bytes = missing == 0 ? 0 : tenant.wanted_bytes + missing * slot_bytes;
  return missing == 0 ? std::nullopt : limit;
}

void Cache::Rep::FreeSlot(SlotRef slot) {
  TenantState& tenant = tenants[arena->Pool(slot)];
  KV_CHECK(tenant.slots > 0 && slots_used > 0);
  --tenant.slots;
  --slots_used;
  arena->Free(slot);
}

// Inside a pool the oldest victim decides: if it has another slot size, its whole extent goes,
// since one slot of another size would help nobody; and if part of that extent must stay, none of
// it goes.
bool Cache::Rep::MakeRoom(const NamespaceRecord& ns, absl::FunctionRef<bool(EntryId victim)> admits,
                          KeptExtents* kept) {
  const EntryId dead = DeadOf(ns.group);
  const EntryId own = dead != kNoEntry ? dead : VictimOf(ns.group);
  if (own != kNoEntry && !admits(dead != kNoEntry ? kNoEntry : own)) return false;
  while (dead == kNoEntry && kept->extents < kMaxKeptExtents) {
    const EntryId other = OldestVictim(ns.info.pool, ns.group);
    if (other == kNoEntry) break;
    if (own != kNoEntry && policy->LastTouch(own) < policy->LastTouch(other)) break;
    if (ReclaimExtentOf(other, kept)) return true;
  }
  if (own == kNoEntry) return false;
  Remove(own);
  ++counters.evicted_blocks;
  ++tenants[ns.info.pool].counted.evicted_blocks;
  return true;
}

EntryId Cache::Rep::DeadOf(uint32_t group) {
  while (true) {
    const EntryId dead = families.Dead(group);
    if (dead == kNoEntry || index->Get(dead).leases == 0) return dead;
    families.SetAside(dead);
  }
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
    if (it->second.number == except_group) continue;
    const EntryId victim = VictimOf(it->second.number);
    if (victim == kNoEntry) continue;
    if (oldest == kNoEntry || policy->LastTouch(victim) < policy->LastTouch(oldest))
      oldest = victim;
  }
  return oldest;
}

EntryId Cache::Rep::DeadOrOldest(PoolId pool) {
  for (auto it = groups.lower_bound({pool, 0}); it != groups.end() && it->first.first == pool;
       ++it) {
    if (const EntryId dead = DeadOf(it->second.number); dead != kNoEntry) return dead;
  }
  return OldestVictim(pool, UINT32_MAX);
}

// False, and nothing removed, when a lease or a put in progress keeps part of the extent: then its
// other blocks are no victims for the rest of this search.
bool Cache::Rep::ReclaimExtentOf(EntryId victim, KeptExtents* kept) {
  const std::vector<uint32_t> owners = arena->OwnersInExtent(SlotRef{index->Get(victim).slot});
  const auto removable = [this](uint32_t owner) {
    return owner != kNoOwner && index->Get(owner).live && index->Get(owner).leases == 0;
  };
  if (std::ranges::all_of(owners, removable)) {
    tenants[arena->Pool(SlotRef{index->Get(victim).slot})].counted.evicted_blocks += owners.size();
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

// A pool below its fair share takes a chunk from the pool furthest above its own. A chunk of which
// something is leased, or which a client still maps, is on its way until that ends: no more are
// taken than were asked for.
bool Cache::Rep::StealChunk(PoolId pool, uint64_t missing_bytes) {
  const TenantState& own = tenants[pool];
  if (tenants.size() < 2 || arena->Usage(pool).chunk_bytes >= own.share_bytes) return false;
  uint64_t on_way = arena->Stats().draining_bytes, chunk = 0;
  std::vector<uint64_t> held(tenants.size());
  for (PoolId each = 0; each < tenants.size(); ++each) {
    for (const ChunkInfo& info : arena->Chunks(each)) {
      (info.state == ChunkState::kRetiring ? on_way : held[each]) += info.bytes;
      chunk = std::max(chunk, info.bytes);
    }
  }
  if (chunk == 0 || held[pool] + on_way >= own.share_bytes) return false;
  if (on_way > 0 && on_way >= own.wanted_bytes + missing_bytes) return false;

  const auto floor = [&](PoolId of) {
    const uint64_t bytes = tenants[of].quota.of(Resource::kHostBytes).floor;
    return std::min(RoundUp(std::min(bytes, capacity_bytes), chunk), tenants[of].share_bytes);
  };
  const auto above = [&](PoolId of, uint64_t bytes) {
    return static_cast<int64_t>(bytes) - static_cast<int64_t>(tenants[of].share_bytes);
  };
  const bool owed_floor = held[pool] + on_way + chunk <= floor(pool);
  // With fewer chunks than pools a chunk would only wander: but for a floor, it moves when that
  // brings the two closer.
  const int64_t least = above(pool, held[pool] + on_way) + static_cast<int64_t>(2 * chunk);
  std::vector<std::pair<int64_t, PoolId>> victims;
  for (PoolId of = 0; of < tenants.size(); ++of) {
    if (of == pool || held[of] < chunk || held[of] - chunk < floor(of)) continue;
    const int64_t excess = above(of, held[of]);
    if (owed_floor || (excess > 0 && excess >= least)) victims.emplace_back(-excess, of);
  }
  std::sort(victims.begin(), victims.end());
  for (const auto& [excess, of] : victims) {
    const std::optional<bool> is_free = TakeChunkOf(of);
    if (is_free.has_value()) return *is_free;
  }
  return false;
}

std::optional<bool> Cache::Rep::TakeChunkOf(PoolId pool) {
  const EntryId oldest = OldestVictim(pool, UINT32_MAX);
  if (oldest == kNoEntry) return std::nullopt;
  const uint32_t chunk = SlotRef{index->Get(oldest).slot}.chunk_index();
  const uint64_t draining = arena->Stats().draining_bytes;
  const uint64_t chunk_id = arena->ChunkId(SlotRef::Of(chunk, 0));
  const std::vector<uint32_t> owners = arena->OwnersInChunk(chunk);
  arena->RetireChunk(chunk);
  for (uint32_t owner : owners) {
    if (owner == kNoOwner || !index->Get(owner).live) continue;
    Remove(owner);
    ++counters.reclaimed_blocks;
    ++tenants[pool].counted.evicted_blocks;
  }
  return std::ranges::none_of(arena->Chunks(pool),
                              [&](const ChunkInfo& info) { return info.id == chunk_id; }) &&
         arena->Stats().draining_bytes == draining;
}

std::pair<uint64_t, uint64_t> Cache::Evict(uint64_t bytes, std::string_view tenant) {
  uint64_t blocks = 0, freed = 0;
  for (const std::pair<const std::string, PoolId>& pool : [&] {
         MutexLock lock(&rep_->mutex);
         return rep_->pools;
       }()) {
    if (!tenant.empty() && pool.first != tenant) continue;
    for (bool more = true; more && freed < bytes;) {
      MutexLock lock(&rep_->mutex);
      for (size_t i = 0; i < kKeysPerHold && freed < bytes; ++i) {
        const EntryId victim = rep_->DeadOrOldest(pool.second);
        more = victim != kNoEntry;
        if (!more) break;
        const auto ns = rep_->handle_of_index[rep_->index->Get(victim).ns];
        freed += ns == Rep::kNoHandle ? kSlotUnitBytes : rep_->SlotBytes(*rep_->FindRecord(ns));
        rep_->Remove(victim);
        ++rep_->counters.evicted_blocks;
        ++rep_->tenants[pool.second].counted.evicted_blocks;
        ++blocks;
      }
    }
  }
  return {blocks, freed};
}

void Cache::Rep::Tell(CacheEventKind kind, const IndexEntry& entry, CacheTier tier) {
  const NamespaceHandle ns = handle_of_index[entry.ns];
  if (ns != kNoHandle) events.Add(kind, FindRecord(ns)->name, entry.key, entry.depth, tier);
}

void Cache::Rep::TellLeft(const IndexEntry& entry) {
  const NamespaceHandle ns = handle_of_index[entry.ns];
  if (ns == kNoHandle) return;
  const bool is_on_device = tier != nullptr && tier->Find(*FindRecord(ns), entry.key) != kNoEntry;
  Tell(is_on_device ? CacheEventKind::kTierChanged : CacheEventKind::kRemoved, entry,
       is_on_device ? CacheTier::kNvme : CacheTier::kHost);
}

void Cache::Rep::Remove(EntryId id, bool tell) {
  const IndexEntry& entry = index->Get(id);
  if (tell) TellLeft(entry);
  --blocks_of_index[entry.ns];
  const SlotRef slot{entry.slot};
  const bool leased = entry.leases > 0;
  const EntryId adopter = RemoveFromFamily(id);
  policy->OnRemove(id);
  const EntryId parent = index->Remove(id);
  if (!leased) FreeSlot(slot);
  const auto may_leave = [this](EntryId leaf) {
    if (index->Get(leaf).live && index->Get(leaf).leases == 0) policy->OnEvictable(leaf, true);
  };
  if (parent != kNoEntry) may_leave(parent);
  if (adopter != kNoEntry && index->DropChild(adopter)) may_leave(adopter);
}

EntryId Cache::Rep::RemoveFromFamily(EntryId id) {
  const IndexEntry& entry = index->Get(id);
  const NamespaceHandle ns = handle_of_index[entry.ns];
  if (ns == kNoHandle) return families.Remove(id, index->LinkedParent(id));
  const bool is_on_device = tier != nullptr && tier->Find(*FindRecord(ns), entry.key) != kNoEntry;
  return families.Remove(
      id, index->LinkedParent(id),
      {static_cast<NamespaceIndex>(entry.ns), static_cast<uint32_t>(entry.depth), entry.key},
      group_of_index[entry.ns],
      is_on_device ? Families::Parent::kOnDevice : Families::Parent::kGone);
}

void Cache::Rep::GoneBelow(const NamespaceRecord& ns, const BlockKey& key, uint32_t depth) {
  families.ParentGone({ns.index, depth, key});
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
