// Which namespaces there are: opened by clients, forgotten when they are empty and in the way.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {

uint64_t Cache::Rep::SlotBytes(const NamespaceRecord& ns) const {
  return (ns.info.block_bytes + kSlotUnitBytes - 1) / kSlotUnitBytes * kSlotUnitBytes;
}

absl::Status Cache::Rep::RoomForNamespace(const std::string& tenant) {
  const auto pool = pools.find(tenant);
  if (pool != pools.end() && tenants[pool->second].namespaces >= max_namespaces_per_tenant &&
      !ForgetNamespace(pool->second)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("this tenant has %d namespaces, each open or with blocks, and may have no "
                        "more (limits.namespaces_per_tenant)",
                        tenants[pool->second].namespaces));
  }
  if (free_indices.empty() && !ForgetNamespace(std::nullopt)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d namespaces are open or have blocks, the most there can be", handle_of.size()));
  }
  return absl::OkStatus();
}

bool Cache::Rep::ForgetNamespace(std::optional<PoolId> pool) {
  NamespaceRecord* oldest = nullptr;
  for (NamespaceRecord& record : namespaces) {
    if (record.used == 0 || (pool.has_value() && record.info.pool != *pool)) continue;
    // An invalidation or a put under way has it open, too.
    if (record.info.open.use_count() > 1 || blocks_of_index[record.index] > 0) continue;
    if (oldest == nullptr || record.used < oldest->used) oldest = &record;
  }
  if (oldest == nullptr) return false;
  const NamespaceInfo& info = oldest->info;
  --tenants[info.pool].namespaces;
  const auto group = groups.find({info.pool, SlotBytes(*oldest)});
  if (--group->second.namespaces == 0) {
    free_groups.push_back(group->second.number);
    groups.erase(group);
  }
  handle_of_index[oldest->index] = kNoHandle;
  free_indices.insert(free_indices.begin(), oldest->index);  // used again as late as possible
  NamespaceHandle next = info.handle + kMaxNamespaces;
  if (next == kNoHandle) next += kMaxNamespaces;
  free_handles.push_back(next);
  handle_of.erase(info.id);
  *oldest = NamespaceRecord();
  return true;
}

// REQUIRES: RoomForNamespace said so.
NamespaceRecord& Cache::Rep::AddNamespace(NamespaceInfo info) {
  const auto known = pools.find(info.tenant);
  info.pool = known != pools.end() ? known->second : AddTenant(info.tenant);
  if (free_handles.empty()) {
    info.handle = static_cast<NamespaceHandle>(namespaces.size());
    namespaces.emplace_back();
  } else {
    info.handle = free_handles.back();
    free_handles.pop_back();
  }
  NamespaceRecord& record = namespaces[info.handle % kMaxNamespaces];
  record.name = std::make_shared<const NamespaceInfo>(info);
  record.info = std::move(info);
  record.info.open = std::make_shared<const NamespaceHandle>(record.info.handle);
  record.index = free_indices.back();
  free_indices.pop_back();
  handle_of_index[record.index] = record.info.handle;
  handle_of.emplace(record.info.id, record.info.handle);
  ++tenants[record.info.pool].namespaces;
  const auto [group, is_new] = groups.try_emplace({record.info.pool, SlotBytes(record)});
  if (is_new) {
    group->second.number = static_cast<uint32_t>(groups.size() - 1 + free_groups.size());
    if (!free_groups.empty()) {
      group->second.number = free_groups.back();
      free_groups.pop_back();
    }
  }
  ++group->second.namespaces;
  record.group = group->second.number;
  group_of_index[record.index] = record.group;
  record.used = ++namespace_uses;
  return record;
}

absl::StatusOr<NamespaceInfo> Cache::OpenNamespace(const NamespaceDescriptor& descriptor) {
  KV_RETURN_IF_ERROR(ValidateDescriptor(descriptor));
  NamespaceInfo info;
  info.digest = DigestOf(descriptor);
  info.id = IdOf(info.digest);
  info.block_bytes = descriptor.block_bytes;
  info.layout = BlockLayout::Of(descriptor);
  info.key_bytes = descriptor.key_bytes;
  info.tenant = descriptor.tenant;
  info.model = descriptor.model;
  Rep& r = *rep_;
  bool is_new_to_devices = false;
  {
    MutexLock lock(&r.mutex);
    if (auto it = r.handle_of.find(info.id); it != r.handle_of.end()) {
      const NamespaceInfo& known = r.Record(it->second).info;
      if (known.digest == info.digest) return known;
      return absl::AlreadyExistsError(
          "another namespace has the same first 16 bytes of its digest: change the salt");
    }
    KV_RETURN_IF_ERROR(r.RoomForNamespace(info.tenant));
    NamespaceRecord& record = r.AddNamespace(std::move(info));
    info = record.info;
    if (r.tier != nullptr) is_new_to_devices = r.tier->OnOpened(&record);
  }
  if (is_new_to_devices) r.tier->NoteTenant(info);
  return info;
}

absl::StatusOr<NamespaceInfo> Cache::FindNamespace(const NamespaceId& id) {
  MutexLock lock(&rep_->mutex);
  const auto found = rep_->handle_of.find(id);
  if (found == rep_->handle_of.end()) {
    return absl::NotFoundError("no client has opened this namespace here");
  }
  return rep_->Record(found->second).info;
}

std::vector<NamespaceInfo> Cache::Namespaces() const {
  MutexLock lock(&rep_->mutex);
  std::vector<NamespaceInfo> infos;
  for (const NamespaceRecord& record : rep_->namespaces) {
    if (record.used != 0) infos.push_back(*record.name);
  }
  return infos;
}

}  // namespace kvarve
