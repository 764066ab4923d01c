// What each tenant has, may have, and did.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/cache/cache_rep.h"

namespace kvarve {
namespace {

uint64_t RoundUpTo(uint64_t value, uint64_t unit) {
  return value > QuotaRange::kNoCeiling - unit ? QuotaRange::kNoCeiling : RoundUp(value, unit);
}

std::string Amount(Resource resource, uint64_t amount) {
  const bool is_count = resource == Resource::kEntries || resource == Resource::kConnections;
  return is_count ? absl::StrFormat("%d", amount) : FormatBytes(amount);
}

}  // namespace

PoolId Cache::Rep::AddTenant(const std::string& name) {
  const PoolId pool = arena->AddPool(name);
  KV_CHECK(pool == tenants.size());
  pools.emplace(name, pool);
  tenants.emplace_back().name = name;
  const auto found = quotas.find(name);
  ApplyQuota(pool, found != quotas.end() ? found->second : default_quota);
  return pool;
}

void Cache::Rep::ApplyQuota(PoolId pool, const TenantQuota& quota) {
  tenants[pool].quota = quota;
  lease_use.Set(pool, quota.of(Resource::kLeaseBytes));
  ingest.Set(pool, quota.of(Resource::kIngest), clock->NowNanos());
  ComputeShares();
}

void Cache::Rep::ComputeShares() {
  std::vector<QuotaRange> bytes, entries;
  for (const TenantState& tenant : tenants) {
    // Memory changes hands by whole chunks.
    const QuotaRange& host = tenant.quota.of(Resource::kHostBytes);
    bytes.push_back({RoundUpTo(host.floor, chunk_bytes), RoundUpTo(host.ceiling, chunk_bytes)});
    entries.push_back(tenant.quota.of(Resource::kEntries));
  }
  const std::vector<uint64_t> of_bytes = FairShares(capacity_bytes, bytes);
  const std::vector<uint64_t> of_entries = FairShares(max_entries, entries);
  for (size_t i = 0; i < tenants.size(); ++i) {
    tenants[i].share_bytes = of_bytes[i];
    tenants[i].share_entries = of_entries[i];
  }
}

absl::Status Cache::Rep::CheckFloors(const TenantQuotas& of) const {
  KV_RETURN_IF_ERROR(CheckQuotas(of, Resource::kHostBytes, capacity_bytes, chunk_bytes));
  KV_RETURN_IF_ERROR(CheckQuotas(of, Resource::kEntries, max_entries, 1));
  KV_RETURN_IF_ERROR(CheckQuotas(of, Resource::kLeaseBytes, LeaseBytesMax(), 1));
  return CheckQuotas(of, Resource::kIngest, ingest.total(), 1);
}

Allowance Cache::Rep::AllowanceOf(PoolId pool, uint64_t slot_bytes) const {
  const TenantState& tenant = tenants[pool];
  const auto left = [](uint64_t ceiling, uint64_t used) {
    return ceiling - std::min(ceiling, used);
  };
  Allowance allowance;
  allowance.slots =
      left(tenant.quota.of(Resource::kHostBytes).ceiling, arena->Usage(pool).used_bytes) /
      slot_bytes;
  allowance.limit = Resource::kHostBytes;
  const uint64_t entries = left(tenant.quota.of(Resource::kEntries).ceiling, tenant.slots);
  if (entries < allowance.slots) {
    allowance.slots = entries;
    allowance.limit = Resource::kEntries;
  }
  const uint64_t cells = left(max_entries, slots_used);
  if (cells < allowance.slots) {
    allowance.slots = cells;
    allowance.limit.reset();
  }
  return allowance;
}

// Under the tenant's own ceiling something of its own leaves. When the index is full, a tenant
// below its share takes from the one furthest above.
bool Cache::Rep::MakeRoomUnder(const std::optional<Resource>& limit, const NamespaceRecord& ns,
                               absl::FunctionRef<bool(EntryId victim)> admits, KeptExtents* kept) {
  if (limit.has_value() || tenants[ns.info.pool].slots >= tenants[ns.info.pool].share_entries) {
    return MakeRoom(ns, admits, kept);
  }
  EntryId victim = kNoEntry;
  uint64_t most = 0;
  PoolId of = 0;
  for (PoolId pool = 0; pool < tenants.size(); ++pool) {
    const TenantState& tenant = tenants[pool];
    if (pool == ns.info.pool || tenant.slots <= tenant.share_entries) continue;
    const uint64_t above = tenant.slots - tenant.share_entries;
    if (above <= most) continue;
    const EntryId oldest = DeadOrOldest(pool);
    if (oldest == kNoEntry) continue;
    victim = oldest, most = above, of = pool;
  }
  if (victim == kNoEntry) return MakeRoom(ns, admits, kept);
  Remove(victim);
  ++counters.evicted_blocks;
  ++tenants[of].counted.evicted_blocks;
  return true;
}

absl::Status Cache::Rep::OverQuota(PoolId pool, Resource resource, uint64_t slot_bytes) const {
  const TenantState& tenant = tenants[pool];
  const QuotaRange& range = tenant.quota.of(resource);
  const std::string start = absl::StrFormat("tenant \"%s\" is over its quota of %s: ", tenant.name,
                                            ResourceName(resource));
  if (resource == Resource::kIngest) {
    const std::string most =
        range.ceiling == QuotaRange::kNoCeiling
            ? "what the node's " + FormatBytes(ingest.total()) + " a second leave to it"
            : FormatBytes(range.ceiling) + " a second";
    return absl::ResourceExhaustedError(absl::StrFormat("%sat most %s; again in %s", start, most,
                                                        FormatDuration(ingest.Wait(pool))));
  }
  if (resource == Resource::kHostBytes && slot_bytes > range.ceiling) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%sa block takes %s, and it may have at most %s in all", start,
                        Amount(resource, slot_bytes), Amount(resource, range.ceiling)));
  }
  uint64_t used = tenant.slots;
  if (resource == Resource::kHostBytes) used = arena->Usage(pool).used_bytes;
  if (resource == Resource::kLeaseBytes) used = lease_use.used(pool);
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s%s in use of at most %s, and nothing of it can leave now", start,
                      Amount(resource, used), Amount(resource, range.ceiling)));
}

absl::Status Cache::SetQuota(const std::string& tenant, const TenantQuota& quota) {
  MutexLock lock(&rep_->mutex);
  TenantQuotas quotas = rep_->quotas;
  quotas[tenant] = quota;
  KV_RETURN_IF_ERROR(rep_->CheckFloors(quotas));
  rep_->quotas = std::move(quotas);
  const auto pool = rep_->pools.find(tenant);
  if (pool != rep_->pools.end()) rep_->ApplyQuota(pool->second, quota);
  return absl::OkStatus();
}

}  // namespace kvarve
