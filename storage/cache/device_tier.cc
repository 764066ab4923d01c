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

namespace kvarve {
namespace {

constexpr size_t kRecordsPerHold = 512;
constexpr EntryId kIdsPerHold = 16384;
// What a crash may cost at most, and enough frames to keep a device busy.
constexpr uint64_t kDirtyBytesADevice = 16ull << 20;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

std::string TenantName(const NamespaceId& id) {
  return "tenant/" +
         absl::BytesToHexString({reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()});
}

// Entry and generation travel with a block to the device and back.
uint64_t CookieOf(EntryId id, uint32_t generation) { return uint64_t{generation} << 32 | id; }
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
    : cache_(*cache), options_(options), index_(cache->incarnation, options.max_entries) {
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
  {
    MutexLock lock(&cache_.mutex);
    for (const auto& known : Devices()) {
      if (known->path() != device->info().path) continue;
      return absl::AlreadyExistsError(known->path() + " is in use already");
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
    const auto devices = Devices();
    if (dirty_.empty() && std::ranges::all_of(devices, &DeviceLog::recovered)) return true;
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

uint64_t DeviceTier::DirtyMax() const {
  if (options_.dirty_bytes_max != 0) return options_.dirty_bytes_max;
  return std::min(cache_.capacity_bytes / 4,
                  kDirtyBytesADevice * std::max<size_t>(devices_.size(), 1));
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
  if (id != kNoEntry && index_.PlaceOf(id) == place) index_.Remove(id);
}

// ---- Namespaces

bool DeviceTier::OnOpened(NamespaceRecord* ns) {
  const auto number = index_.NamespaceOf(ns->info.id);
  if (!number.has_value()) return false;  // of too many; it stays in the host tier
  ns->device_ns = *number;
  to_preload_.push_back(ns->info);
  idle_.notify_all();
  return std::exchange(index_.at(*number).tenant, ns->info.tenant) != ns->info.tenant;
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

DeviceTier::Clearing DeviceTier::BeginClear(const NamespaceRecord& ns) {
  Clearing clearing;
  if (ns.device_ns == kNoDeviceNs) return clearing;
  clearing.blocks = index_.at(ns.device_ns).blocks;
  clearing.old = index_.BeginClear(ns.device_ns);
  for (const auto& device : Devices()) {
    clearing.waits.push_back(
        [device, end = device->BeginErase(ns.info.id)] { return device->Wait(*end); });
  }
  return clearing;
}

absl::Status DeviceTier::FinishClear(const Clearing& clearing) {
  absl::Status status;
  for (const auto& wait : clearing.waits) {
    const absl::Status erased = wait();
    if (status.ok()) status = Unshared(erased);
  }
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
  const EntryId id = Find(ns, key);
  if (id != kNoEntry) index_.Remove(id);
  if (const auto it = dirty_.find(host); it != dirty_.end()) it->second.is_forgotten = true;
  return id != kNoEntry;
}

void DeviceTier::NoteAsked(std::span<const BlockKey> keys, size_t found) {
  if (found > 0) seen_.Add(keys[found - 1]);
  if (found < keys.size()) seen_.Add(keys[found]);
}

// ---- What the logs tell

void DeviceTier::Recovered(uint32_t device, const SegmentTable& table, ErasedSeqs* erased) {
  for (const BlockRecord& record : table.records) {
    if (!record.is_erase()) continue;
    uint64_t& seq = (*erased)[table.namespaces[record.ns_ref]];
    seq = std::max(seq, record.seq);
  }
  std::vector<std::optional<DeviceIndex::Ns>> numbers;
  std::vector<uint64_t> erased_until;
  for (const NamespaceId& id : table.namespaces) {
    const auto it = erased->find(id);
    erased_until.push_back(it != erased->end() ? it->second : 0);
    std::optional<std::string> tenant;
    if (options_.catalogue != nullptr) tenant = options_.catalogue->GetMeta(TenantName(id));
    MutexLock lock(&cache_.mutex);
    numbers.push_back(index_.NamespaceOf(id));
    if (!numbers.back().has_value()) continue;
    DeviceIndex::Namespace& ns = index_.at(*numbers.back());
    if (ns.tenant.empty() && tenant.has_value()) ns.tenant = *tenant;
  }
  for (size_t begin = 0; begin < table.records.size(); begin += kRecordsPerHold) {
    MutexLock lock(&cache_.mutex);
    const size_t end = std::min(begin + kRecordsPerHold, table.records.size());
    for (size_t i = begin; i < end; ++i) {
      const BlockRecord& record = table.records[i];
      const auto ns = numbers[record.ns_ref];
      if (record.is_erase() || !ns.has_value() || record.seq < erased_until[record.ns_ref])
        continue;
      if (index_.at(*ns).generation != 0) continue;  // cleared since the start
      index_.Insert(*ns, record,
                    {device, {table.facts.segment_id, record.off4k}, record.c64_stored});
    }
  }
}

void DeviceTier::DeviceRecovered() {
  MutexLock lock(&cache_.mutex);
  idle_.notify_all();
}

DeviceTier::Dirty DeviceTier::EndDirty(EntryId id) {
  const auto it = dirty_.find(id);
  KV_CHECK(it != dirty_.end());
  const Dirty dirty = it->second;
  dirty_.erase(it);
  dirty_bytes_ -= dirty.bytes;
  cache_.UnleaseEntry(id);
  if (dirty_.empty()) idle_.notify_all();
  return dirty;
}

void DeviceTier::Written(uint32_t device, const AppendBlock& block, const BlockLocation& at) {
  {
    MutexLock lock(&cache_.mutex);
    const Dirty dirty = EndDirty(EntryOf(block));
    const auto ns = index_.FindNamespace(block.ns);
    ++counted_.written_blocks;
    counted_.written_bytes += block.record.stored_len;
    if (dirty.is_forgotten || !ns || index_.at(*ns).generation != GenerationOf(block)) {
      GiveUp(GivenUp::kInvalidated);
      return;
    }
    const DeviceIndex::Place place{device, at, block.record.c64_stored};
    if (!index_.Insert(*ns, block.record, place) &&
        index_.Find(*ns, block.record.key) == kNoEntry) {
      GiveUp(GivenUp::kIndex);
      return;
    }
  }
  if (options_.on_written) options_.on_written(block);
}

void DeviceTier::NotWritten(const AppendBlock& block, GivenUp why) {
  MutexLock lock(&cache_.mutex);
  EndDirty(EntryOf(block));
  GiveUp(why);
}

void DeviceTier::DropStale(std::vector<AppendBlock>* blocks) {
  MutexLock lock(&cache_.mutex);
  std::erase_if(*blocks, [this](const AppendBlock& block) {
    const auto ns = index_.FindNamespace(block.ns);
    if (ns && index_.at(*ns).generation == GenerationOf(block)) return false;
    EndDirty(EntryOf(block));
    GiveUp(GivenUp::kInvalidated);
    return true;
  });
}

// Hot: read since it was written here. In a row of segments that end oldest first a chain's first
// blocks would be the first to go, so what the host tier has of them, its eviction being leaf
// first, is asked too: a parent that is worth memory is worth its place here.
void DeviceTier::ChooseSurvivors(uint32_t device, const SegmentTable& table, bool evacuate,
                                 uint8_t lives_max, std::vector<bool>* keep) {
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
      (*keep)[i] = evacuate || (index_.HitsOf(id) > 0 && record.lives < lives_max);
    }
  }
}

void DeviceTier::Moved(uint32_t device, const NamespaceId& id, const BlockRecord& record,
                       const BlockLocation& from, const BlockLocation& to) {
  MutexLock lock(&cache_.mutex);
  const auto ns = index_.FindNamespace(id);
  if (!ns) return;
  devices_[device]->budget().Charge(record.pages() * kUnit, devices_[device]->NowSeconds());
  index_.Move(*ns, record, {device, from, record.c64_stored}, {device, to, record.c64_stored});
}

void DeviceTier::Reclaimed(uint32_t device, const SegmentTable& table) {
  MutexLock lock(&cache_.mutex);
  const auto tell = [this](DeviceIndex::Ns ns, const BlockKey& key, uint32_t depth) {
    const auto handle = cache_.handle_of.find(index_.at(ns).id);
    if (handle == cache_.handle_of.end()) return;
    const NamespaceRecord& record = cache_.Record(handle->second);
    if (cache_.index->Find(record.index, key) != kNoEntry) return;
    cache_.events.Add(CacheEventKind::kRemoved, record.name, key, depth);
  };
  index_.RemoveSegment(device, table, tell);
}

// ---- Writing

size_t DeviceTier::ReserveDirty(uint64_t block_bytes, size_t wanted) {
  const auto devices = Devices();
  const bool admits = std::ranges::any_of(devices, [](const auto& device) {
    return device->takes_writes() && device->budget().step() != AdmissionStep::kNone;
  });
  size_t blocks = wanted;
  if (admits) {
    const uint64_t taken = dirty_bytes_ + reserved_bytes_;
    const uint64_t room = DirtyMax() > taken ? DirtyMax() - taken : 0;
    blocks = std::min<uint64_t>(wanted, room / block_bytes);
    if (blocks == 0 && taken == 0) blocks = std::min<size_t>(wanted, 1);  // larger than the bound
  }
  counted_.shed_blocks += wanted - blocks;
  reserved_bytes_ += blocks * block_bytes;
  return blocks;
}

std::shared_ptr<DeviceLog> DeviceTier::DeviceOfRoot(const BlockKey& root) const {
  std::vector<std::shared_ptr<DeviceLog>> good = Devices();
  std::erase_if(good, [](const auto& device) { return !device->takes_writes(); });
  if (good.empty()) return nullptr;
  return good[root.Word(1) % good.size()];
}

std::shared_ptr<DeviceLog> DeviceTier::DeviceOf(const NamespaceRecord& ns,
                                                const BlockKey& parent) const {
  std::optional<uint32_t> number;
  if (const EntryId id = Find(ns, parent); id != kNoEntry) number = index_.PlaceOf(id).device;
  if (!number.has_value()) {
    const auto it = dirty_.find(cache_.index->Find(ns.index, parent));
    if (it != dirty_.end() && !it->second.is_forgotten) number = it->second.device;
  }
  if (!number.has_value()) return nullptr;
  // A chain goes on elsewhere when its device takes no more.
  const std::shared_ptr<DeviceLog>& device = devices_[*number];
  return device != nullptr && device->takes_writes() ? device : DeviceOfRoot(parent);
}

uint64_t DeviceTier::QuotaRoom(const NamespaceRecord& ns) const {
  const TenantState& tenant = cache_.tenants[ns.info.pool];
  const uint64_t ceiling = tenant.quota.of(Resource::kDeviceBytes).ceiling;
  if (ceiling == QuotaRange::kNoCeiling) return ceiling;
  uint64_t used = 0;
  for (const DeviceIndex::Namespace& of : index_.namespaces()) {
    if (of.tenant == tenant.name) used += of.blocks * RoundUp(of.stored_bytes, kUnit);
  }
  for (const auto& [id, dirty] : dirty_) used += dirty.pool == ns.info.pool ? dirty.bytes : 0;
  return ceiling > used ? ceiling - used : 0;
}

void DeviceTier::Offer(const NamespaceRecord& ns, std::span<const EntryId> run,
                       const BlockKey* parent, uint32_t recompute_us, bool pinned) {
  if (run.empty() || ns.device_ns == kNoDeviceNs) return;
  const IndexEntry& first = cache_.index->Get(run.front());
  const std::shared_ptr<DeviceLog> device =
      parent != nullptr ? DeviceOf(ns, *parent) : DeviceOfRoot(first.key);
  if (device == nullptr) {
    const bool off = DeviceOfRoot(first.key) == nullptr;
    return NotAdmit(off ? NotAdmitted::kOff : NotAdmitted::kParent, run.size());
  }
  const uint64_t block_bytes = RoundUp(ns.info.block_bytes, kUnit);
  const size_t allowed = std::min<uint64_t>(run.size(), QuotaRoom(ns) / block_bytes);
  NotAdmit(NotAdmitted::kQuota, run.size() - allowed);
  RunFacts facts;
  facts.first_depth = static_cast<uint32_t>(first.depth);
  facts.blocks = static_cast<uint32_t>(allowed);
  facts.block_bytes = block_bytes;
  facts.parent_on_device = parent != nullptr;
  facts.seen = std::max(seen_.Of(first.key), parent != nullptr ? seen_.Of(*parent) : 0);
  facts.pinned = pinned;
  // What goes on from a block on a device belongs to a chain that was chosen.
  facts.chain_hash = parent != nullptr ? 0 : first.key.Word(2);
  const size_t admitted = device->budget().Admit(facts, device->NowSeconds());
  NotAdmit(NotAdmitted::kBudget, allowed - admitted);
  Admit(ns, run.first(admitted), parent, recompute_us, device.get());
}

void DeviceTier::Admit(const NamespaceRecord& ns, std::span<const EntryId> run,
                       const BlockKey* parent, uint32_t recompute_us, DeviceLog* device) {
  std::vector<AppendBlock> blocks;
  blocks.reserve(run.size());
  for (const EntryId id : run) {
    if (dirty_.contains(id)) break;
    if (!cache_.index->Lease(id)) break;
    Dirty& dirty = dirty_[id];
    dirty.bytes = RoundUp(ns.info.block_bytes, kUnit);
    dirty.device = device->number();
    dirty.pool = ns.info.pool;
    dirty_bytes_ += dirty.bytes;
    blocks.push_back(BlockOf(ns, id, parent, recompute_us));
    parent = &cache_.index->Get(id).key;
  }
  counted_.admitted_blocks += blocks.size();
  if (!blocks.empty()) device->Enqueue(std::move(blocks));
}

AppendBlock DeviceTier::BlockOf(const NamespaceRecord& ns, EntryId id, const BlockKey* parent,
                                uint32_t recompute_us) const {
  const IndexEntry& entry = cache_.index->Get(id);
  AppendBlock block;
  block.ns = ns.info.id;
  block.data = cache_.arena->Data(SlotRef{entry.slot});
  block.cookie = CookieOf(id, index_.at(ns.device_ns).generation);
  BlockRecord& record = block.record;
  record.key = entry.key;
  record.key_len = static_cast<uint8_t>(ns.info.key_bytes);
  record.stored_len = record.raw_len = static_cast<uint32_t>(ns.info.block_bytes);
  record.c64_stored = record.c64_raw = entry.checksum;
  record.parent_hash = parent != nullptr ? ParentHash(*parent) : 0;
  record.recompute_us = recompute_us;
  record.depth_flags = static_cast<uint32_t>(entry.depth);
  record.hits = static_cast<uint8_t>(std::min<uint32_t>(seen_.Of(entry.key), 255));
  return block;
}

}  // namespace kvarve
