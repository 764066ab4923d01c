// Leases and holds: what keeps a slot's memory from reuse.
#include <algorithm>
#include <array>
#include <limits>

#include "storage/base/status_macros.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {

uint32_t TouchTable::DepthEnd(NamespaceIndex ns, uint64_t request) const {
  if (request == 0) return 0;
  const uint64_t tag = Tag(ns, request);
  const Slot& slot = slots_[tag % kSlots];
  return slot.tag == tag ? slot.depth_end : 0;
}

void TouchTable::Touched(NamespaceIndex ns, uint64_t request, uint32_t depth_end) {
  if (request == 0) return;
  const uint64_t tag = Tag(ns, request);
  slots_[tag % kSlots] = {tag, depth_end};
}

uint64_t TouchTable::Tag(NamespaceIndex ns, uint64_t request) {
  uint64_t x = (request ^ (uint64_t{ns} << 48)) * 0x9E3779B97F4A7C15ull;
  x ^= x >> 32;
  return x == 0 ? 1 : x;
}

uint64_t Cache::Rep::RoomToLease(const LeaseAccount& account, PoolId pool) const {
  if (account.exempt) return std::numeric_limits<uint64_t>::max();
  const auto room = [](uint64_t cap, uint64_t leased) { return cap - std::min(cap, leased); };
  uint64_t bytes = lease_use.Room(pool, LeaseBytesMax());
  for (const LeaseAccount* of = &account; of != nullptr; of = of->parent) {
    if (of->bytes_max != 0) bytes = std::min(bytes, room(of->bytes_max, of->leased_bytes));
  }
  return bytes;
}

void Cache::Rep::Charge(LeaseAccount* account, PoolId pool, uint64_t bytes) {
  lease_use.Add(pool, bytes);
  leased_bytes += bytes;
  account->leased_bytes += bytes;
  if (account->parent != nullptr) account->parent->leased_bytes += bytes;
  if (account->quarantined) quarantined_bytes += bytes;
}

void Cache::Rep::Discharge(LeaseAccount* account, PoolId pool, uint64_t bytes) {
  lease_use.Sub(pool, bytes);
  leased_bytes -= bytes;
  account->leased_bytes -= bytes;
  if (account->parent != nullptr) account->parent->leased_bytes -= bytes;
  if (account->quarantined) quarantined_bytes -= bytes;
}

void Cache::Rep::UnleaseEntry(EntryId id) {
  if (index->Unlease(id) > 0) return;
  const IndexEntry& entry = index->Get(id);
  if (entry.live) {
    families.Return(id);
    if (index->IsLeaf(id)) policy->OnEvictable(id, true);
    return;
  }
  FreeSlot(SlotRef{entry.slot});
  index->Erase(id);
}

Lease Cache::Rep::TakeLease(LeaseId id) {
  auto it = leases.find(id);
  KV_CHECK(it != leases.end());
  Lease lease = std::move(it->second);
  leases.erase(it);
  leases_of.find(lease.account)->second.erase(id);  // an empty set stays until ReleaseAll
  Discharge(lease.account, lease.pool, lease.bytes);
  return lease;
}

void Cache::Rep::EndLease(const Lease& lease) {
  for (size_t begin = 0; begin < lease.entries.size(); begin += kKeysPerHold) {
    const auto slice = std::span(lease.entries)
                           .subspan(begin)
                           .first(std::min(kKeysPerHold, lease.entries.size() - begin));
    MutexLock lock(&mutex);
    if (lease.hold_until == 0) TouchLeased(lease, slice);
    for (const EntryId id : slice) UnleaseEntry(id);
  }
}

void Cache::Rep::TouchLeased(const Lease& lease, std::span<const EntryId> entries) {
  std::array<EntryId, kKeysPerHold> live;  // some may have been removed meanwhile
  size_t count = 0;
  for (const EntryId id : entries) {
    live[count] = id;
    count += index->Get(id).live ? 1 : 0;
  }
  if (count == 0) return;
  BeginRequest(lease.ns, lease.request_id);
  TouchFound(lease.ns, std::span(live.data(), count), lease.request_id);
}

void Cache::Rep::TouchFound(NamespaceIndex ns, std::span<const EntryId> ids, uint64_t request_id) {
  policy->PrefetchTouch(ids);
  const uint32_t touched_end = touches.DepthEnd(ns, request_id);
  uint32_t depth_end = touched_end;
  size_t first = ids.size();  // of those not touched yet
  for (; first > 0; --first) {
    const uint32_t depth = index->Get(ids[first - 1]).depth;
    if (depth < touched_end) break;  // and so were those before it
    depth_end = std::max(depth_end, depth + 1);
  }
  policy->OnTouchRun(ids.subspan(first));  // deepest first: the root ends up most recent
  if (depth_end > touched_end) touches.Touched(ns, request_id, depth_end);
}

AcquireResult Cache::Acquire(NamespaceHandle handle, std::span<const BlockKey> keys,
                             LeaseAccount* account, uint64_t request_id, int64_t hold_nanos) {
  KV_CHECK(keys.size() <= kMaxKeysPerCall);
  AcquireResult result;
  if (keys.empty()) return result;
  Rep& r = *rep_;
  Lease lease;
  lease.account = account;
  lease.request_id = request_id;
  bool more = true;
  for (size_t begin = 0; more; begin += kKeysPerHold) {
    const auto slice = keys.subspan(begin, std::min(kKeysPerHold, keys.size() - begin));
    MutexLock lock(&r.mutex);
    const size_t granted = r.GrantSlice(r.Record(handle), slice, hold_nanos > 0, &lease, &result);
    more = granted == slice.size() && begin + slice.size() < keys.size();
    if (more) continue;
    if (hold_nanos == 0) {
      ++r.counters.acquires;
      r.counters.miss_blocks += keys.size() - lease.entries.size();
      r.tenants[lease.pool].counted.miss_blocks += keys.size() - lease.entries.size();
    }
    if (lease.entries.empty()) break;
    result.lease = r.next_lease++;
    if (hold_nanos > 0) {
      lease.hold_until = r.clock->NowNanos() + hold_nanos;
      r.holds.emplace(lease.hold_until, result.lease);
    }
    r.leases_of[account].insert(result.lease);
    r.leases.emplace(result.lease, std::move(lease));
  }
  if (hold_nanos == 0) r.TellRead(handle, request_id, keys);
  return result;
}

size_t Cache::Rep::GrantSlice(const NamespaceRecord& ns, std::span<const BlockKey> keys, bool hold,
                              Lease* lease, AcquireResult* result) {
  std::array<EntryId, kKeysPerHold> ids;
  const size_t found = index->FindPrefix(ns.index, keys, ids.data());
  const uint64_t bytes = SlotBytes(ns);
  lease->pool = ns.info.pool;
  lease->ns = ns.index;
  const size_t fitting =
      std::min<uint64_t>(found, RoomToLease(*lease->account, lease->pool) / bytes);
  result->grants.reserve(result->grants.size() + fitting);
  uint32_t chunk_index = SlotRef().chunk_index();  // of no slot
  uint64_t chunk_id = 0;
  size_t granted = 0;
  for (; granted < fitting; ++granted) {
    const IndexEntry& entry = index->Get(ids[granted]);
    // Read before the lease is written: both lie in one word, and a load that overlaps a shorter
    // store waits for it.
    const SlotRef slot{entry.slot};
    if (!index->Lease(ids[granted])) break;
    if (slot.chunk_index() != chunk_index) {
      chunk_index = slot.chunk_index();
      chunk_id = arena->ChunkId(slot);
    }
    result->grants.push_back({slot, chunk_id, slot.offset(), entry.checksum});
  }
  if (granted < found) {
    result->over_lease_cap = true;
    ++counters.lease_cap_refusals;
    const bool of_tenant = lease_use.used(lease->pool) + (granted + 1) * bytes >
                           tenants[lease->pool].quota.of(Resource::kLeaseBytes).ceiling;
    if (of_tenant) tenants[lease->pool].counted.Refused(Resource::kLeaseBytes, found - granted);
  }
  Charge(lease->account, lease->pool, granted * bytes);
  lease->bytes += granted * bytes;
  lease->entries.insert(lease->entries.end(), ids.begin(), ids.begin() + granted);
  if (!hold) {
    if (tier != nullptr && granted > 0) tier->NoteRead(ids[granted - 1]);
    counters.hit_blocks += granted;
    counters.hit_bytes += granted * ns.info.block_bytes;
    counters.saved_recompute_micros += granted * ns.recompute_us;
    PoolStats& counted = tenants[ns.info.pool].counted;
    counted.hit_blocks += granted;
    counted.hit_bytes += granted * ns.info.block_bytes;
  }
  return granted;
}

bool Cache::Release(LeaseId lease, LeaseAccount* account) {
  Lease ended;
  {
    MutexLock lock(&rep_->mutex);
    auto it = rep_->leases.find(lease);
    if (it == rep_->leases.end() || it->second.account != account) {
      ++rep_->counters.releases_unknown;
      return false;
    }
    ended = rep_->TakeLease(lease);
  }
  rep_->EndLease(ended);
  return true;
}

void Cache::ReleaseAll(LeaseAccount* account) {
  std::vector<Lease> ended;
  {
    MutexLock lock(&rep_->mutex);
    auto it = rep_->leases_of.find(account);
    if (it == rep_->leases_of.end()) return;
    const std::vector<LeaseId> ids(it->second.begin(), it->second.end());
    for (const LeaseId id : ids) ended.push_back(rep_->TakeLease(id));
    rep_->leases_of.erase(it);
  }
  for (const Lease& lease : ended) rep_->EndLease(lease);
}

uint64_t Cache::Quarantine(LeaseAccount* account) {
  MutexLock lock(&rep_->mutex);
  if (!std::exchange(account->quarantined, true)) {
    rep_->quarantined_bytes += account->leased_bytes;
  }
  return account->leased_bytes;
}

void Cache::ExpireHolds() {
  while (true) {
    Lease ended;
    {
      MutexLock lock(&rep_->mutex);
      auto& holds = rep_->holds;
      if (holds.empty() || holds.top().first > rep_->clock->NowNanos()) return;
      const LeaseId id = holds.top().second;
      holds.pop();
      if (!rep_->leases.contains(id)) continue;  // released early
      ++rep_->counters.holds_expired;
      ended = rep_->TakeLease(id);
    }
    rep_->EndLease(ended);
  }
}

}  // namespace kvarve
