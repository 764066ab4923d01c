// What is taken away by order: a namespace or some of its keys, in both tiers, at once for lookups
// and for good on devices.
#include <algorithm>
#include <optional>

#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

// Ids looked at in one hold of the mutex while a namespace is emptied.
constexpr EntryId kIdsPerHold = 16384;

void LogErased(const absl::Status& erased) {
  if (erased.ok()) return;
  KvLog(LogLevel::kError, "an erase is not on every device: blocks may come back with a restart",
        {{"reason", erased.ToString()}});
}

}  // namespace

// The namespace gets a new dense index at once, so that nothing old can be found; the old entries
// then go in slices.
uint64_t Cache::Invalidate(NamespaceHandle ns) {
  absl::Status erased;
  const uint64_t removed = rep_->Clear(ns, &erased);
  LogErased(erased);
  return removed;
}

uint64_t Cache::Rep::Clear(NamespaceHandle ns, absl::Status* erased) {
  Rep& r = *this;
  NamespaceIndex old = 0;
  uint64_t removed = 0;
  EntryId end = 0;
  bool has_second = true;            // index to go on with
  std::shared_ptr<const void> open;  // not forgotten before the old entries are gone
  DeviceTier::Clearing on_devices;
  const auto remove_slice = [&](EntryId begin, EntryId slice_end) {
    r.index->ForEachRange(begin, slice_end, old, [&](EntryId id) {
      r.Remove(id, /*tell=*/false);
      ++removed;
    });
  };
  {
    MutexLock lock(&r.mutex);
    if (r.FindRecord(ns) == nullptr) return 0;
    NamespaceRecord& record = r.Record(ns);
    open = record.info.open;
    old = record.index;
    ++record.epoch;
    r.events.Add(CacheEventKind::kCleared, record.name, BlockKey{}, 0);
    if (r.tier != nullptr) on_devices = r.tier->BeginClear(record.info.id);
    end = r.index->capacity_ids();
    if (r.free_indices.empty()) {  // empty this one while nobody looks
      remove_slice(0, end);
      end = 0;
      has_second = false;
    } else {
      record.index = r.free_indices.back();
      r.group_of_index[record.index] = record.group;
      r.free_indices.pop_back();
      // What still lies in the old index is cleared already: its leaving is no event.
      r.handle_of_index[old] = Rep::kNoHandle;
      r.handle_of_index[record.index] = ns;
    }
  }
  for (EntryId begin = 0; begin < end;) {
    const EntryId slice_end = end - begin > kIdsPerHold ? begin + kIdsPerHold : end;
    MutexLock lock(&r.mutex);
    remove_slice(begin, slice_end);
    begin = slice_end;
  }
  if (r.tier != nullptr) {
    *erased = r.tier->FinishClear(on_devices);
  }
  MutexLock lock(&r.mutex);
  // Used again as late as possible.
  if (has_second) r.free_indices.insert(r.free_indices.begin(), old);
  r.counters.invalidated_blocks += removed;
  return std::max(removed, on_devices.blocks);
}

absl::StatusOr<uint64_t> Cache::Erase(const NamespaceId& id) {
  Rep& r = *rep_;
  std::optional<NamespaceHandle> handle;
  DeviceTier::Clearing on_devices;
  {
    MutexLock lock(&r.mutex);
    if (const auto it = r.handle_of.find(id); it != r.handle_of.end()) {
      handle = it->second;
    } else if (r.tier != nullptr) {
      on_devices = r.tier->BeginClear(id);
    }
  }
  absl::Status erased;
  uint64_t removed = on_devices.blocks;
  if (handle.has_value()) {
    removed = r.Clear(*handle, &erased);
  } else if (r.tier != nullptr) {
    erased = r.tier->FinishClear(on_devices);
  }
  KV_RETURN_IF_ERROR(erased);
  return removed;
}

std::vector<StoredNamespace> Cache::StoredNamespaces() const {
  MutexLock lock(&rep_->mutex);
  std::vector<StoredNamespace> all;
  for (const NamespaceRecord& record : rep_->namespaces) {
    if (record.used != 0) all.push_back({record.info.id, record.info.tenant});
  }
  if (rep_->tier == nullptr) return all;
  const DeviceIndex& index = rep_->tier->index();
  for (DeviceIndex::Ns ns = 0; ns < index.namespaces(); ++ns) {
    if (rep_->handle_of.contains(index.at(ns).id) || index.at(ns).blocks == 0) continue;
    all.push_back({index.at(ns).id, index.TenantOf(ns)});
  }
  return all;
}

uint64_t Cache::InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys) {
  KV_CHECK(keys.size() <= kMaxKeysPerCall);
  uint64_t removed = 0;
  DeviceTier::Waits waits;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysPerHold) {
    const auto slice = keys.subspan(begin, std::min(kKeysPerHold, keys.size() - begin));
    MutexLock lock(&rep_->mutex);
    for (const BlockKey& key : slice) {
      const EntryId id = rep_->index->Find(rep_->Record(ns).index, key);
      const bool was_on_device =
          rep_->tier != nullptr && rep_->tier->Forget(rep_->Record(ns), key, id);
      if (id == kNoEntry && !was_on_device) continue;
      if (id != kNoEntry) rep_->Remove(id);
      ++removed;
      ++rep_->counters.invalidated_blocks;
    }
    if (rep_->tier == nullptr) continue;
    for (auto& wait : rep_->tier->BeginErase(rep_->Record(ns).info.id, slice)) {
      waits.push_back(std::move(wait));
    }
  }
  LogErased(DeviceTier::FinishErase(waits));
  return removed;
}

}  // namespace kvarve
