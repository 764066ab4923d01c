// A put in progress: slots are reserved under the mutex, filled without it, published under it.
#ifndef KVARVE_STORAGE_CACHE_PUT_CALL_H_
#define KVARVE_STORAGE_CACHE_PUT_CALL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/cache/cache_rep.h"

namespace kvarve {

// Keeps the chain's deepest known block leased (the guard), so that making room for the next blocks
// never takes the ones before them. THREADS: one at a time; takes the cache's mutex itself.
class PutCall {
 public:
  // All outlive it.
  PutCall(Cache::Rep* rep, const PutRequest& request, std::span<PutResult> results)
      : r_(*rep), request_(request), results_(results) {}

  // The whole of it, with bytes from request.sources.
  void Run();

  // Or step by step: Begin; of one group of blocks after the other Reserve, the copies, Publish;
  // End.
  void Begin();
  // Finds out which blocks exist and takes slots for the others. Returns the end of what can go on;
  // before `end`, the failure is known.
  size_t Reserve(size_t begin, size_t end);
  // Publishes the group's blocks before `end` with these checksums, one a block. Returns the end of
  // what was published or found to exist. All other slots of the group are free again.
  size_t Publish(size_t begin, size_t end, std::span<const uint64_t> checksums);
  // Writes results: `begin` blocks have theirs, the next one has failed, if there is one.
  void End(size_t begin);

  // Instead of Publish and End: nothing was put.
  void Abandon();
  // The next block fails for another reason than those known here.
  void Fail(PutResult result) { failure_ = result; }

  // Of the group: the slots of the blocks that do not exist, in order.
  std::span<const SlotRef> slots() const { return slots_; }
  // A snapshot: sizes never change, the epoch tells an invalidation; and it is open meanwhile.
  const NamespaceRecord& ns() const { return ns_; }
  // Whoever fills the slots slowly must not keep others from the devices: what the group has
  // reserved of what may be on its way there is asked for again when it is published. And what it
  // took of the rate of puts goes back for what is not.
  void ReserveDirtyLater();

 private:
  enum class Step : uint8_t { kCopy, kDone };

  // Takes as many slots as the tenant's rate of puts, its other quotas and the room allow.
  void AllocateAllowed(size_t missing);
  // Whether the n-th missing block may come at the cost of `victim` (kNoEntry: of a dead one).
  // Never where the block before the first is nowhere: no lookup would find it. Where there are
  // devices, a block gets there through the host tier: all others may come, and who is worth least
  // leaves again.
  bool Admits(size_t n, EntryId victim);
  // Block `first` was refused, and those after it are not kept either: the policy learns from them.
  void Refuse(size_t first);
  BlockTraits TraitsOf(size_t i) const;
  Families::Name NameOf(size_t i) const {
    return {ns_.index, request_.first_depth + static_cast<uint32_t>(i), request_.keys[i]};
  }
  // Null: block `i` is a root.
  const BlockKey* ParentOf(size_t i) const;
  void Copy(size_t begin, size_t end);
  // Whether nobody else stored it meanwhile, and it was not invalidated.
  bool IsToStore(size_t i) const;
  // False: too much is on its way to devices.
  bool ReserveDirtyNow();
  void Shed();
  // The run of stored blocks that ends before block `end` may go to a device.
  void Offer(size_t end);
  // False: no space; the slot is freed by the caller.
  bool PublishOne(size_t i, SlotRef slot, uint64_t checksum, size_t begin);
  void Exists(size_t i, EntryId id, size_t begin);
  void MoveGuard(EntryId id);
  bool Current() const { return r_.Record(request_.ns).epoch == ns_.epoch; }

  Cache::Rep& r_;
  const PutRequest& request_;
  const std::span<PutResult> results_;
  NamespaceRecord ns_;
  EntryId guard_ = kNoEntry;
  std::vector<SlotRef> slots_;
  std::vector<Step> steps_;       // of the group's blocks
  std::vector<size_t> missing_;   // of the group
  std::vector<size_t> expected_;  // of these, for which others wait
  bool is_orphan_ = false;        // the parent that is claimed is in no tier
  bool is_refused_ = false;       // at the cost of others
  std::vector<uint64_t> checksums_;
  PutResult failure_ = PutResult::kRejectedNoSpace;
  std::vector<EntryId> run_;  // stored one after the other, and not yet offered to a device
  uint64_t reserved_dirty_ = 0;
  bool reserves_dirty_later_ = false;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_PUT_CALL_H_
