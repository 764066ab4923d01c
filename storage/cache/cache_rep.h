// The cache's state and the steps that its operations share. Private to storage/cache.
//
// Invariants, all under `mutex`:
//  * a live entry's slot is in use and owned by the entry; a slot in use without owner belongs to a
//  put in progress;
//  * every live entry without children and leases is evictable to the policy; a leased leaf may be,
//  too;
//  * entry.leases = leases in `leases` that name it + guards of puts in progress.
// THREADS: every method REQUIRES `mutex` unless it says otherwise.
#ifndef KVARVE_STORAGE_CACHE_CACHE_REP_H_
#define KVARVE_STORAGE_CACHE_CACHE_REP_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "storage/arena/arena.h"
#include "storage/base/mutex.h"
#include "storage/cache/cache.h"
#include "storage/cache/device_memory.h"
#include "storage/cache/families.h"
#include "storage/index/index.h"
#include "storage/policy/eviction_policy.h"

namespace kvarve {

// Which blocks of a request were touched already: a direct-mapped table, so a request that is
// pushed out is merely touched once more.
class TouchTable {
 public:
  // Blocks of lower depth were touched before for (ns, request). `request` 0 is always new.
  uint32_t DepthEnd(NamespaceIndex ns, uint64_t request) const;
  void Touched(NamespaceIndex ns, uint64_t request, uint32_t depth_end);
  // Not 0.
  static uint64_t Tag(NamespaceIndex ns, uint64_t request);

 private:
  static constexpr size_t kSlots = 16384;
  struct Slot {
    uint64_t tag = 0;
    uint32_t depth_end = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

class DeviceTier;
inline constexpr uint32_t kNoDeviceNs = UINT32_MAX;

struct NamespaceRecord {
  NamespaceInfo info;  // its `open` is the only one when nobody has the namespace open
  std::shared_ptr<const NamespaceInfo> name;  // what events say; outlives the record in them
  NamespaceIndex index = 0;                   // the entries' namespace; a new one after Invalidate
  uint32_t epoch = 0;                         // counts invalidations
  uint32_t group = 0;                         // the policy's
  uint64_t used = 0;                 // when, in uses of any namespace; 0: the record is free
  uint32_t device_ns = kNoDeviceNs;  // DeviceIndex::Ns
  uint32_t recompute_us = 0;         // of a block, as was told last; 0: never
};

// What the cache knows of a tenant, by the number of its pool.
struct TenantState {
  std::string name;
  TenantQuota quota;
  uint64_t namespaces = 0;
  uint64_t slots = 0;  // in use: entries, doomed ones, and puts in progress
  uint64_t share_bytes = 0;
  uint64_t share_entries = 0;
  uint64_t wanted_bytes = 0;  // that puts did not get since the last one that got all
  PoolStats counted;          // only the counters
};

// How much of a put may go on, and what is in the way of the rest.
struct Allowance {
  uint64_t slots = 0;
  std::optional<Resource> limit;  // the tenant's; none: the index is full
};

struct Lease {
  LeaseAccount* account = nullptr;
  PoolId pool = 0;
  NamespaceIndex ns = 0;
  uint64_t request_id = 0;
  std::vector<EntryId> entries;
  uint64_t bytes = 0;
  int64_t hold_until = 0;  // 0: a lease, not a hold
};

// Extents of other slot sizes that one search for room found it cannot have.
struct KeptExtents {
  size_t extents = 0;
  std::vector<EntryId> set_aside;  // their evictable blocks, which are told to the policy again
};

// A block whose bytes are in a slot of its own.
struct NewBlock {
  const BlockKey& key;
  const BlockKey* parent = nullptr;  // null: it is a root, or nothing is claimed
  uint32_t depth = 0;
  SlotRef slot;
  uint64_t checksum = 0;
  uint32_t recompute_us = 0;  // 0: unknown
  bool is_loaded = false;     // from a device, not by a put
};

// Whether the n-th of the blocks that room is made for may come at the cost of `victim`.
using Admission = absl::FunctionRef<bool(size_t n, EntryId victim)>;

struct Cache::Rep {
  explicit Rep(const CacheOptions& options);
  ~Rep();

  // ---- room.cc
  // Up to `count` slots, evicting as needed; appends to `slots`. What ended it, if it is a quota;
  // it ends, too, where `admits` says no to a victim of the namespace's own group.
  std::optional<Resource> AllocateWithRoom(const NamespaceRecord& ns, size_t count,
                                           std::vector<SlotRef>* slots, Admission admits);
  void FreeSlot(SlotRef slot);
  // Makes progress towards a free slot of `ns`: false when nothing more can go.
  bool MakeRoom(const NamespaceRecord& ns, absl::FunctionRef<bool(EntryId victim)> admits,
                KeptExtents* kept);
  // `missing_bytes` are what a put of `pool` lacks.
  bool StealChunk(PoolId pool, uint64_t missing_bytes);
  // Retires the chunk of the pool's oldest block. None: all is leased; else whether the chunk is
  // free at once.
  std::optional<bool> TakeChunkOf(PoolId pool);
  bool ReclaimExtentOf(EntryId victim, KeptExtents* kept);
  // A block of the group that no lookup can reach; kNoEntry: none is known.
  EntryId DeadOf(uint32_t group);
  EntryId VictimOf(uint32_t group);  // of the others
  EntryId OldestVictim(PoolId pool, uint32_t except_group);
  EntryId DeadOrOldest(PoolId pool);
  // Takes a live entry out; frees its slot unless leased.
  void Remove(EntryId id, bool tell = true);  // `tell`: as an event
  // Removes the live entries among `owners` whose slot lies in chunk `chunk_id`, slice by slice;
  // takes the mutex itself.
  uint64_t RemoveOwners(const std::vector<uint32_t>& owners, uint64_t chunk_id);

  EntryId RemoveFromFamily(EntryId id);
  // The block has left the devices: if it is not here, what stands behind it is dead.
  void GoneBelow(const NamespaceRecord& ns, const BlockKey& key, uint32_t depth);

  // ---- put.cc
  // After its parent. None: the index is full; the slot stays the caller's.
  std::optional<EntryId> InsertBlock(const NamespaceRecord& ns, const NewBlock& block);

  // ---- policy.cc
  // Touches, inserts and refusals are this request's until the next call. 0: of one by itself.
  void BeginRequest(NamespaceIndex ns, uint64_t request_id);
  // What the policy is told of a block that is not here, or not yet.
  BlockTraits TraitsOf(const NamespaceRecord& ns, const BlockKey& key, uint32_t depth,
                       EntryId parent, uint32_t recompute_us) const;
  // Tells on_access of a read. Where the chain is not here, it is taken to begin at its root. Takes
  // the mutex itself.
  void TellRead(NamespaceHandle ns, uint64_t request_id, std::span<const BlockKey> keys);
  void TellPut(const PutRequest& request);

  // ---- invalidate.cc
  // Cache::Invalidate; `erased`: whether it is durable on each device. Takes the mutex itself.
  uint64_t Clear(NamespaceHandle ns, absl::Status* erased);

  // ---- load.cc
  // Cache::Load. Takes the mutex itself.
  void Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class, bool caller_waits,
            std::function<void(size_t)> done);
  size_t LoadNow(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class);
  // How many leading keys are found, in any tier. `load_bytes`: what a load of the call may still
  // bring, which is taken off.
  size_t FindAnywhere(const NamespaceRecord& ns, std::span<const BlockKey> keys,
                      uint64_t* load_bytes, size_t* in_host);

  // ---- recompute.cc
  // How many of the blocks, which are all in some tier, to answer: all, or, where the rest would
  // come later than it is computed, those in the host tier. Takes the mutex itself.
  size_t CutToCheaper(NamespaceHandle ns, std::span<const BlockKey> found, size_t in_host,
                      uint32_t recompute_us);

  // ---- tenants.cc
  PoolId AddTenant(const std::string& name);
  void ApplyQuota(PoolId pool, const TenantQuota& quota);
  void ComputeShares();
  absl::Status CheckFloors(const TenantQuotas& of) const;
  // How many slots of `slot_bytes` the tenant may still have.
  Allowance AllowanceOf(PoolId pool, uint64_t slot_bytes) const;
  // Progress towards a higher allowance: false when nothing more can go.
  bool MakeRoomUnder(const std::optional<Resource>& limit, const NamespaceRecord& ns,
                     absl::FunctionRef<bool(EntryId victim)> admits, KeptExtents* kept);
  // ResourceExhausted, with the numbers.
  absl::Status OverQuota(PoolId pool, Resource resource, uint64_t slot_bytes) const;
  uint64_t LeaseBytesMax() const { return lease_bytes_max ? lease_bytes_max : capacity_bytes / 2; }

  // ---- leases.cc
  // Bytes that the caps still allow the account.
  uint64_t RoomToLease(const LeaseAccount& account, PoolId pool) const;
  // Leases the leading keys that are found and fit, adding to `lease` and `result`; returns how
  // many.
  size_t GrantSlice(const NamespaceRecord& ns, std::span<const BlockKey> keys, bool hold,
                    Lease* lease, AcquireResult* result);
  void Charge(LeaseAccount* account, PoolId pool, uint64_t bytes);
  void Discharge(LeaseAccount* account, PoolId pool, uint64_t bytes);
  void UnleaseEntry(EntryId id);
  // Takes a lease out of the tables; EndLease is called for it next.
  Lease TakeLease(LeaseId id);
  // Touches the blocks, if they were read, and unleases them. Takes the mutex itself. A read counts
  // as it ends: nobody waits for that, and a leased block cannot leave anyway.
  void EndLease(const Lease& lease);
  void TouchLeased(const Lease& lease, std::span<const EntryId> entries);
  void TouchFound(NamespaceIndex ns, std::span<const EntryId> ids, uint64_t request_id);

  // ---- namespaces.cc
  NamespaceRecord& Record(NamespaceHandle handle) {
    NamespaceRecord* const record = FindRecord(handle);
    KV_CHECK(record != nullptr);
    record->used = ++namespace_uses;
    return *record;
  }
  // Null: forgotten.
  NamespaceRecord* FindRecord(NamespaceHandle handle) {
    const uint32_t place = handle % kMaxNamespaces;
    if (place >= namespaces.size()) return nullptr;
    NamespaceRecord& record = namespaces[place];
    return record.used != 0 && record.info.handle == handle ? &record : nullptr;
  }
  // Makes a place for one more, by forgetting if it must.
  absl::Status RoomForNamespace(const std::string& tenant);
  // Forgets the least recently used namespace (of `pool`) that is empty and not open. False: none.
  bool ForgetNamespace(std::optional<PoolId> pool);
  NamespaceRecord& AddNamespace(NamespaceInfo info);
  uint64_t SlotBytes(const NamespaceRecord& ns) const;
  // The entry leaves the host tier: for a device, or for good.
  void TellLeft(const IndexEntry& entry);
  // Adds an event of a live entry, unless its namespace was cleared.
  void Tell(CacheEventKind kind, const IndexEntry& entry, CacheTier tier = CacheTier::kHost);

  const Clock* clock;
  uint64_t incarnation;
  mutable Mutex mutex;
  DeviceMemory device_memory;  // outlives the arena, whose thread tells it
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Index> index;
  std::unique_ptr<EvictionPolicy> policy;
  Families families;
  // The policy's, by NamespaceIndex.
  std::vector<uint32_t> group_of_index = std::vector<uint32_t>(kMaxNamespaces);

  // By handle modulo kMaxNamespaces; the rest of a handle counts how often its place was used.
  std::vector<NamespaceRecord> namespaces;
  std::vector<NamespaceHandle> free_handles;  // of places that were used before
  uint64_t namespace_uses = 0;
  uint32_t max_namespaces_per_tenant;
  std::map<NamespaceId, NamespaceHandle> handle_of;
  std::vector<NamespaceIndex> free_indices;
  std::map<std::string, PoolId> pools;  // by tenant
  std::vector<TenantState> tenants;     // by pool
  TenantQuotas quotas;                  // of all that are configured, open or not
  TenantQuota default_quota;
  ReservedUse lease_use;  // of tenants, by pool
  SharedRate ingest;
  uint64_t slots_used = 0;  // of all tenants
  uint64_t max_entries = 0;
  struct Group {
    uint32_t number = 0;      // the policy's
    uint32_t namespaces = 0;  // without any, the number is free
  };
  std::map<std::pair<PoolId, uint64_t>, Group> groups;  // by pool and slot bytes
  std::vector<uint32_t> free_groups;

  absl::flat_hash_map<LeaseId, Lease> leases;
  absl::flat_hash_map<LeaseAccount*, absl::flat_hash_set<LeaseId>> leases_of;
  std::priority_queue<std::pair<int64_t, LeaseId>, std::vector<std::pair<int64_t, LeaseId>>,
                      std::greater<>>
      holds;
  // Begins anywhere: a client that outlives a daemon releases at its successor what it had leased
  // of the predecessor, and that must be nobody's lease there.
  LeaseId next_lease;
  uint64_t lease_bytes_max = 0;  // 0: half of the capacity
  uint64_t capacity_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint64_t leased_bytes = 0;  // all accounts
  uint64_t quarantined_bytes = 0;
  uint64_t reserved_slots = 0;  // of puts and loads in progress
  uint64_t load_guards = 0;     // leases of loads in progress
  const AccessListener on_access;
  const bool prefer_recompute;
  TouchTable touches;
  uint64_t policy_request = 0;  // TouchTable::Tag of the request that the policy hears of; 0: none
  EventRing events;
  // By NamespaceIndex; kNoHandle: not in use, or cleared and being emptied.
  static constexpr NamespaceHandle kNoHandle = UINT32_MAX;
  std::vector<NamespaceHandle> handle_of_index;
  std::vector<uint32_t> blocks_of_index;  // live ones
  CacheStats counters;                    // only the counter fields
  DeviceTierOptions device_options;
  std::atomic<bool> has_tier{false};
  // Null until the first device is added, and then never again. Last: it ends before the rest.
  std::unique_ptr<DeviceTier> tier;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_CACHE_REP_H_
