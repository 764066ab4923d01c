#include "storage/cache/put_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "storage/block/checksum.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

// Blocks reserved together: enough for long runs, few enough that a big put does not empty the
// arena at once.
constexpr size_t kGroupBlocksMax = 64;
constexpr uint64_t kGroupBytesMax = 32ull << 20;

// About what a device needs for a few frames.
constexpr int64_t kShedRetryNanos = 5'000'000;

}  // namespace

void PutCall::Begin() {
  MutexLock lock(&r_.mutex);
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

void PutCall::Run() {
  Begin();
  const size_t group =
      std::clamp<size_t>(kGroupBytesMax / ns_.info.block_bytes, 1, kGroupBlocksMax);
  size_t begin = 0;
  while (begin < results_.size()) {
    const size_t end = std::min(begin + group, results_.size());
    const size_t reserved = Reserve(begin, end);
    Copy(begin, reserved);
    begin = Publish(begin, reserved, checksums_);
    if (begin < end) break;
  }
  End(begin);
}

void PutCall::End(size_t begin) {
  if (begin < results_.size()) {
    results_[begin] = failure_;
    std::fill(results_.begin() + begin + 1, results_.end(), PutResult::kRejectedParent);
  }
  if (is_refused_) Refuse(begin);
  MutexLock lock(&r_.mutex);
  MoveGuard(kNoEntry);
  for (PutResult result : results_) ++r_.counters.put_blocks[static_cast<int>(result)];
}

void PutCall::Abandon() {
  Publish(0, 0, {});
  MutexLock lock(&r_.mutex);
  MoveGuard(kNoEntry);
}

size_t PutCall::Reserve(size_t begin, size_t end) {
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

void PutCall::AllocateAllowed(size_t missing) {
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
      Shed();
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

bool PutCall::Admits(size_t n, EntryId victim) {
  is_refused_ = is_orphan_ || (victim != kNoEntry && r_.tier == nullptr &&
                               !r_.policy->Admits(TraitsOf(missing_[n]), victim));
  return !is_refused_;
}

void PutCall::Refuse(size_t first) {
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

BlockTraits PutCall::TraitsOf(size_t i) const {
  const BlockKey* const parent = ParentOf(i);
  const EntryId id = parent != nullptr ? r_.index->Find(ns_.index, *parent) : kNoEntry;
  const auto depth = request_.first_depth + static_cast<uint32_t>(i);
  return r_.TraitsOf(ns_, request_.keys[i], depth, id, request_.recompute_us);
}

const BlockKey* PutCall::ParentOf(size_t i) const {
  if (i > 0) return &request_.keys[i - 1];
  return request_.parent ? &*request_.parent : nullptr;
}

void PutCall::Copy(size_t begin, size_t end) {
  checksums_.assign(end - begin, 0);
  size_t slot = 0;
  for (size_t i = begin; i < end; ++i) {
    if (steps_[i - begin] != Step::kCopy) continue;
    checksums_[i - begin] =
        CopyAndChecksum(r_.arena->Data(slots_[slot++]), request_.sources[i], ns_.info.block_bytes,
                        ChecksumSeed(ns_.info.id, request_.keys[i], ns_.info.block_bytes));
  }
}

size_t PutCall::Publish(size_t begin, size_t end, std::span<const uint64_t> checksums) {
  MutexLock lock(&r_.mutex);
  r_.BeginRequest(ns_.index, request_.request_id);
  r_.reserved_slots -= slots_.size();
  if (reserves_dirty_later_ && begin < end && IsToStore(begin) && !ReserveDirtyNow()) end = begin;
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
    if (!PublishOne(i, slots_[slot], checksums[i - begin], begin)) {
      failure_ = PutResult::kRejectedNoSpace;
      break;
    }
    ++slot;
    if (results_[i] != PutResult::kStored) Offer(i);
  }
  // What was taken of the rate for bytes that may never have come is given back.
  if (reserves_dirty_later_) {
    r_.ingest.Return(ns_.info.pool, (slots_.size() - slot) * ns_.info.block_bytes);
  }
  for (; slot < slots_.size(); ++slot) r_.FreeSlot(slots_[slot]);
  slots_.clear();
  for (const size_t expected : expected_) r_.families.Expect(NameOf(expected), false);
  expected_.clear();
  Offer(i);
  if (r_.tier != nullptr) r_.tier->UnreserveDirty(std::exchange(reserved_dirty_, 0));
  return i;
}

void PutCall::ReserveDirtyLater() {
  MutexLock lock(&r_.mutex);
  reserves_dirty_later_ = true;
  if (r_.tier != nullptr) r_.tier->UnreserveDirty(std::exchange(reserved_dirty_, 0));
}

bool PutCall::IsToStore(size_t i) const {
  return Current() && r_.index->Find(ns_.index, request_.keys[i]) == kNoEntry;
}

bool PutCall::ReserveDirtyNow() {
  if (r_.tier == nullptr) return true;
  const uint64_t bytes = ns_.info.block_bytes;
  const size_t blocks = r_.tier->ReserveDirty(bytes, slots_.size());
  reserved_dirty_ = blocks * bytes;
  if (blocks < slots_.size()) Shed();
  return blocks == slots_.size();
}

void PutCall::Shed() {
  failure_ = PutResult::kShed;
  if (request_.retry_after_nanos != nullptr) *request_.retry_after_nanos = kShedRetryNanos;
}

void PutCall::Offer(size_t end) {
  if (run_.empty()) return;
  r_.tier->Offer(ns_, run_, ParentOf(end - run_.size()), request_.recompute_us);
  run_.clear();
}

bool PutCall::PublishOne(size_t i, SlotRef slot, uint64_t checksum, size_t begin) {
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

void PutCall::Exists(size_t i, EntryId id, size_t begin) {
  results_[i] = PutResult::kExists;
  steps_[i - begin] = Step::kDone;
  r_.TouchFound(ns_.index, std::span(&id, 1), request_.request_id);
  MoveGuard(id);
}

void PutCall::MoveGuard(EntryId id) {
  const EntryId old = std::exchange(guard_, kNoEntry);
  if (id != kNoEntry && r_.index->Lease(id)) guard_ = id;
  if (old != kNoEntry) r_.UnleaseEntry(old);
}

}  // namespace kvarve
