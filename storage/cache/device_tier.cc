#include "storage/cache/device_tier.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/cache/device_log.h"
#include "storage/segment/device_format.h"

namespace kvarve {
namespace {

constexpr size_t kRecordsPerHold = 512;
constexpr EntryId kIdsPerHold = 16384;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

std::string TenantName(const NamespaceId& id) {
  return "tenant/" +
         absl::BytesToHexString({reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()});
}

// As CookieOf put them together.
EntryId EntryOf(const AppendBlock& block) { return static_cast<EntryId>(block.cookie); }
uint32_t GenerationOf(const AppendBlock& block) {
  return static_cast<uint32_t>(block.cookie >> 32);
}

}  // namespace

std::string_view NotAdmittedName(NotAdmitted reason) {
  constexpr std::string_view kNames[kNotAdmitted] = {"budget", "parent", "off", "quota"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view GivenUpName(GivenUp reason) {
  constexpr std::string_view kNames[kGivenUp] = {"invalidated", "device", "full", "too_large",
                                                 "index"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view DeviceStateName(DeviceState state) {
  constexpr std::string_view kNames[] = {"recovering", "ready", "write_off", "off"};
  return kNames[static_cast<size_t>(state)];
}

DeviceTier::DeviceTier(Cache::Rep* cache, const DeviceTierOptions& options)
    : cache_(*cache),
      options_(options),
      index_(cache->incarnation, options.max_entries),
      rung_(options.rung) {
  if (options_.catalogue != nullptr) preloader_ = std::thread([this] { Preload(); });
}

DeviceTier::~DeviceTier() {
  CloseLoads();
  for (const auto& device : devices_) {
    if (device != nullptr) device->Stop(/*polite=*/false);
  }
}

std::vector<std::shared_ptr<DeviceLog>> DeviceTier::Devices() const {
  std::vector<std::shared_ptr<DeviceLog>> devices;
  for (const auto& device : devices_) {
    if (device != nullptr) devices.push_back(device);
  }
  return devices;
}

std::shared_ptr<DeviceLog> DeviceTier::device(uint32_t number) const { return devices_[number]; }

// ---- Devices

absl::Status DeviceTier::Add(std::unique_ptr<Device> device) {
  uint32_t number = 0;
  KV_ASSIGN_OR_RETURN(const Superblock superblock, ReadSuperblock(device.get(), nullptr));
  {
    MutexLock lock(&cache_.mutex);
    for (const auto& known : Devices()) {
      if (known->path() == device->info().path) {
        return absl::AlreadyExistsError(known->path() + " is in use already");
      }
      // The catalogue would take the tables of one for the other's.
      if (known->uuid() == superblock.uuid) {
        return absl::AlreadyExistsError(
            absl::StrFormat("%s is a copy of %s, which is in use (both are device %s): remove one, "
                            "or format it anew",
                            device->info().path, known->path(), UuidText(superblock.uuid)));
      }
    }
    number = static_cast<uint32_t>(devices_.size());
    devices_.emplace_back();
  }
  KV_ASSIGN_OR_RETURN(std::shared_ptr<DeviceLog> opened,
                      DeviceLog::Open(this, number, std::move(device)));
  {
    MutexLock lock(&cache_.mutex);
    devices_[number] = opened;
  }
  opened->Start();
  return absl::OkStatus();
}

absl::Status DeviceTier::Remove(std::string_view path) {
  std::shared_ptr<DeviceLog> device;
  {
    MutexLock lock(&cache_.mutex);
    for (const auto& known : Devices()) {
      if (known->path() == path) device = known;
    }
    if (device == nullptr) {
      return absl::NotFoundError(absl::StrFormat("%s is no device of this daemon", path));
    }
    device->Close();
  }
  device->Seal();
  device->SaveBudget();
  device->Stop(/*polite=*/true);
  for (EntryId begin = 0, end = 1; begin < end; begin += kIdsPerHold) {
    MutexLock lock(&cache_.mutex);
    end = index_.ids();
    index_.RemoveDevice(device->number(), begin, std::min(end, begin + kIdsPerHold));
  }
  MutexLock lock(&cache_.mutex);
  devices_[device->number()] = nullptr;  // reads under way keep it
  return absl::OkStatus();
}

bool DeviceTier::WaitIdle(int64_t deadline_nanos) {
  MutexLock lock(&cache_.mutex);
  for (;;) {
    if (dirty_.empty() && !is_recovering()) return true;
    const int64_t left = deadline_nanos - Now();
    if (left <= 0) return false;
    idle_.wait_for(cache_.mutex, std::chrono::nanoseconds(left));
  }
}

DeviceTierStats DeviceTier::Stats() {
  DeviceTierStats stats = counted_;
  stats.blocks = index_.blocks();
  stats.bytes = index_.bytes();
  stats.index_bytes = index_.MemoryBytes();
  stats.dirty_blocks = dirty_.size();
  stats.dirty_bytes = dirty_bytes_;
  stats.dirty_bytes_max = DirtyMax();
  stats.flights = flights_.stats();
  const Rung::Counters rung = rung_.counters();
  stats.encoded_blocks = rung.encoded_blocks;
  stats.encoded_saved_bytes = rung.encoded_saved_bytes;
  stats.kept_raw_blocks = rung.kept_raw_blocks;
  stats.decoded_blocks = rung.decoded_blocks;
  stats.undecodable_blocks = rung.undecodable_blocks;
  for (const auto& device : Devices()) {
    DeviceStats of = device->Stats();
    of.step = device->budget().step();
    of.budget_unlimited = device->budget().unlimited();
    of.budget_bytes = device->budget().level_bytes();
    of.budget_bytes_per_second = device->budget().bytes_per_second();
    stats.devices.push_back(std::move(of));
  }
  return stats;
}

// ---- Reading

size_t DeviceTier::FindPrefix(const NamespaceRecord& ns, std::span<const BlockKey> keys,
                              EntryId* ids) const {
  return ns.device_ns == kNoDeviceNs ? 0 : index_.FindPrefix(ns.device_ns, keys, ids);
}

EntryId DeviceTier::Find(const NamespaceRecord& ns, const BlockKey& key) const {
  return ns.device_ns == kNoDeviceNs ? kNoEntry : index_.Find(ns.device_ns, key);
}

void DeviceTier::Drop(const NamespaceRecord& ns, const BlockKey& key,
                      const DeviceIndex::Place& place) {
  const EntryId id = Find(ns, key);
  if (id != kNoEntry && index_.PlaceOf(id) == place) RemoveOne(ns, key, id);
}

void DeviceTier::RemoveOne(const NamespaceRecord& ns, const BlockKey& key, EntryId id) {
  const uint32_t depth = index_.DepthOf(id);
  index_.Remove(id);
  cache_.GoneBelow(ns, key, depth);
}

// ---- Namespaces

bool DeviceTier::OnOpened(NamespaceRecord* ns) {
  const auto number = index_.NamespaceOf(ns->info.id);
  if (!number.has_value()) return false;  // of too many; it stays in the host tier
  ns->device_ns = *number;
  to_preload_.push_back(ns->info);
  idle_.notify_all();
  if (index_.TenantOf(*number) == ns->info.tenant) return false;
  index_.SetTenant(*number, ns->info.tenant);
  return true;
}

void DeviceTier::NoteTenant(const NamespaceInfo& info) {
  if (options_.catalogue == nullptr) return;
  options_.catalogue->PutMeta(TenantName(info.id), info.tenant).IgnoreError();  // counted there
}

void DeviceTier::CloseLoads() {
  {
    MutexLock lock(&cache_.mutex);
    is_closing_ = true;
    idle_.notify_all();
    while (loads_ > 0) idle_.wait(cache_.mutex);
  }
  if (preloader_.joinable()) preloader_.join();
}

// What is still to be recovered of it stays away, too: its generation says that it was cleared.
DeviceTier::Clearing DeviceTier::BeginClear(const NamespaceId& id) {
  Clearing clearing;
  if (const auto number = index_.NamespaceOf(id); number.has_value()) {
    clearing.blocks = index_.at(*number).blocks;
    clearing.old = index_.BeginClear(*number);
  }
  clearing.waits = BeginErase(id, {});
  return clearing;
}

absl::Status DeviceTier::FinishClear(const Clearing& clearing) {
  const absl::Status status = FinishErase(clearing.waits);
  if (clearing.old.has_value()) {
    for (EntryId begin = 0, end = 1; begin < end; begin += kIdsPerHold) {
      MutexLock lock(&cache_.mutex);
      end = index_.ids();
      index_.ClearSlice(*clearing.old, begin, std::min(end, begin + kIdsPerHold));
    }
    MutexLock lock(&cache_.mutex);
    index_.EndClear(*clearing.old);
  }
  return status;
}

bool DeviceTier::Forget(const NamespaceRecord& ns, const BlockKey& key, EntryId host) {
  if (ns.device_ns == kNoDeviceNs) return false;
  const EntryId id = Find(ns, key);
  if (id != kNoEntry) RemoveOne(ns, key, id);
  if (const auto it = dirty_.find(host); it != dirty_.end()) it->second.is_forgotten = true;
  if (is_recovering()) forgotten_.emplace(ns.device_ns, key.bytes);
  return id != kNoEntry;
}

bool DeviceTier::is_recovering() const {
  return !std::ranges::all_of(Devices(), &DeviceLog::recovered);
}

bool DeviceTier::IsForgotten(DeviceIndex::Ns ns, const BlockKey& key) const {
  return !forgotten_.empty() && forgotten_.contains({ns, key.bytes});
}

DeviceTier::Waits DeviceTier::BeginErase(const NamespaceId& id, std::span<const BlockKey> keys) {
  Waits waits;
  for (const auto& device : Devices()) {
    waits.push_back([device, end = device->BeginErase(id, keys)] { return device->Wait(*end); });
  }
  return waits;
}

absl::Status DeviceTier::FinishErase(const Waits& waits) {
  absl::Status status;
  for (const auto& wait : waits) {
    const absl::Status erased = wait();
    if (status.ok()) status = Unshared(erased);
  }
  return status;
}

// ---- What the logs tell

void DeviceTier::Recovered(uint32_t device, const SegmentTable& table, ErasedSeqs* erased) {
  std::vector<bool> living = erased->Living(table);
  if (options_.bug == PlantedTierBug::kErasesIgnored) {
    for (size_t i = 0; i < living.size(); ++i) living[i] = !table.records[i].is_erase();
  }
  std::vector<std::optional<DeviceIndex::Ns>> numbers;
  for (const NamespaceId& id : table.namespaces) numbers.push_back(NamespaceOf(id));
  if (options_.bug == PlantedTierBug::kFirstNamespaceForAll) {
    std::fill(numbers.begin(), numbers.end(), numbers.front());
  }
  for (size_t begin = 0; begin < living.size(); begin += kRecordsPerHold) {
    MutexLock lock(&cache_.mutex);
    const size_t end = std::min(begin + kRecordsPerHold, living.size());
    for (size_t i = begin; i < end; ++i) {
      const BlockRecord& record = table.records[i];
      const auto ns = numbers[record.ns_ref];
      if (!living[i] || !ns.has_value()) continue;
      if (index_.at(*ns).generation != 0) continue;  // cleared since the start
      if (IsForgotten(*ns, record.key)) continue;
      if (!IsKnownRepresentation(record.repr)) ++counted_.unknown_form_blocks;
      const BlockLocation at{table.facts.segment_id, record.off4k};
      index_.Insert(*ns, record, DeviceIndex::PlaceOf(record, device, at));
    }
  }
}

// A namespace that is met for the first time since the start belongs to the tenant that the
// catalogue names.
std::optional<DeviceIndex::Ns> DeviceTier::NamespaceOf(const NamespaceId& id) {
  {
    MutexLock lock(&cache_.mutex);
    if (const auto known = index_.FindNamespace(id)) return known;
  }
  std::optional<std::string> tenant;
  if (options_.catalogue != nullptr) tenant = options_.catalogue->GetMeta(TenantName(id));
  MutexLock lock(&cache_.mutex);
  const auto number = index_.NamespaceOf(id);
  if (number.has_value() && tenant.has_value() && index_.TenantOf(*number).empty()) {
    index_.SetTenant(*number, *tenant);
  }
  return number;
}

void DeviceTier::DeviceRecovered() {
  MutexLock lock(&cache_.mutex);
  if (!is_recovering()) forgotten_.clear();
  idle_.notify_all();
}

DeviceTier::Dirty DeviceTier::EndDirty(EntryId id) {
  const auto it = dirty_.find(id);
  KV_CHECK(it != dirty_.end());
  const Dirty dirty = it->second;
  dirty_.erase(it);
  dirty_bytes_ -= dirty.bytes;
  dirty_of_pool_[dirty.pool] -= dirty.bytes;
  cache_.UnleaseEntry(id);
  if (dirty_.empty()) idle_.notify_all();
  return dirty;
}

void DeviceTier::Written(uint32_t device, const AppendBlock& block, const BlockLocation& at) {
  {
    MutexLock lock(&cache_.mutex);
    const EntryId id = EntryOf(block);
    const bool is_live = cache_.index->Get(id).live;  // it is leased, and so there
    const Dirty dirty = EndDirty(id);
    const auto ns = index_.FindNamespace(block.ns);
    ++counted_.written_blocks;
    counted_.written_bytes += block.record.stored_len;
    devices_[device]->budget().GiveBack(dirty.bytes - block.record.pages() * kUnit);
    const bool is_stale =
        dirty.is_forgotten || !ns || index_.at(*ns).generation != GenerationOf(block);
    if (is_stale && options_.bug != PlantedTierBug::kClearedArrives) {
      GiveUp(GivenUp::kInvalidated);
      return;
    }
    if (!index_.Insert(*ns, block.record, DeviceIndex::PlaceOf(block.record, device, at)) &&
        index_.Find(*ns, block.record.key) == kNoEntry) {
      GiveUp(GivenUp::kIndex);
      return;
    }
    if (is_live) cache_.policy->OnCopied(id, true);
  }
  if (options_.on_written) options_.on_written(block);
}

void DeviceTier::NotWritten(const AppendBlock& block, GivenUp why) {
  MutexLock lock(&cache_.mutex);
  EndDirty(EntryOf(block));
  GiveUp(why);
}

void DeviceTier::DropStale(std::vector<AppendBlock>* blocks) {
  if (options_.bug == PlantedTierBug::kStaleIsWritten) return;
  MutexLock lock(&cache_.mutex);
  std::erase_if(*blocks, [this](const AppendBlock& block) {
    const auto ns = index_.FindNamespace(block.ns);
    const bool is_forgotten = dirty_.find(EntryOf(block))->second.is_forgotten;
    if (ns && index_.at(*ns).generation == GenerationOf(block) && !is_forgotten) return false;
    EndDirty(EntryOf(block));
    GiveUp(GivenUp::kInvalidated);
    return true;
  });
}

bool DeviceTier::IsInHost(const NamespaceId& id, const BlockKey& key) const {
  const auto handle = cache_.handle_of.find(id);
  if (handle == cache_.handle_of.end()) return false;
  const NamespaceRecord* const record = cache_.FindRecord(handle->second);
  return record != nullptr && cache_.index->Find(record->index, key) != kNoEntry;
}

// Hot: read since it was written here, or in the host tier still, after all that was written since.
// What is read there is not read here, and a policy that keeps it for long would otherwise have the
// only copy. In a row of segments that end oldest first a chain's first blocks would be the first
// to go, too: a parent that is worth memory is worth its place here.
void DeviceTier::ChooseSurvivors(uint32_t device, const SegmentTable& table, Keep what,
                                 uint8_t lives_max, std::vector<bool>* keep) {
  if (options_.bug == PlantedTierBug::kHotNotKept) return;
  for (size_t begin = 0; begin < table.records.size(); begin += kRecordsPerHold) {
    MutexLock lock(&cache_.mutex);
    const size_t end = std::min(begin + kRecordsPerHold, table.records.size());
    for (size_t i = begin; i < end; ++i) {
      const BlockRecord& record = table.records[i];
      const auto ns = index_.FindNamespace(table.namespaces[record.ns_ref]);
      if (record.is_erase() || !ns) continue;
      const EntryId id = index_.Find(*ns, record.key);
      if (id == kNoEntry) continue;
      const DeviceIndex::Place place = index_.PlaceOf(id);
      if (place.device != device || place.at.segment_id != table.facts.segment_id ||
          place.at.off4k != record.off4k) {
        continue;
      }
      const bool in_host = IsInHost(index_.at(*ns).id, record.key);
      // What memory still has may be written again when it is read; what was read here may be
      // nowhere else.
      const bool is_hot = index_.HitsOf(id) > 0 || (in_host && what != Keep::kBest);
      (*keep)[i] = what == Keep::kAll || (is_hot && record.lives < lives_max);
      has_host_only_ |= in_host && !(*keep)[i];  // offered again when it is read
    }
  }
}

void DeviceTier::Moved(uint32_t device, const NamespaceId& id, const BlockRecord& record,
                       const BlockLocation& from, const BlockLocation& to) {
  MutexLock lock(&cache_.mutex);
  const auto ns = index_.FindNamespace(id);
  if (!ns) return;
  devices_[device]->budget().Charge(record.pages() * kUnit, devices_[device]->NowSeconds());
  index_.Move(*ns, record, DeviceIndex::PlaceOf(record, device, from),
              DeviceIndex::PlaceOf(record, device, to));
}

void DeviceTier::Reclaimed(uint32_t device, const SegmentTable& table) {
  if (options_.bug == PlantedTierBug::kReclaimedStays) return;
  MutexLock lock(&cache_.mutex);
  const auto tell = [this](DeviceIndex::Ns ns, const BlockKey& key, uint32_t depth) {
    const auto handle = cache_.handle_of.find(index_.at(ns).id);
    if (handle == cache_.handle_of.end()) return;
    const NamespaceRecord& record = cache_.Record(handle->second);
    if (const EntryId id = cache_.index->Find(record.index, key); id != kNoEntry) {
      return cache_.policy->OnCopied(id, false);
    }
    cache_.GoneBelow(record, key, depth);
    cache_.events.Add(CacheEventKind::kRemoved, record.name, key, depth);
  };
  index_.RemoveSegment(device, table, tell);
}

}  // namespace kvarve
