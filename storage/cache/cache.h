// One node's block store: index, arena, policy and leases joined. It decides the order of calls and
// nothing else: what is found, what is stored, who leaves.
//
// Put-if-absent with atomic publish: a put copies into a slot of its own and publishes it when all
// bytes and the checksum are in place; the first publish wins. A lease keeps a slot's memory from
// reuse; eviction and invalidation take a leased block out of lookups and free the memory with the
// last lease.
//
// THREADS: any. One mutex guards all state; it is never held over a copy or I/O, and never longer
// than one batch of kKeysPerHold keys.  BLOCKS: Put and BlockPut, for the copies, in the caller's
// thread.
#ifndef KVARVE_STORAGE_CACHE_CACHE_H_
#define KVARVE_STORAGE_CACHE_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/arena/arena.h"
#include "storage/base/clock.h"
#include "storage/block/block_key.h"
#include "storage/block/layout.h"
#include "storage/block/namespace.h"
#include "storage/cache/device_stats.h"
#include "storage/cache/event_ring.h"
#include "storage/cache/planted_tier_bug.h"
#include "storage/cache/quota.h"
#include "storage/catalogue/catalogue.h"
#include "storage/codec/codec.h"
#include "storage/index/index.h"
#include "storage/io/device.h"
#include "storage/policy/eviction_policy.h"

namespace kvarve {

inline constexpr size_t kKeysPerHold = 512;
inline constexpr size_t kMaxKeysPerCall = 8192;

// Of the NVMe tier, if devices are added.
struct DeviceTierOptions {
  Catalogue* catalogue = nullptr;      // outlives the cache; null: nothing is kept between starts
  uint64_t max_entries = 64ull << 20;  // blocks on devices
  uint64_t dirty_bytes_max = 0;        // admitted and not yet written; 0: 16 MiB a device
  double drive_writes_per_day = 1;     // WriteBudget
  AdmissionStep admission = AdmissionStep::kAll;  // its most generous step
  int64_t gather_nanos = 20'000'000;              // how long a device waits for a whole frame
  Representation rung = Representation::kRaw;     // in which blocks are written there
  int64_t scrub_nanos = 0;  // an idle device verifies a segment so often; 0: never
  // Called for each block that is complete on a device, without a lock. For tests.
  std::function<void(const AppendBlock& block)> on_written;
  PlantedTierBug bug = PlantedTierBug::kNone;  // tests only
};

// Consecutive blocks of one chain that a request read (those it asked for and did not get, too) or
// put.
struct CacheAccess {
  const NamespaceId& ns;
  uint64_t request_id = 0;
  const BlockKey* parent = nullptr;  // of the first; null: a root, or not known
  uint32_t first_depth = 0;
  std::span<const BlockKey> keys;
};
// THREADS: any. Called without a lock, after the access, by whoever made it.
using AccessListener = std::function<void(const CacheAccess& access)>;

struct CacheOptions {
  ArenaOptions arena;
  DeviceTierOptions devices;
  uint64_t max_entries = 64ull << 20;
  std::string policy = "lru";
  uint64_t lease_bytes_max = 0;  // leased and quarantined, all accounts; 0: half of the capacity
  TenantQuotas quotas;           // of tenants by name
  TenantQuota default_quota;     // of each other tenant
  uint32_t max_namespaces_per_tenant = 1024;
  uint64_t ingest_bytes_per_second = TokenBucket::kUnlimited;  // of all tenants
  uint64_t seed = 0;                                           // of the index's hash; 0: random
  size_t event_window = 0;                                     // events kept for Events()
  AccessListener on_access;                                    // may be null
  bool prefer_recompute = true;                                // Lookup may leave out slow blocks
  const Clock* clock = nullptr;                                // null: the system's
};

// An open namespace, by value. `handle` stays the same over Invalidate, and is valid while a copy
// of `open` lives: an empty namespace that nobody has open is forgotten when another one needs its
// place.
using NamespaceHandle = uint32_t;
struct NamespaceInfo {
  NamespaceHandle handle = 0;
  NamespaceId id;
  NamespaceDigest digest;
  uint64_t block_bytes = 0;
  BlockLayout layout;
  uint32_t key_bytes = 32;
  PoolId pool = 0;
  std::string tenant;
  std::string model;
  std::shared_ptr<const void> open;
};

// A namespace that is open, or that only devices know.
struct StoredNamespace {
  NamespaceId id;
  std::string tenant;  // empty: not known, as long as no client has opened it
};

// Whose leases these are: one a session of the plane, with its process as the parent. The plane
// makes it, charges go to it and to its parent, and it outlives its leases.
struct LeaseAccount {
  std::string name;        // for messages and logs
  uint64_t bytes_max = 0;  // 0: the parent's and the cache's global cap only
  LeaseAccount* parent =
      nullptr;  // charged along; its cap holds for all its children together. No grandparents.
  bool exempt = false;  // charged, but no cap refuses: short leases of the daemon's own copies
  // Written by the cache under its mutex; read through Cache::Stats.
  uint64_t leased_bytes = 0;
  bool quarantined = false;
};

using LeaseId = uint64_t;  // never reused, by a later incarnation neither; 0 is none

struct Grant {
  SlotRef slot;
  uint64_t chunk_id = 0;
  uint64_t offset = 0;
  uint64_t checksum = 0;
};

struct AcquireResult {
  LeaseId lease = 0;            // 0 when grants is empty
  std::vector<Grant> grants;    // of the leading blocks found, in key order
  bool over_lease_cap = false;  // found, but not granted: copy out instead
};

enum class PutResult : uint8_t {
  kStored = 0,
  kExists = 1,  // published before, by anybody
  kRejectedParent =
      2,  // an earlier block of the batch was rejected; or the parent that is claimed
          // is nowhere, and others would have to leave for a block that no lookup finds
  kRejectedNoSpace = 3,  // everything that could go is leased, or capacity is too small
  kRejectedPolicy = 4,
  kRejectedInvalidated = 5,  // the namespace was invalidated meanwhile
  kRejectedQuota = 6,        // the tenant's, and nothing of its own can go
  kShed = 7,                 // the devices cannot keep up: to be tried again
};
inline constexpr size_t kPutResults = 8;
std::string_view PutResultName(PutResult result);

struct PutRequest {
  NamespaceHandle ns = 0;
  std::optional<BlockKey> parent;  // claimed parent of the first block; none: a root
  uint32_t first_depth = 0;        // of the first block
  std::span<const BlockKey> keys;  // one chain: each is the parent of the next
  std::span<const std::byte* const>
      sources;                // block_bytes each; another process may be writing there
  uint64_t request_id = 0;    // touches are once a (namespace, request id, block); 0: each time
  uint32_t recompute_us = 0;  // cost of one block to the engine; 0: unknown
  // Given the reason when a block is kRejectedQuota, with the numbers: ResourceExhausted.
  absl::Status* quota_status = nullptr;
  int64_t* retry_after_nanos = nullptr;  // and when it is worth trying again
};

// A block that is being put in pieces, in memory that nobody writes meanwhile (as a network's
// buffers are). It has its slot from the begin on, its parent stays, and nobody sees it before it
// is finished. THREADS: one at a time. The cache, and what the request points to, outlive it.
class BlockPut {
 public:
  // Not finished: the slot is free again, and nothing was put.
  virtual ~BlockPut() = default;
  // False: what becomes of it is known without its bytes.
  virtual bool wants_bytes() const = 0;
  // The next bytes. REQUIRES: while they are wanted, no more than the block has.
  virtual void Append(std::span<const std::byte> piece) = 0;
  // Once, when all bytes that are wanted have come. InvalidArgument: they have not. DataLoss: they
  // have another checksum than `expected`.
  virtual absl::StatusOr<PutResult> Finish(std::optional<uint64_t> expected) = 0;
};

// One tenant's pool and what it did.
struct PoolStats {
  std::string tenant;
  uint64_t chunk_bytes = 0, used_bytes = 0;
  uint64_t share_bytes = 0;  // of the capacity, that others cannot take from it
  uint64_t entries = 0;      // with those that a lease still holds, and puts in progress
  uint64_t leased_bytes = 0;
  TenantQuota quota;
  // Counters since start.
  uint64_t lookups = 0, lookup_keys = 0, lookup_hit_keys = 0;
  uint64_t hit_blocks = 0, miss_blocks = 0, hit_bytes = 0;
  uint64_t stored_blocks = 0, stored_bytes = 0, evicted_blocks = 0;
  std::array<uint64_t, kResources> quota_refusals{};  // blocks, by what was used up
  void Refused(Resource resource, uint64_t blocks) {
    quota_refusals[static_cast<size_t>(resource)] += blocks;
  }
};
struct CacheStats {
  ArenaStats arena;
  IndexStats index;
  std::vector<PoolStats> pools;
  std::string_view policy;    // its name
  uint64_t policy_bytes = 0;  // with the families
  PolicyLearning learning;
  uint64_t namespaces = 0;
  uint64_t leases = 0, leased_bytes = 0, quarantined_bytes = 0;
  // Counters since start.
  uint64_t lookups = 0, lookup_keys = 0, lookup_hit_keys = 0;
  uint64_t hit_blocks = 0, miss_blocks = 0;  // of those asked for by Acquire (holds left out)
  uint64_t acquires = 0, hit_bytes = 0, lease_cap_refusals = 0, releases_unknown = 0,
           holds_expired = 0;
  uint64_t put_blocks[kPutResults] = {};  // by PutResult
  uint64_t put_bytes = 0, put_conflicts = 0;
  uint64_t evicted_blocks = 0, reclaimed_blocks = 0, invalidated_blocks = 0, corrupt_blocks = 0;
  uint64_t recompute_preferred_blocks = 0;  // left out of lookups' answers
  uint64_t saved_recompute_micros = 0;      // of blocks that were read, where the cost was told
  uint64_t refused_blocks = 0;              // by the policy, those behind them in a put counted too
  std::optional<DeviceTierStats> devices;   // none: there never was one
};

class Cache {
 public:
  struct Rep;  // the state; cache_rep.h

  static absl::StatusOr<std::unique_ptr<Cache>> Create(const CacheOptions& options);
  ~Cache();

  // Random at creation: tells a daemon from its successor.
  uint64_t incarnation() const;

  // Opens (or finds) the namespace of a complete descriptor (tenant and salt written by the
  // server). InvalidArgument: a bad descriptor. AlreadyExists: same ns_id, other digest.
  // ResourceExhausted: the tenant or the node has as many as there may be, and each has blocks or
  // is open; else the one of them that was used least recently is forgotten.
  absl::StatusOr<NamespaceInfo> OpenNamespace(const NamespaceDescriptor& descriptor);
  // NotFound: nobody opened it, or it was forgotten.
  absl::StatusOr<NamespaceInfo> FindNamespace(const NamespaceId& id);
  // Without `open`: as they are now.
  std::vector<NamespaceInfo> Namespaces() const;

  // Hit length: how many leading keys are published, in any tier; `in_host`, if not null, gets how
  // many of the leading ones are in the host tier. Touches and pins nothing. `recompute_us`, if not
  // 0, is what computing one block costs whoever asks: those behind the ones in the host tier are
  // left out where devices would bring the last of them later than it could be computed.
  // REQUIRES: an open handle, keys.size() <= kMaxKeysPerCall (here and below).
  size_t Lookup(NamespaceHandle ns, std::span<const BlockKey> keys, size_t* in_host = nullptr,
                uint32_t recompute_us = 0);

  // Brings the leading blocks that are found, in any tier, into the host tier; what somebody else
  // is bringing is waited for, not read twice. `done` is called once, without a lock, in this call
  // or on a device's thread: so many leading blocks are in the host tier, and stay until it
  // returns. Fewer than Lookup said: a device failed, or the host tier has no room.
  void Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
            std::function<void(size_t blocks)> done);
  // The same, waited for.  BLOCKS: on the devices.
  size_t LoadNow(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class);

  // Leases the leading blocks found; they are touched as the lease ends. With `hold_nanos` > 0 the
  // lease is a hold: it ends by itself then (ExpireHolds), and touches nothing.
  AcquireResult Acquire(NamespaceHandle ns, std::span<const BlockKey> keys, LeaseAccount* account,
                        uint64_t request_id, int64_t hold_nanos = 0);
  // False (and counted) when the account has no such lease.
  bool Release(LeaseId lease, LeaseAccount* account);
  // All leases of the account; it may be destroyed after this.
  void ReleaseAll(LeaseAccount* account);
  // From here on the account's bytes count as quarantined; returns how many they are.
  uint64_t Quarantine(LeaseAccount* account);
  // Ends the holds whose time is over; called about every 100 ms.
  void ExpireHolds();

  // Stores a chain of blocks; writes one result a block. InvalidArgument: sizes that do not match.
  absl::Status Put(const PutRequest& request, std::span<PutResult> results);
  // Begins to store one block whose bytes come bit by bit, and of which `request` has the key and
  // no source. InvalidArgument: as of Put.
  absl::StatusOr<std::unique_ptr<BlockPut>> BeginPut(const PutRequest& request);

  // One access to the leading blocks found, without a lease; returns how many.
  size_t Touch(NamespaceHandle ns, std::span<const BlockKey> keys, uint64_t request_id);

  // Empties the namespace at once (lookups miss when it returns; puts that began before publish
  // nothing), on devices too, where that is durable when it returns. Returns the blocks removed: 0
  // too when the namespace was forgotten meanwhile.
  uint64_t Invalidate(NamespaceHandle ns);
  // The same of these blocks.
  uint64_t InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys);

  // Empties a namespace in both tiers, whether anybody has it open or not. Returns the blocks
  // removed. Unavailable: a device could not be written to, and what it has may come back with the
  // next start.  BLOCKS: on the devices.
  absl::StatusOr<uint64_t> Erase(const NamespaceId& id);
  // The namespaces that are open, and those of which devices have blocks.
  std::vector<StoredNamespace> StoredNamespaces() const;

  // A client found other bytes than the checksum says. Verifies here; removes and counts if it is
  // true.
  bool ReportCorrupt(NamespaceHandle ns, const BlockKey& key);

  // Frees at least `bytes` by the policy's choice, of one tenant's pool or (empty) of all, as far
  // as leases allow. Returns blocks and bytes.
  std::pair<uint64_t, uint64_t> Evict(uint64_t bytes, std::string_view tenant);

  // The events from `from` on that are kept, at most `most`, appended to `events`; returns the
  // number to go on with. OutOfRange: `from` is no longer kept, or was never reached.
  absl::StatusOr<uint64_t> Events(uint64_t from, size_t most,
                                  std::vector<CacheEvent>* events) const;
  uint64_t next_event() const;

  // Online. Shrinking evicts what lies in the retiring chunks; leased blocks leave with their
  // lease.
  absl::Status Resize(uint64_t capacity_bytes);

  // ---- The NVMe tier. One at a time.
  // Adds a device that was formatted (storage/segment/device_format.h). It serves at once, and in
  // the background learns what it has. Fails as SegmentLog::Open does.
  absl::Status AddDevice(std::unique_ptr<Device> device);
  // Writes out what is on its way to it; blocks that only it has are gone.  NotFound.
  absl::Status RemoveDevice(std::string_view path);
  // Before the end: writes out what only the host tier has, hottest first, as far as time allows.
  void FlushDevices(int64_t nanos);
  // Waits until all devices are recovered and nothing is on its way to them. False: not in time.
  bool WaitDevices(int64_t nanos);

  bool has_devices() const;  // THREADS: any
  bool prefers_recompute() const;
  // Whether the first of the keys that is not in the host tier is on a device. Counts nothing.
  bool WantsLoad(NamespaceHandle ns, std::span<const BlockKey> keys);

  // What a tenant may have from now on. A tenant that has more gives it back as it puts, and what
  // others are owed of it as they put. InvalidArgument: CheckQuotas; for connections, which are the
  // planes' to count, it changes nothing here.
  absl::Status SetQuota(const std::string& tenant, const TenantQuota& quota);

  // The arena's chunks, for the plane that announces them.
  uint64_t chunk_epoch() const;
  std::vector<ChunkInfo> Chunks(PoolId pool) const;
  std::vector<ChunkInfo> DroppedChunks() const;
  void ForgetDropped(uint64_t chunk_id);
  // The bytes of a granted slot. REQUIRES: leased.
  const std::byte* Data(SlotRef slot) const;

  // What the policy has learned, for a later start; empty: nothing. LoadPolicy takes only what
  // SavePolicy gave to the same policy: else false, and it begins anew.
  std::string SavePolicy() const;
  bool LoadPolicy(std::string_view saved);

  CacheStats Stats() const;
  // Walks everything and compares sums (tests and `kvarve doctor`): Internal names the first
  // difference.
  absl::Status CheckInvariants() const;

 private:
  explicit Cache(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_CACHE_H_
