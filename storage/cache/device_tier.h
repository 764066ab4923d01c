// The NVMe tier: a log each on several devices, one index over all, what may be written, and what
// is on its way. Private to storage/cache; the host tier's half is cache_rep.h.
//
// A block is dirty from its admission until the log says that it is complete, or that it never will
// be. It holds a lease of its own meanwhile, so that neither eviction nor anybody's end takes its
// memory from the device; dirty bytes are bounded, and nobody waits for them.
//
// THREADS: methods REQUIRE the cache's mutex unless they say otherwise. Each device has two threads
// of its own here: the flusher, and one that recovers.
#ifndef KVARVE_STORAGE_CACHE_DEVICE_TIER_H_
#define KVARVE_STORAGE_CACHE_DEVICE_TIER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_index.h"
#include "storage/cache/device_stats.h"
#include "storage/cache/flights.h"
#include "storage/cache/load_times.h"
#include "storage/cache/rung.h"
#include "storage/policy/seen_counts.h"
#include "storage/segment/erased_seqs.h"

namespace kvarve {

class DeviceLog;

class DeviceTier {
 public:
  DeviceTier(Cache::Rep* cache, const DeviceTierOptions& options);
  ~DeviceTier();  // like a crash, but waits for requests under way

  // ---- Devices. THREADS: any, one at a time; take the mutex themselves.
  absl::Status Add(std::unique_ptr<Device> device);
  absl::Status Remove(std::string_view path);
  // The polite stop: all that is admitted is written, then what only the host tier has, hottest
  // first, until `deadline_nanos`; segments are sealed, and what was hot is noted.
  void Flush(int64_t deadline_nanos);
  // Waits until nothing is dirty and every device knows what it has; false: not until the deadline.
  bool WaitIdle(int64_t deadline_nanos);
  DeviceTierStats Stats();

  // ---- Reading.
  size_t FindPrefix(const NamespaceRecord& ns, std::span<const BlockKey> keys, EntryId* ids) const;
  EntryId Find(const NamespaceRecord& ns, const BlockKey& key) const;
  DeviceIndex& index() { return index_; }
  // Null: it was removed meanwhile.
  std::shared_ptr<DeviceLog> device(uint32_t number) const;
  Flights& flights() { return flights_; }
  void BeginLoad() { ++loads_; }
  void EndLoad() {
    if (--loads_ == 0) idle_.notify_all();
  }
  // The cache ends: loads stop at their next step. Takes the mutex itself.  BLOCKS: until they
  // have.
  void CloseLoads();
  bool closing() const { return is_closing_; }
  LoadTimes& load_times() { return load_times_; }
  Rung& rung() { return rung_; }  // no mutex
  // Adds what a load of those of the keys that are not in the host tier has to wait for.
  void AddWanted(const NamespaceRecord& ns, std::span<const BlockKey> keys,
                 WantedBytes* wanted) const;
  // What a read brought other bytes for, or what is on a device that cannot be read.
  void Drop(const NamespaceRecord& ns, const BlockKey& key, const DeviceIndex::Place& place);

  // ---- Writing.
  // A client has opened it: its tenant is known. True: NoteTenant is to be called, without the
  // mutex.
  bool OnOpened(NamespaceRecord* ns);
  void NoteTenant(const NamespaceInfo& info);
  // How many blocks of `block_bytes` may be put now; fewer than `wanted`: the rest is shed.
  // Reserves them; what is not admitted in the end is given back by Unreserve.
  size_t ReserveDirty(uint64_t block_bytes, size_t wanted);
  void UnreserveDirty(uint64_t bytes) { reserved_bytes_ -= bytes; }
  bool has_dirty() const { return dirty_bytes_ > 0; }
  // A run of blocks was stored: admits its leading ones. `parent`: of the first, null at a root.
  void Offer(const NamespaceRecord& ns, std::span<const EntryId> run, const BlockKey* parent,
             uint32_t recompute_us, bool pinned = false);
  // A block and those before it were read from the host tier: what of them is on no device may be
  // admitted now. OfferAgain, called now and then by a flusher, does it; takes the mutex itself.
  void NoteRead(EntryId deepest);
  void OfferAgain();
  // The block is invalidated by its key; `host`: its entry there, or kNoEntry. Whether a device had
  // it. That it stays away is BeginErase's affair, in the same hold of the mutex.
  bool Forget(const NamespaceRecord& ns, const BlockKey& key, EntryId host);
  // What was forgotten of the namespace, or of these keys of it, stays away. The second part BLOCKS
  // until that is durable on each device; without the mutex.
  using Waits = std::vector<std::function<absl::Status()>>;
  Waits BeginErase(const NamespaceId& id, std::span<const BlockKey> keys);
  static absl::Status FinishErase(const Waits& waits);
  // Nothing of the namespace is found on devices from now on. The second part takes the mutex
  // itself and BLOCKS: until that is durable on each device, and what it had is freed.
  struct Clearing {
    std::optional<NamespaceIndex> old;
    uint64_t blocks = 0;
    Waits waits;
  };
  Clearing BeginClear(const NamespaceId& id);
  absl::Status FinishClear(const Clearing& clearing);
  bool IsDirty(EntryId id) const { return dirty_.contains(id); }

  // ---- For DeviceLog. THREADS: any; take the mutex themselves.
  void Recovered(uint32_t device, const SegmentTable& table, ErasedSeqs* erased);
  void Written(uint32_t device, const AppendBlock& block, const BlockLocation& at);
  void NotWritten(const AppendBlock& block, GivenUp why);
  void ChooseSurvivors(uint32_t device, const SegmentTable& table, Keep what, uint8_t lives_max,
                       std::vector<bool>* keep);
  // Takes out blocks of namespaces that were cleared since they were queued.
  void DropStale(std::vector<AppendBlock>* blocks);
  // Gives them the rung's form; what they are by layout it asks under the mutex.
  void EncodeAll(std::vector<AppendBlock>* blocks);
  void Moved(uint32_t device, const NamespaceId& ns, const BlockRecord& record,
             const BlockLocation& from, const BlockLocation& to);
  void Reclaimed(uint32_t device, const SegmentTable& table);
  void DeviceRecovered();
  Cache::Rep& cache() { return cache_; }
  const DeviceTierOptions& options() const { return options_; }

  DeviceTierStats& counted() { return counted_; }  // only its counters

 private:
  // What stands behind the block may be dead then.
  void RemoveOne(const NamespaceRecord& ns, const BlockKey& key, EntryId id);
  struct Dirty {
    uint64_t bytes = 0;
    uint32_t device = 0;
    PoolId pool = 0;
    bool is_forgotten = false;  // invalidated by its key meanwhile
  };
  bool IsInHost(const NamespaceId& id, const BlockKey& key) const;

  std::shared_ptr<DeviceLog> DeviceOfRoot(const BlockKey& root) const;
  // Where the block before a run is, or will be. Null: nowhere.
  std::shared_ptr<DeviceLog> DeviceOf(const NamespaceRecord& ns, const BlockKey& parent) const;
  uint64_t QuotaRoom(const NamespaceRecord& ns) const;
  uint64_t DirtyMax() const;
  void GiveUp(GivenUp why) {
    ++counted_.given_up_blocks[static_cast<size_t>(why)];
    has_host_only_ = true;
  }
  void NotAdmit(NotAdmitted reason, uint64_t blocks) {
    counted_.not_admitted_blocks[static_cast<size_t>(reason)] += blocks;
    has_host_only_ |= blocks > 0;
  }
  AppendBlock BlockOf(const NamespaceRecord& ns, EntryId id, const BlockKey* parent,
                      uint32_t recompute_us) const;
  // Counts that the run was asked for; how many leading blocks were seen before.
  uint32_t SeenBlocks(std::span<const EntryId> run, const BlockKey* parent);
  // The block, and those before it that are on no device either, in the order of the chain. How
  // many were handed to a device.
  size_t OfferChain(EntryId deepest, bool pinned);
  // Leases the blocks and hands them to the device.
  void Admit(const NamespaceRecord& ns, std::span<const EntryId> run, const BlockKey* parent,
             uint32_t recompute_us, DeviceLog* device);
  // The entry is dirty no more; what it was.
  Dirty EndDirty(EntryId id);
  std::vector<std::shared_ptr<DeviceLog>> Devices() const;  // those that are left
  bool is_recovering() const;
  // Whether its key was invalidated while devices are recovered.
  bool IsForgotten(DeviceIndex::Ns ns, const BlockKey& key) const;
  std::optional<DeviceIndex::Ns> NamespaceOf(const NamespaceId& id);  // takes the mutex itself

  // ---- device_hot.cc; those without a word on it take the mutex themselves.
  std::vector<EntryId> HostByHotness();  // hottest first, each behind the blocks before it
  void FlushHostOnly(int64_t deadline_nanos);
  void SaveHot();
  void Preload();  // its thread
  void PreloadChains(NamespaceHandle handle, std::string_view bytes);
  bool HasRoomFor(NamespaceHandle handle, size_t blocks);

  Cache::Rep& cache_;
  const DeviceTierOptions options_;
  DeviceIndex index_;
  SeenCounts seen_;
  Flights flights_{Flights::Limits()};
  LoadTimes load_times_;
  Rung rung_;
  std::vector<std::shared_ptr<DeviceLog>> devices_;  // null: removed
  absl::flat_hash_map<EntryId, Dirty> dirty_;
  uint64_t dirty_bytes_ = 0;
  absl::flat_hash_map<PoolId, uint64_t> dirty_of_pool_;
  std::set<std::pair<DeviceIndex::Ns, std::array<uint8_t, BlockKey::kMaxBytes>>> forgotten_;
  bool has_host_only_ = false;  // some blocks may be on no device
  std::vector<EntryId> read_again_;
  uint64_t reserved_bytes_ = 0;  // for puts in progress
  std::vector<NamespaceInfo> to_preload_;
  std::thread preloader_;
  size_t loads_ = 0;  // under way
  bool is_closing_ = false;
  CondVar idle_;
  DeviceTierStats counted_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_DEVICE_TIER_H_
