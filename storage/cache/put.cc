// Put-if-absent: reserve under the mutex, copy without it, publish under it.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

// Blocks reserved together: enough for long runs, few enough that a big put does not empty the
// arena at once.
constexpr size_t kGroupBlocksMax = 64;
constexpr uint64_t kGroupBytesMax = 32ull << 20;

constexpr size_t kCopyAlignment = 64;

// About what a device needs for a few frames.
constexpr int64_t kShedRetryNanos = 5'000'000;

enum class Step : uint8_t { kCopy, kDone };

// The pieces one behind the other. A copy starts at a multiple of 64 bytes; what lies before the
// first one in a piece goes by itself.
uint64_t CopyPieces(std::byte* to, const BlockPieces& pieces, uint64_t crc) {
  for (const std::span<const std::byte> piece : pieces) {
    const size_t head =
        std::min<size_t>(-reinterpret_cast<uintptr_t>(to) % kCopyAlignment, piece.size());
    std::memcpy(to, piece.data(), head);
    crc = BlockChecksum(crc, to, head);
    if (head < piece.size()) {
      crc = CopyAndChecksum(to + head, piece.data() + head, piece.size() - head, crc);
    }
    to += piece.size();
  }
  return crc;
}

// One call of Put. Keeps the chain's deepest known block leased (the guard), so that making room
// for the next blocks never takes the ones before them.
class PutCall {
 public:
  PutCall(Cache::Rep* rep, const PutRequest& request, std::span<PutResult> results)
      : r_(*rep), request_(request), results_(results) {}

  absl::Status Run() {
    {
      MutexLock lock(&r_.mutex);
      // A snapshot: sizes never change, epoch tells an invalidation; and it is open meanwhile.
      NamespaceRecord& ns = r_.Record(request_.ns);
      if (request_.recompute_us != 0) ns.recompute_us = request_.recompute_us;
      ns_ = ns;
      if (request_.parent) {
        const EntryId parent = r_.index->Find(ns_.index, *request_.parent);
        is_orphan_ = parent == kNoEntry &&
                     (r_.tier == nullptr || r_.tier->Find(ns_, *request_.parent) == kNoEntry);
        MoveGuard(parent);
      }
    }
    const size_t group =
        std::clamp<size_t>(kGroupBytesMax / ns_.info.block_bytes, 1, kGroupBlocksMax);
    size_t begin = 0;
    while (begin < results_.size()) {
      const size_t end = std::min(begin + group, results_.size());
      const size_t reserved = Reserve(begin, end);
      begin = Publish(begin, Copy(begin, reserved));
      if (begin < end) {
        results_[begin] = failure_;
        std::fill(results_.begin() + begin + 1, results_.end(), PutResult::kRejectedParent);
        break;
      }
    }
    if (is_refused_) Refuse(begin);
    MutexLock lock(&r_.mutex);
    MoveGuard(kNoEntry);
    for (PutResult result : results_) ++r_.counters.put_blocks[static_cast<int>(result)];
    return status_;
  }

 private:
  // Finds out which blocks exist and takes slots for the others. Returns the end of what can go on;
  // before `end`, failure_ says why.
  size_t Reserve(size_t begin, size_t end) {
    MutexLock lock(&r_.mutex);
    slots_.clear();
    steps_.assign(end - begin, Step::kCopy);
    if (!Current()) {
      failure_ = PutResult::kRejectedInvalidated;
      return begin;
    }
    r_.BeginRequest(ns_.index, request_.request_id);
    missing_.clear();
    for (size_t i = begin; i < end; ++i) {
      const EntryId id = r_.index->Find(ns_.index, request_.keys[i]);
      if (id == kNoEntry) {
        missing_.push_back(i);
        continue;
      }
      Exists(i, id, begin);
    }
    // What waits for these blocks is dead no longer.
    for (const size_t i : missing_) {
      if (r_.families.Expect(NameOf(i), true)) expected_.push_back(i);
    }
    AllocateAllowed(missing_.size());
    if (slots_.size() == missing_.size()) return end;
    size_t have = slots_.size();
    size_t stop = begin;
    for (; stop < end; ++stop) {
      if (steps_[stop - begin] == Step::kCopy && have-- == 0) break;
    }
    return stop;
  }

  // Takes as many slots as the tenant's rate of puts, its other quotas and the room allow.
  void AllocateAllowed(size_t missing) {
    const PoolId pool = ns_.info.pool;
    const uint64_t bytes = ns_.info.block_bytes;
    failure_ = PutResult::kRejectedNoSpace;
    const size_t wanted = missing;
    if (r_.tier != nullptr) {
      missing = r_.tier->ReserveDirty(bytes, missing);
      reserved_dirty_ = missing * bytes;
    }
    const size_t allowed = r_.ingest.Take(pool, bytes, missing, r_.clock->NowNanos());
    std::optional<Resource> limit = r_.AllocateWithRoom(
        ns_, allowed, &slots_, [this](size_t n, EntryId victim) { return Admits(n, victim); });
    if (slots_.size() < allowed) {
      r_.ingest.Return(pool, (allowed - slots_.size()) * bytes);
    } else if (allowed < missing) {
      limit = Resource::kIngest;
    }
    if (is_refused_) {
      failure_ = is_orphan_ ? PutResult::kRejectedParent : PutResult::kRejectedPolicy;
      return;
    }
    if (!limit.has_value()) {
      // What is on its way to a device makes room soon.
      const bool waits = r_.tier != nullptr && r_.tier->has_dirty();
      if (missing < wanted || (slots_.size() < allowed && waits)) {
        failure_ = PutResult::kShed;
        if (request_.retry_after_nanos != nullptr) *request_.retry_after_nanos = kShedRetryNanos;
      }
      return;
    }
    failure_ = PutResult::kRejectedQuota;
    r_.tenants[pool].counted.Refused(*limit, missing - slots_.size());
    if (request_.quota_status != nullptr) {
      *request_.quota_status = r_.OverQuota(pool, *limit, r_.SlotBytes(ns_));
    }
    if (request_.retry_after_nanos != nullptr && *limit == Resource::kIngest) {
      *request_.retry_after_nanos = r_.ingest.Wait(pool);
    }
  }

  // Whether the n-th missing block may come at the cost of `victim` (kNoEntry: of a dead one).
  // Never where the block before the first is nowhere: no lookup would find it. Where there are
  // devices, a block gets there through the host tier: all others may come, and who is worth least
  // leaves again.
  bool Admits(size_t n, EntryId victim) {
    is_refused_ = is_orphan_ || (victim != kNoEntry && r_.tier == nullptr &&
                                 !r_.policy->Admits(TraitsOf(missing_[n]), victim));
    return !is_refused_;
  }

  // Block `first` was refused, and those after it are not kept either: the policy learns from them.
  void Refuse(size_t first) {
    for (size_t begin = first; begin < results_.size(); begin += kKeysPerHold) {
      MutexLock lock(&r_.mutex);
      if (!Current()) return;
      r_.BeginRequest(ns_.index, request_.request_id);
      for (size_t i = begin; i < std::min(begin + kKeysPerHold, results_.size()); ++i) {
        if (r_.index->Find(ns_.index, request_.keys[i]) != kNoEntry) continue;
        r_.policy->OnRefuse(TraitsOf(i));
        ++r_.counters.refused_blocks;
      }
    }
  }

  BlockTraits TraitsOf(size_t i) const {
    const BlockKey* const parent = ParentOf(i);
    const EntryId id = parent != nullptr ? r_.index->Find(ns_.index, *parent) : kNoEntry;
    const auto depth = request_.first_depth + static_cast<uint32_t>(i);
    return r_.TraitsOf(ns_, request_.keys[i], depth, id, request_.recompute_us);
  }

  Families::Name NameOf(size_t i) const {
    return {ns_.index, request_.first_depth + static_cast<uint32_t>(i), request_.keys[i]};
  }

  // Null: block `i` is a root.
  const BlockKey* ParentOf(size_t i) const {
    if (i > 0) return &request_.keys[i - 1];
    return request_.parent ? &*request_.parent : nullptr;
  }

  // Returns the end of what is as it should be; before `end`, status_ says why.
  size_t Copy(size_t begin, size_t end) {
    checksums_.assign(end - begin, 0);
    size_t slot = 0;
    for (size_t i = begin; i < end; ++i) {
      if (steps_[i - begin] != Step::kCopy) continue;
      const uint64_t seed = ChecksumSeed(ns_.info.id, request_.keys[i], ns_.info.block_bytes);
      std::byte* const to = r_.arena->Data(slots_[slot++]);
      checksums_[i - begin] = request_.pieces.empty() ? CopyAndChecksum(to, request_.sources[i],
                                                                        ns_.info.block_bytes, seed)
                                                      : CopyPieces(to, request_.pieces[i], seed);
      if (!request_.expected.empty() && checksums_[i - begin] != request_.expected[i]) {
        failure_ = PutResult::kRejectedPolicy;
        status_ = absl::DataLossError(
            absl::StrFormat("block %d does not have the checksum that was promised", i));
        return i;
      }
    }
    return end;
  }

  // Returns the end of what was published or found to exist; before `end`, failure_ says why.
  size_t Publish(size_t begin, size_t end) {
    MutexLock lock(&r_.mutex);
    r_.BeginRequest(ns_.index, request_.request_id);
    r_.reserved_slots -= slots_.size();
    size_t slot = 0;
    size_t i = begin;
    for (; i < end; ++i) {
      if (!Current()) {
        failure_ = PutResult::kRejectedInvalidated;
        break;
      }
      if (steps_[i - begin] != Step::kCopy) {
        Offer(i);
        continue;
      }
      if (!PublishOne(i, slots_[slot], checksums_[i - begin], begin)) {
        failure_ = PutResult::kRejectedNoSpace;
        break;
      }
      ++slot;
      if (results_[i] != PutResult::kStored) Offer(i);
    }
    for (; slot < slots_.size(); ++slot) r_.FreeSlot(slots_[slot]);
    for (const size_t expected : expected_) r_.families.Expect(NameOf(expected), false);
    expected_.clear();
    Offer(i);
    if (r_.tier != nullptr) r_.tier->UnreserveDirty(std::exchange(reserved_dirty_, 0));
    return i;
  }

  // The run of stored blocks that ends before block `end` may go to a device.
  void Offer(size_t end) {
    if (run_.empty()) return;
    r_.tier->Offer(ns_, run_, ParentOf(end - run_.size()), request_.recompute_us);
    run_.clear();
  }

  // False: no space; the slot is freed by the caller.
  bool PublishOne(size_t i, SlotRef slot, uint64_t checksum, size_t begin) {
    const EntryId found = r_.index->Find(ns_.index, request_.keys[i]);
    if (found != kNoEntry) {  // another put was first
      if (r_.index->Get(found).checksum != checksum) ++r_.counters.put_conflicts;
      r_.FreeSlot(slot);
      Exists(i, found, begin);
      return true;
    }
    // Its chunk was given up during the copy: a block in it would keep it.
    if (r_.arena->IsRetiring(slot)) return false;
    const uint32_t depth = request_.first_depth + static_cast<uint32_t>(i);
    const std::optional<EntryId> id = r_.InsertBlock(ns_, {.key = request_.keys[i],
                                                           .parent = ParentOf(i),
                                                           .depth = depth,
                                                           .slot = slot,
                                                           .checksum = checksum,
                                                           .recompute_us = request_.recompute_us});
    if (!id.has_value()) return false;
    r_.touches.Touched(ns_.index, request_.request_id, depth + 1);
    r_.Tell(CacheEventKind::kStored, r_.index->Get(*id));
    if (r_.tier != nullptr) run_.push_back(*id);
    results_[i] = PutResult::kStored;
    r_.counters.put_bytes += ns_.info.block_bytes;
    PoolStats& counted = r_.tenants[ns_.info.pool].counted;
    ++counted.stored_blocks;
    counted.stored_bytes += ns_.info.block_bytes;
    MoveGuard(*id);
    return true;
  }

  void Exists(size_t i, EntryId id, size_t begin) {
    results_[i] = PutResult::kExists;
    steps_[i - begin] = Step::kDone;
    r_.TouchFound(ns_.index, std::span(&id, 1), request_.request_id);
    MoveGuard(id);
  }

  void MoveGuard(EntryId id) {
    const EntryId old = std::exchange(guard_, kNoEntry);
    if (id != kNoEntry && r_.index->Lease(id)) guard_ = id;
    if (old != kNoEntry) r_.UnleaseEntry(old);
  }

  bool Current() { return r_.Record(request_.ns).epoch == ns_.epoch; }

  Cache::Rep& r_;
  const PutRequest& request_;
  std::span<PutResult> results_;
  NamespaceRecord ns_;
  EntryId guard_ = kNoEntry;
  std::vector<SlotRef> slots_;  // of this group, in the order of its blocks to copy
  std::vector<Step> steps_;
  std::vector<size_t> missing_;   // of this group
  std::vector<size_t> expected_;  // of these, for which others wait
  bool is_orphan_ = false;        // the parent that is claimed is in no tier
  bool is_refused_ = false;       // at the cost of others
  std::vector<uint64_t> checksums_;
  PutResult failure_ = PutResult::kRejectedNoSpace;
  std::vector<EntryId> run_;  // stored one after the other, and not yet offered to a device
  uint64_t reserved_dirty_ = 0;
  absl::Status status_;
};

}  // namespace

std::optional<EntryId> Cache::Rep::InsertBlock(const NamespaceRecord& ns, const NewBlock& block) {
  const auto id = index->Insert(ns.index, block.key, block.parent, block.depth, block.slot.packed,
                                block.checksum);
  if (!id.ok()) return std::nullopt;
  ++blocks_of_index[ns.index];
  arena->SetOwner(block.slot, *id);
  const EntryId linked = index->Get(*id).parent;
  families.Add(*id);
  if (linked != kNoEntry) {
    families.SetParent(*id, linked);
  } else if (block.parent != nullptr && block.depth > 0 &&
             index->Find(ns.index, *block.parent) == kNoEntry) {
    const bool is_on_device = tier != nullptr && tier->Find(ns, *block.parent) != kNoEntry;
    families.SetParent(*id, {ns.index, block.depth - 1, *block.parent}, ns.group,
                       is_on_device ? Families::Parent::kOnDevice : Families::Parent::kGone);
  }
  BlockTraits traits = TraitsOf(ns, block.key, block.depth, linked, block.recompute_us);
  traits.is_loaded = block.is_loaded;
  policy->OnInsert(*id, traits, /*evictable=*/true);
  if (linked != kNoEntry && index->Get(linked).children == 1) policy->OnEvictable(linked, false);
  if (families.Adopt(*id, {ns.index, block.depth, block.key})) {
    index->AddChild(*id);
    policy->OnEvictable(*id, false);
  }
  return *id;
}

std::string_view PutResultName(PutResult result) {
  switch (result) {
    case PutResult::kStored:
      return "stored";
    case PutResult::kExists:
      return "exists";
    case PutResult::kRejectedParent:
      return "rejected_parent";
    case PutResult::kRejectedNoSpace:
      return "rejected_no_space";
    case PutResult::kRejectedPolicy:
      return "rejected_policy";
    case PutResult::kRejectedInvalidated:
      return "rejected_invalidated";
    case PutResult::kRejectedQuota:
      return "rejected_quota";
    case PutResult::kShed:
      return "shed";
  }
  return "unknown";
}

absl::Status Cache::Put(const PutRequest& request, std::span<PutResult> results) {
  const size_t blocks = request.pieces.empty() ? request.sources.size() : request.pieces.size();
  if (request.keys.size() != results.size() || request.keys.size() != blocks ||
      request.keys.size() > kMaxKeysPerCall) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "put of %d keys with %d sources and %d results: they must be as many, at most %d",
        request.keys.size(), blocks, results.size(), kMaxKeysPerCall));
  }
  if (!request.pieces.empty()) {
    MutexLock lock(&rep_->mutex);
    const uint64_t block_bytes = rep_->Record(request.ns).info.block_bytes;
    for (const BlockPieces& pieces : request.pieces) {
      uint64_t bytes = 0;
      for (const std::span<const std::byte> piece : pieces) bytes += piece.size();
      if (bytes != block_bytes) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "put of a block of %d bytes; the namespace's have %d", bytes, block_bytes));
      }
    }
  }
  if (request.first_depth + request.keys.size() > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrFormat("depth %d is over %d", request.first_depth, kMaxDepth));
  }
  if (!request.expected.empty() && request.expected.size() != request.keys.size()) {
    return absl::InvalidArgumentError("put: one expected checksum a key, or none");
  }
  const absl::Status status = PutCall(rep_.get(), request, results).Run();
  rep_->TellPut(request);
  return status;
}

}  // namespace kvarve
