// What goes to devices: which blocks, to which device, and how many at once.
#include <algorithm>
#include <utility>

#include "storage/base/units.h"
#include "storage/cache/device_log.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

// What a crash may cost at most, and enough frames to keep a device busy.
constexpr uint64_t kDirtyBytesADevice = 16ull << 20;
// Of what was read again and is on no device: looked at in one go, and blocks of one chain.
constexpr size_t kReadAgainMax = 16;
constexpr size_t kChainMax = kMaxKeysPerCall;

// Entry and generation travel with a block to the device and back.
uint64_t CookieOf(EntryId id, uint32_t generation) { return uint64_t{generation} << 32 | id; }

}  // namespace

uint64_t DeviceTier::DirtyMax() const {
  if (options_.dirty_bytes_max != 0) return options_.dirty_bytes_max;
  return std::min(cache_.capacity_bytes / 4,
                  kDirtyBytesADevice * std::max<size_t>(devices_.size(), 1));
}

size_t DeviceTier::ReserveDirty(uint64_t block_bytes, size_t wanted) {
  const auto devices = Devices();
  const bool admits = std::ranges::any_of(devices, [](const auto& device) {
    return device->takes_writes() && device->budget().step() != AdmissionStep::kNone;
  });
  size_t blocks = wanted;
  if (admits && options_.bug != PlantedTierBug::kDirtyUncounted) {
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
  const auto dirty = dirty_of_pool_.find(ns.info.pool);
  const uint64_t used =
      index_.BytesOfTenant(tenant.name) + (dirty != dirty_of_pool_.end() ? dirty->second : 0);
  return ceiling > used ? ceiling - used : 0;
}

void DeviceTier::Offer(const NamespaceRecord& ns, std::span<const EntryId> run,
                       const BlockKey* parent, uint32_t recompute_us, bool pinned) {
  if (run.empty() || ns.device_ns == kNoDeviceNs) return;
  const uint32_t seen_blocks = SeenBlocks(run, parent);  // whatever becomes of it
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
  facts.seen_blocks = std::min(seen_blocks, facts.blocks);
  facts.pinned = pinned;
  facts.hash = first.key.Word(2);
  const size_t admitted = device->budget().Admit(facts, device->NowSeconds());
  NotAdmit(NotAdmitted::kBudget, allowed - admitted);
  Admit(ns, run.first(admitted), parent, recompute_us, device.get());
}

// Whoever puts or reads a block asked for it, and for the one before it.
uint32_t DeviceTier::SeenBlocks(std::span<const EntryId> run, const BlockKey* parent) {
  if (parent != nullptr) seen_.Add(*parent);
  uint32_t blocks = 0;
  bool all_before = true, parent_seen = parent != nullptr && seen_.Of(*parent) >= 2;
  for (const EntryId id : run) {
    const BlockKey& key = cache_.index->Get(id).key;
    seen_.Add(key);
    const bool seen = seen_.Of(key) >= 2;
    all_before = all_before && (seen || parent_seen);
    blocks += all_before ? 1 : 0;
    parent_seen = seen;
  }
  return blocks;
}

size_t DeviceTier::OfferChain(EntryId deepest, bool pinned) {
  const IndexEntry& last = cache_.index->Get(deepest);
  if (!last.used || !last.live) return 0;
  const NamespaceHandle handle = cache_.handle_of_index[last.ns];
  if (handle == Cache::Rep::kNoHandle) return 0;
  const NamespaceRecord& ns = cache_.Record(handle);
  if (ns.device_ns == kNoDeviceNs) return 0;
  std::vector<EntryId> run;  // from the deepest on
  const BlockKey* parent = nullptr;
  for (EntryId id = deepest;;) {
    const IndexEntry& entry = cache_.index->Get(id);
    if (dirty_.contains(id) || Find(ns, entry.key) != kNoEntry) {
      parent = &entry.key;
      break;
    }
    if (run.size() == kChainMax) return 0;
    run.push_back(id);
    if (entry.depth == 0) break;
    id = cache_.index->LinkedParent(id);
    if (id == kNoEntry) return 0;  // what is before it is not here, and may be nowhere
  }
  std::reverse(run.begin(), run.end());
  const uint64_t room = DirtyMax() > dirty_bytes_ ? DirtyMax() - dirty_bytes_ : 0;
  run.resize(std::min<uint64_t>(run.size(), room / RoundUp(ns.info.block_bytes, kUnit) + 1));
  const size_t before = dirty_.size();
  const auto counted = counted_.not_admitted_blocks;  // they are counted already
  Offer(ns, run, parent, /*recompute_us=*/0, pinned);
  counted_.not_admitted_blocks = counted;
  return dirty_.size() - before;
}

void DeviceTier::NoteRead(EntryId deepest) {
  if (!has_host_only_ || read_again_.size() == kReadAgainMax) return;
  read_again_.push_back(deepest);
}

void DeviceTier::OfferAgain() {
  std::vector<EntryId> ids;
  {
    MutexLock lock(&cache_.mutex);
    ids.swap(read_again_);
  }
  for (const EntryId id : ids) {
    MutexLock lock(&cache_.mutex);
    if (dirty_bytes_ >= DirtyMax() / 2) return;  // puts come first
    OfferChain(id, /*pinned=*/false);
  }
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
    dirty_of_pool_[dirty.pool] += dirty.bytes;
    blocks.push_back(BlockOf(ns, id, parent, recompute_us));
    parent = &cache_.index->Get(id).key;
  }
  counted_.admitted_blocks += blocks.size();
  if (!blocks.empty()) device->Enqueue(blocks);
}

void DeviceTier::EncodeAll(std::vector<AppendBlock>* blocks) {
  if (rung_.writes() == Representation::kRaw) return;
  NamespaceId ns;
  BlockLayout layout;  // of it; none: of a namespace that nobody has open any more
  for (AppendBlock& block : *blocks) {
    if (block.ns != ns) {
      ns = block.ns;
      MutexLock lock(&cache_.mutex);
      const auto handle = cache_.handle_of.find(ns);
      layout = handle != cache_.handle_of.end() ? cache_.Record(handle->second).info.layout
                                                : BlockLayout();
    }
    rung_.Encode(layout, &block);
  }
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
