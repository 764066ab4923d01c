#include "storage/cache/device_index.h"

#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

// A place: the segment's number, and the page within it (kMaxSegmentBytes / kUnit).
constexpr int kPageBits = 18;
static_assert(kMaxSegmentBytes / kUnit == 1 << kPageBits);

constexpr uint32_t kNobody = UINT32_MAX;
constexpr uint8_t kMostHits = 255;

}  // namespace

DeviceIndex::DeviceIndex(uint64_t seed, uint64_t max_entries)
    : index_(seed, max_entries), owners_(kMaxNamespaces, kNobody) {
  for (uint32_t i = kMaxNamespaces; i-- > 0;) {
    free_indices_.push_back(static_cast<NamespaceIndex>(i));
  }
}

std::optional<DeviceIndex::Ns> DeviceIndex::FindNamespace(const NamespaceId& id) const {
  const auto it = numbers_.find(id);
  if (it == numbers_.end()) return std::nullopt;
  return it->second;
}

std::optional<DeviceIndex::Ns> DeviceIndex::NamespaceOf(const NamespaceId& id) {
  if (const std::optional<Ns> known = FindNamespace(id)) return known;
  if (free_indices_.empty()) return std::nullopt;
  const auto ns = static_cast<Ns>(namespaces_.size());
  Namespace& fresh = namespaces_.emplace_back();
  fresh.id = id;
  fresh.index = free_indices_.back();
  free_indices_.pop_back();
  owners_[fresh.index] = ns;
  numbers_.emplace(id, ns);
  return ns;
}

uint64_t DeviceIndex::Pack(uint32_t device, const BlockLocation& at) {
  const auto [it, is_new] = segment_numbers_.try_emplace({device, at.segment_id}, 0);
  if (is_new) {
    if (free_segments_.empty()) {
      free_segments_.push_back(static_cast<uint32_t>(segments_.size()));
      segments_.emplace_back();
    }
    it->second = free_segments_.back();
    free_segments_.pop_back();
    segments_[it->second] = {device, at.segment_id};
  }
  return uint64_t{it->second} << kPageBits | at.off4k;
}

DeviceIndex::Place DeviceIndex::PlaceOf(EntryId id) const {
  const IndexEntry& entry = index_.Get(id);
  const uint64_t packed = entry.slot;
  const Segment& segment = segments_[packed >> kPageBits];
  return {segment.device,
          {segment.id, static_cast<uint32_t>(packed & ((1 << kPageBits) - 1))},
          entry.checksum};
}

DeviceIndex::Place DeviceIndex::PlaceOf(const BlockRecord& record, uint32_t device,
                                        const BlockLocation& at) {
  const bool is_raw = record.repr == static_cast<uint8_t>(Representation::kRaw);
  return {device, at, is_raw ? record.c64_stored : record.c64_raw};
}

DeviceIndex::Stored DeviceIndex::StoredOf(EntryId id) const {
  if (id < encoded_.size() && encoded_[id].bytes != 0) return encoded_[id];
  const IndexEntry& entry = index_.Get(id);
  const Ns owner = OwnerOf(static_cast<NamespaceIndex>(entry.ns));
  const uint32_t bytes = owner != kNobody ? namespaces_[owner].block_bytes : 0;
  return {entry.checksum, bytes, Representation::kRaw};
}

void DeviceIndex::SetStored(EntryId id, const Stored& stored) {
  const bool is_raw = stored.form == Representation::kRaw;
  if (id >= encoded_.size()) {
    if (is_raw) return;
    encoded_.Resize(RoundUp(id + 1, 4096));
  }
  encoded_[id] = is_raw ? Stored() : stored;
}

bool DeviceIndex::Insert(Ns number, const BlockRecord& record, const Place& place) {
  Namespace& ns = namespaces_[number];
  if (!IsKnownRepresentation(record.repr)) return false;
  const Stored stored{record.c64_stored, record.stored_len,
                      static_cast<Representation>(record.repr)};
  if (stored.form == Representation::kRaw && record.raw_len != stored.bytes) return false;
  if (ns.block_bytes != 0 && ns.block_bytes != record.raw_len) return false;
  if (Find(number, record.key) != kNoEntry) return false;
  const auto id = index_.Insert(ns.index, record.key, /*parent=*/nullptr, record.depth(),
                                Pack(place.device, place.at), place.checksum);
  if (!id.ok()) return false;
  ns.block_bytes = record.raw_len;
  SetStored(*id, stored);
  Count(number, 1, static_cast<int64_t>(stored.pages_bytes()));
  if (hits_.size() <= *id) hits_.resize(RoundUp(*id + 1, 4096));
  hits_[*id] = 0;
  return true;
}

void DeviceIndex::Hit(EntryId id) {
  if (hits_[id] < kMostHits) ++hits_[id];
}

void DeviceIndex::Remove(EntryId id) {
  const Ns owner = OwnerOf(static_cast<NamespaceIndex>(index_.Get(id).ns));
  if (owner != kNobody) Count(owner, -1, -static_cast<int64_t>(StoredOf(id).pages_bytes()));
  index_.Remove(id);
}

void DeviceIndex::Move(Ns ns, const BlockRecord& record, const Place& from, const Place& to) {
  const EntryId id = Find(ns, record.key);
  if (id == kNoEntry || !(PlaceOf(id) == from)) return;
  Remove(id);
  Insert(ns, record, to);
}

std::optional<NamespaceIndex> DeviceIndex::BeginClear(Ns number) {
  Namespace& ns = namespaces_[number];
  ++ns.generation;
  const NamespaceIndex old = ns.index;
  if (free_indices_.empty()) {
    Count(number, -static_cast<int64_t>(ns.blocks), -static_cast<int64_t>(ns.bytes));
    ClearSlice(old, 0, ids());
    return std::nullopt;
  }
  ns.index = free_indices_.back();
  free_indices_.pop_back();
  Count(number, -static_cast<int64_t>(ns.blocks), -static_cast<int64_t>(ns.bytes));
  owners_[old] = kNobody;
  owners_[ns.index] = number;
  return old;
}

void DeviceIndex::ClearSlice(NamespaceIndex old, EntryId begin, EntryId end) {
  index_.ForEachRange(begin, end, old, [&](EntryId id) { index_.Remove(id); });
}

void DeviceIndex::EndClear(NamespaceIndex old) {
  free_indices_.insert(free_indices_.begin(), old);  // used again as late as possible
}

void DeviceIndex::RemoveSegment(uint32_t device, const SegmentTable& table, const Gone& gone) {
  const auto it = segment_numbers_.find({device, table.facts.segment_id});
  if (it == segment_numbers_.end()) return;
  const uint32_t number = it->second;
  if (table.records.empty()) {
    index_.ForEach(std::nullopt, [&](EntryId id) {
      if (uint64_t{index_.Get(id).slot} >> kPageBits == number) Remove(id);
    });
  }
  for (const BlockRecord& record : table.records) {
    const auto ns = numbers_.find(table.namespaces[record.ns_ref]);
    if (record.is_erase() || ns == numbers_.end()) continue;
    const EntryId id = Find(ns->second, record.key);
    if (id != kNoEntry && index_.Get(id).slot == (uint64_t{number} << kPageBits | record.off4k)) {
      Remove(id);
      if (gone) gone(ns->second, record.key, record.depth());
    }
  }
  // A namespace that is being cleared may still have entries here, which nobody finds.
  segments_[number] = {};
  segment_numbers_.erase(it);
  free_segments_.push_back(number);
}

void DeviceIndex::RemoveDevice(uint32_t device, EntryId begin, EntryId end) {
  index_.ForEachRange(begin, end, std::nullopt, [&](EntryId id) {
    if (segments_[uint64_t{index_.Get(id).slot} >> kPageBits].device == device) Remove(id);
  });
}

uint64_t DeviceIndex::bytes() const {
  uint64_t sum = 0;
  for (const Tenant& tenant : tenants_) sum += tenant.bytes;
  return sum;
}

void DeviceIndex::Count(Ns number, int64_t blocks, int64_t bytes) {
  Namespace& ns = namespaces_[number];
  ns.blocks += static_cast<uint64_t>(blocks);
  ns.bytes += static_cast<uint64_t>(bytes);
  tenants_[ns.tenant].bytes += static_cast<uint64_t>(bytes);
}

void DeviceIndex::SetTenant(Ns number, const std::string& tenant) {
  const auto [it, is_new] =
      tenant_numbers_.try_emplace(tenant, static_cast<uint32_t>(tenants_.size()));
  if (is_new) tenants_.push_back({tenant, 0});
  Namespace& ns = namespaces_[number];
  tenants_[ns.tenant].bytes -= ns.bytes;
  ns.tenant = it->second;
  tenants_[ns.tenant].bytes += ns.bytes;
}

uint64_t DeviceIndex::BytesOfTenant(const std::string& tenant) const {
  const auto it = tenant_numbers_.find(tenant);
  return it != tenant_numbers_.end() ? tenants_[it->second].bytes : 0;
}

}  // namespace kvarve
