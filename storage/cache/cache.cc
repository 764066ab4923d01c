#include "storage/cache/cache.h"

#include <sys/random.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

uint64_t RandomWord() {
  uint64_t word = 0;
  KV_CHECK(::getrandom(&word, sizeof(word), 0) == sizeof(word));
  return word | 1;
}

}  // namespace

Cache::Rep::Rep(const CacheOptions& options)
    : clock(options.clock ? options.clock : SystemClock::Get()),
      incarnation(RandomWord()),
      index(
          std::make_unique<Index>(options.seed ? options.seed : RandomWord(), options.max_entries)),
      max_namespaces_per_tenant(options.max_namespaces_per_tenant),
      quotas(options.quotas),
      default_quota(options.default_quota),
      ingest(options.ingest_bytes_per_second),
      max_entries(options.max_entries),
      next_lease(RandomWord() >> 1 | 1),
      lease_bytes_max(options.lease_bytes_max),
      capacity_bytes(options.arena.capacity_bytes),
      chunk_bytes(std::min(options.arena.chunk_bytes, options.arena.capacity_bytes)),
      on_access(options.on_access),
      prefer_recompute(options.prefer_recompute),
      events(options.event_window),
      handle_of_index(kMaxNamespaces, kNoHandle),
      blocks_of_index(kMaxNamespaces),
      device_options(options.devices) {
  for (uint32_t i = kMaxNamespaces; i-- > 0;)
    free_indices.push_back(static_cast<NamespaceIndex>(i));
}

Cache::Rep::~Rep() = default;

Cache::Cache(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Cache::~Cache() {
  if (rep_->tier != nullptr) rep_->tier->CloseLoads();
}

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(const CacheOptions& options) {
  std::unique_ptr<EvictionPolicy> policy = NewEvictionPolicy(options.policy);
  if (policy == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "unknown eviction policy '%s'; known: lru, s3fifo, hazard", options.policy));
  }
  auto rep = std::make_unique<Rep>(options);
  ArenaOptions arena = options.arena;
  DeviceMemory* const pages = &rep->device_memory;
  arena.on_present = [pages](std::byte* base, size_t bytes) { pages->Present(base, bytes); };
  arena.on_unmap = [pages](std::byte* base, size_t bytes) { pages->Gone(base, bytes); };
  KV_ASSIGN_OR_RETURN(rep->arena, Arena::Create(arena));
  for (const QuotaRange& range : options.default_quota.ranges) {
    if (range.floor == 0) continue;
    return absl::InvalidArgumentError(
        "a floor for every tenant cannot be promised: their number is open; give it to named ones");
  }
  KV_RETURN_IF_ERROR(rep->CheckFloors(options.quotas));
  rep->policy = std::move(policy);
  return std::unique_ptr<Cache>(new Cache(std::move(rep)));
}

uint64_t Cache::incarnation() const { return rep_->incarnation; }

size_t Cache::Lookup(NamespaceHandle ns, std::span<const BlockKey> keys, size_t* in_host,
                     uint32_t recompute_us) {
  KV_CHECK(keys.size() <= kMaxKeysPerCall);
  size_t hit = 0, host = 0;
  std::optional<uint64_t> load_bytes;
  bool more = true;
  for (size_t begin = 0; more; begin += kKeysPerHold) {
    MutexLock lock(&rep_->mutex);
    if (!load_bytes) load_bytes = rep_->LeaseBytesMax();  // so much a load may pin
    const auto slice = keys.subspan(begin, std::min(kKeysPerHold, keys.size() - begin));
    size_t slice_host = 0;
    hit += rep_->FindAnywhere(rep_->Record(ns), slice, &*load_bytes, &slice_host);
    if (host == begin) host += slice_host;
    more = hit == begin + slice.size() && hit < keys.size();
    if (more) continue;
    if (in_host != nullptr) *in_host = host;
    ++rep_->counters.lookups;
    rep_->counters.lookup_keys += keys.size();
    rep_->counters.lookup_hit_keys += hit;
    PoolStats& counted = rep_->tenants[rep_->Record(ns).info.pool].counted;
    ++counted.lookups;
    counted.lookup_keys += keys.size();
    counted.lookup_hit_keys += hit;
    if (recompute_us != 0) rep_->Record(ns).recompute_us = recompute_us;
  }
  if (hit == host || recompute_us == 0 || !rep_->prefer_recompute) return hit;
  return rep_->CutToCheaper(ns, keys.first(hit), host, recompute_us);
}

size_t Cache::Touch(NamespaceHandle ns, std::span<const BlockKey> keys, uint64_t request_id) {
  KV_CHECK(keys.size() <= kMaxKeysPerCall);
  std::array<EntryId, kKeysPerHold> ids;
  size_t hit = 0;
  bool more = true;
  for (size_t begin = 0; more; begin += kKeysPerHold) {
    MutexLock lock(&rep_->mutex);
    const NamespaceRecord& record = rep_->Record(ns);
    const auto slice = keys.subspan(begin, std::min(kKeysPerHold, keys.size() - begin));
    const size_t found = rep_->index->FindPrefix(record.index, slice, ids.data());
    rep_->BeginRequest(record.index, request_id);
    rep_->TouchFound(record.index, std::span(ids.data(), found), request_id);
    hit += found;
    more = found == slice.size() && hit < keys.size();
  }
  rep_->TellRead(ns, request_id, keys);
  return hit;
}

bool Cache::ReportCorrupt(NamespaceHandle ns, const BlockKey& key) {
  Rep& r = *rep_;
  EntryId id = kNoEntry;
  NamespaceInfo info;
  SlotRef slot;
  uint64_t checksum = 0;
  {
    MutexLock lock(&r.mutex);
    const NamespaceRecord& record = r.Record(ns);
    info = record.info;
    id = r.index->Find(record.index, key);
    if (id == kNoEntry || !r.index->Lease(id)) return false;
    slot = SlotRef{r.index->Get(id).slot};  // the lease keeps both as they are
    checksum = r.index->Get(id).checksum;
  }
  const uint64_t seed = ChecksumSeed(info.id, key, info.block_bytes);
  const bool corrupt = BlockChecksum(seed, r.arena->Data(slot), info.block_bytes) != checksum;
  MutexLock lock(&r.mutex);
  if (corrupt && r.index->Get(id).live) {
    r.Remove(id);
    ++r.counters.corrupt_blocks;
  }
  r.UnleaseEntry(id);
  return corrupt;
}

uint64_t Cache::next_event() const {
  MutexLock lock(&rep_->mutex);
  return rep_->events.next();
}

absl::StatusOr<uint64_t> Cache::Events(uint64_t from, size_t most,
                                       std::vector<CacheEvent>* events) const {
  MutexLock lock(&rep_->mutex);
  const EventRing& ring = rep_->events;
  if (from < ring.first() || from > ring.next()) {
    return absl::OutOfRangeError(
        absl::StrFormat("event %d; the node keeps %d to %d", from, ring.first(), ring.next() - 1));
  }
  const size_t before = events->size();
  ring.Read(from, most, events);
  return from + (events->size() - before);
}

absl::Status Cache::Resize(uint64_t capacity_bytes) {
  std::vector<std::pair<uint64_t, std::vector<uint32_t>>> retiring;  // chunk id, owners
  {
    MutexLock lock(&rep_->mutex);
    KV_ASSIGN_OR_RETURN(const std::vector<uint32_t> chunks,
                        rep_->arena->SetCapacity(capacity_bytes));
    rep_->capacity_bytes = capacity_bytes;
    rep_->ComputeShares();
    for (uint32_t chunk : chunks) {
      retiring.emplace_back(rep_->arena->ChunkId(SlotRef::Of(chunk, 0)),
                            rep_->arena->OwnersInChunk(chunk));
    }
  }
  uint64_t removed = 0;
  for (const auto& [chunk_id, owners] : retiring) removed += rep_->RemoveOwners(owners, chunk_id);
  MutexLock lock(&rep_->mutex);
  rep_->counters.evicted_blocks += removed;
  return absl::OkStatus();
}

absl::Status Cache::AddDevice(std::unique_ptr<Device> device) {
  {
    MutexLock lock(&rep_->mutex);
    if (rep_->tier == nullptr) {
      rep_->tier = std::make_unique<DeviceTier>(rep_.get(), rep_->device_options);
      for (NamespaceRecord& record : rep_->namespaces) {
        if (record.used != 0) rep_->tier->OnOpened(&record);
      }
      rep_->has_tier.store(true);
    }
  }
  return rep_->tier->Add(std::move(device));
}

absl::Status Cache::RemoveDevice(std::string_view path) {
  if (rep_->tier == nullptr) return absl::NotFoundError("this daemon has no devices");
  return rep_->tier->Remove(path);
}

void Cache::FlushDevices(int64_t nanos) {
  if (rep_->tier != nullptr) rep_->tier->Flush(SystemClock::Get()->NowNanos() + nanos);
}

bool Cache::WaitDevices(int64_t nanos) {
  return rep_->tier == nullptr || rep_->tier->WaitIdle(SystemClock::Get()->NowNanos() + nanos);
}

uint64_t Cache::chunk_epoch() const { return rep_->arena->chunk_epoch(); }

std::vector<ChunkInfo> Cache::Chunks(PoolId pool) const {
  MutexLock lock(&rep_->mutex);
  return rep_->arena->Chunks(pool);
}

std::vector<ChunkInfo> Cache::DroppedChunks() const {
  MutexLock lock(&rep_->mutex);
  return rep_->arena->Dropped();
}

void Cache::ForgetDropped(uint64_t chunk_id) {
  MutexLock lock(&rep_->mutex);
  rep_->arena->ForgetDropped(chunk_id);
}

const std::byte* Cache::Data(SlotRef slot) const { return rep_->arena->Data(slot); }

CacheStats Cache::Stats() const {
  MutexLock lock(&rep_->mutex);
  CacheStats stats = rep_->counters;
  stats.arena = rep_->arena->Stats();
  stats.index = rep_->index->Stats();
  stats.policy = rep_->policy->Name();
  stats.policy_bytes = rep_->policy->MemoryBytes() + rep_->families.MemoryBytes();
  stats.learning = rep_->policy->Learning();
  stats.namespaces = rep_->handle_of.size();
  stats.leases = rep_->leases.size();
  stats.leased_bytes = rep_->leased_bytes;
  stats.quarantined_bytes = rep_->quarantined_bytes;
  if (rep_->tier != nullptr) stats.devices = rep_->tier->Stats();
  for (const auto& [tenant, pool] : rep_->pools) {
    const TenantState& state = rep_->tenants[pool];
    PoolStats& of = stats.pools.emplace_back(state.counted);
    of.tenant = tenant;
    of.quota = state.quota;
    of.entries = state.slots;
    of.share_bytes = state.share_bytes;
    of.leased_bytes = rep_->lease_use.used(pool);
    const PoolUsage usage = rep_->arena->Usage(pool);
    of.chunk_bytes = usage.chunk_bytes;
    of.used_bytes = usage.used_bytes;
  }
  return stats;
}

namespace {

absl::Status Differs(std::string_view what, uint64_t a, uint64_t b) {
  return absl::InternalError(absl::StrFormat("%s: %d and %d differ", std::string(what), a, b));
}

}  // namespace

absl::Status Cache::CheckInvariants() const {
  MutexLock lock(&rep_->mutex);
  const Rep& r = *rep_;
  absl::flat_hash_map<EntryId, uint64_t> holds, children;
  uint64_t lease_bytes = 0;
  for (const auto& [id, lease] : r.leases) {
    for (EntryId entry : lease.entries) ++holds[entry];
    lease_bytes += lease.bytes;
  }
  if (lease_bytes != r.leased_bytes) return Differs("leased bytes", lease_bytes, r.leased_bytes);
  uint64_t live = 0, doomed = 0;
  std::vector<uint32_t> blocks(kMaxNamespaces);
  for (EntryId id = 0; id < r.index->capacity_ids(); ++id) {
    const IndexEntry& entry = r.index->Get(id);
    if (!entry.used) continue;
    ++(entry.live ? live : doomed);
    if (r.arena->Owner(SlotRef{entry.slot}) != id)
      return Differs("owner of a slot", r.arena->Owner(SlotRef{entry.slot}), id);
    if (r.tier != nullptr && r.tier->IsDirty(id)) ++holds[id];
    // Guards of puts and loads in progress come on top.
    if (entry.leases < holds[id]) return Differs("leases of an entry", entry.leases, holds[id]);
    if (r.reserved_slots == 0 && r.load_guards == 0 && entry.leases != holds[id])
      return Differs("leases at rest", entry.leases, holds[id]);
    if (entry.live && entry.parent != kNoEntry) ++children[entry.parent];
    if (entry.live) ++blocks[entry.ns];
  }
  for (const auto& [parent, count] : children) {
    const IndexEntry& entry = r.index->Get(parent);
    const uint64_t adopted = r.families.HasAdopted(parent) ? 1 : 0;
    if (entry.used && entry.live && entry.children > count + adopted)
      return Differs("children", entry.children, count + adopted);
  }
  for (NamespaceIndex ns = 0; ns < kMaxNamespaces; ++ns) {
    if (blocks[ns] != r.blocks_of_index[ns]) {
      return Differs("blocks of a namespace", blocks[ns], r.blocks_of_index[ns]);
    }
  }
  uint64_t slots = 0, leased = 0, tenant_bytes = 0;
  for (PoolId pool = 0; pool < r.tenants.size(); ++pool) {
    slots += r.tenants[pool].slots;
    leased += r.lease_use.used(pool);
    tenant_bytes += r.arena->Usage(pool).used_bytes;
  }
  if (slots != r.slots_used) return Differs("slots of tenants", slots, r.slots_used);
  if (slots != live + doomed + r.reserved_slots) {
    return Differs("slots in use", slots, live + doomed + r.reserved_slots);
  }
  if (leased != r.leased_bytes) return Differs("leases of tenants", leased, r.leased_bytes);
  if (tenant_bytes != r.arena->Stats().used_bytes) {
    return Differs("bytes of tenants", tenant_bytes, r.arena->Stats().used_bytes);
  }
  const IndexStats stats = r.index->Stats();
  if (stats.entries != live) return Differs("live entries", stats.entries, live);
  if (stats.doomed != doomed) return Differs("doomed entries", stats.doomed, doomed);
  const ArenaStats arena = r.arena->Stats();
  if (arena.chunk_bytes > std::max(arena.capacity_bytes, r.capacity_bytes) && r.leases.empty() &&
      arena.draining_bytes == 0) {
    return Differs("chunk bytes over capacity", arena.chunk_bytes, arena.capacity_bytes);
  }
  return absl::OkStatus();
}

}  // namespace kvarve
