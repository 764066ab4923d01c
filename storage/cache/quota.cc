#include "storage/cache/quota.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr uint64_t kNanosPerSecond = 1'000'000'000;

// Sums of floors saturate: a wrong configuration must not wrap around to a small one.
uint64_t AddUp(uint64_t a, uint64_t b) {
  return a > QuotaRange::kNoCeiling - b ? QuotaRange::kNoCeiling : a + b;
}

}  // namespace

std::string_view ResourceName(Resource resource) {
  switch (resource) {
    case Resource::kHostBytes:
      return "host_bytes";
    case Resource::kEntries:
      return "entries";
    case Resource::kLeaseBytes:
      return "lease_bytes";
    case Resource::kIngest:
      return "ingest_bytes_per_second";
    case Resource::kConnections:
      return "connections";
    case Resource::kDeviceBytes:
      return "device_bytes";
  }
  return "";
}

absl::Status CheckQuotas(const TenantQuotas& quotas, Resource resource, uint64_t total,
                         uint64_t unit) {
  uint64_t floors = 0;
  for (const auto& [tenant, quota] : quotas) {
    const QuotaRange& range = quota.of(resource);
    if (range.floor > range.ceiling) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tenant \"%s\": the floor of %s is %d, above its ceiling of %d", tenant,
                          ResourceName(resource), range.floor, range.ceiling));
    }
    if (range.floor > QuotaRange::kNoCeiling - unit) {
      floors = QuotaRange::kNoCeiling;
    } else {
      floors = AddUp(floors, RoundUp(range.floor, unit));
    }
  }
  if (floors <= total) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the tenants' floors of %s add up to %d (each a multiple of %d), and there "
                      "are %d; lower them",
                      ResourceName(resource), floors, unit, total));
}

std::vector<uint64_t> FairShares(uint64_t total, std::span<const QuotaRange> ranges) {
  std::vector<uint64_t> shares(ranges.size());
  uint64_t floors = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    shares[i] = std::min(ranges[i].floor, ranges[i].ceiling);
    floors = AddUp(floors, shares[i]);
  }
  if (floors >= total) {
    if (floors == 0) return shares;  // of nothing
    for (uint64_t& share : shares) {
      share = static_cast<uint64_t>(static_cast<unsigned __int128>(share) * total / floors);
    }
    return shares;
  }
  // Those with the least room to grow first: what they cannot take, the others share.
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0);
  const auto room = [&](size_t i) { return ranges[i].ceiling - shares[i]; };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return room(a) < room(b); });
  uint64_t rest = total - floors;
  for (size_t n = 0; n < order.size(); ++n) {
    const uint64_t part = std::min(rest / (order.size() - n), room(order[n]));
    shares[order[n]] += part;
    rest -= part;
  }
  return shares;
}

void ReservedUse::Set(size_t tenant, const QuotaRange& range) {
  KV_CHECK(tenant <= tenants_.size());
  if (tenant == tenants_.size()) tenants_.emplace_back();
  idle_floors_ -= tenants_[tenant].idle_floor();
  tenants_[tenant].range = range;
  idle_floors_ += tenants_[tenant].idle_floor();
}

uint64_t ReservedUse::Room(size_t tenant, uint64_t total) const {
  const Tenant& of = tenants_[tenant];
  const uint64_t others = idle_floors_ - of.idle_floor();
  const uint64_t taken = AddUp(used_, others);
  const uint64_t free = taken < total ? total - taken : 0;
  const uint64_t below_ceiling = of.range.ceiling > of.used ? of.range.ceiling - of.used : 0;
  return std::min(free, below_ceiling);
}

void ReservedUse::Add(size_t tenant, uint64_t amount) {
  Tenant& of = tenants_[tenant];
  idle_floors_ -= of.idle_floor();
  of.used += amount;
  used_ += amount;
  idle_floors_ += of.idle_floor();
}

void ReservedUse::Sub(size_t tenant, uint64_t amount) {
  Tenant& of = tenants_[tenant];
  KV_CHECK(of.used >= amount);
  idle_floors_ -= of.idle_floor();
  of.used -= amount;
  used_ -= amount;
  idle_floors_ += of.idle_floor();
}

ConnectionUse::ConnectionUse(const TenantQuotas& quotas, const TenantQuota& others, uint64_t total)
    : others_(others), total_(total) {
  // All that are configured: their floors are kept free before they come.
  for (const auto& [tenant, quota] : quotas) {
    const QuotaRange& range = quota.of(Resource::kConnections);
    use_.Set(numbers_.size(), range);
    numbers_.emplace(tenant, numbers_.size());
    ceilings_.push_back(range.ceiling);
  }
}

size_t ConnectionUse::NumberOf(const std::string& tenant) {
  const auto [found, is_new] = numbers_.emplace(tenant, ceilings_.size());
  if (is_new) {
    const QuotaRange& range = others_.of(Resource::kConnections);
    use_.Set(found->second, range);
    ceilings_.push_back(range.ceiling);
  }
  return found->second;
}

absl::Status ConnectionUse::Enter(const std::string& tenant) {
  const size_t number = NumberOf(tenant);
  if (use_.Room(number, total_) == 0) {
    const uint64_t used = use_.used(number);
    if (used >= ceilings_[number]) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("tenant \"%s\" is over its quota of connections: %d in use of at most %d",
                          tenant, used, ceilings_[number]));
    }
    return absl::ResourceExhaustedError(
        absl::StrFormat("tenant \"%s\" has %d connections; of the %d that there may be %d are "
                        "taken and the rest is "
                        "kept for other tenants",
                        tenant, used, total_, use_.total_used()));
  }
  use_.Add(number, 1);
  return absl::OkStatus();
}

void ConnectionUse::Leave(const std::string& tenant) { use_.Sub(NumberOf(tenant), 1); }

std::vector<std::pair<std::string, uint64_t>> ConnectionUse::Used() const {
  std::vector<std::pair<std::string, uint64_t>> used;
  for (const auto& [tenant, number] : numbers_) used.emplace_back(tenant, use_.used(number));
  return used;
}

void TokenBucket::SetRate(uint64_t per_second, uint64_t burst, int64_t now_nanos) {
  constexpr uint64_t kMax = uint64_t{1} << 62;
  if (per_second != kUnlimited) per_second = std::min(per_second, kMax);
  burst_ = static_cast<int64_t>(std::min(burst, kMax));
  if (rate_ == per_second) return;
  rate_ = per_second;
  tokens_ = rate_ == kUnlimited ? 0 : std::min(static_cast<int64_t>(rate_), burst_);
  filled_nanos_ = now_nanos;
  rest_ = 0;
}

uint64_t TokenBucket::Refill(int64_t now_nanos) {
  if (rate_ == kUnlimited || now_nanos <= filled_nanos_) return 0;
  const auto nanos = static_cast<uint64_t>(now_nanos - filled_nanos_);
  filled_nanos_ = now_nanos;
  const unsigned __int128 parts = static_cast<unsigned __int128>(rate_) * nanos + rest_;
  const int64_t full = burst_;
  const unsigned __int128 whole = parts / kNanosPerSecond;
  rest_ = static_cast<uint64_t>(parts % kNanosPerSecond);
  const auto room =
      static_cast<unsigned __int128>(std::max<__int128>(0, static_cast<__int128>(full) - tokens_));
  if (whole <= room) {
    tokens_ += static_cast<int64_t>(whole);
    return 0;
  }
  tokens_ = std::max(tokens_, full);
  rest_ = 0;
  return static_cast<uint64_t>(
      std::min<unsigned __int128>(whole - room, std::numeric_limits<int64_t>::max()));
}

void TokenBucket::Take(uint64_t amount) {
  if (rate_ != kUnlimited) tokens_ -= static_cast<int64_t>(amount);
}

void TokenBucket::Give(uint64_t amount) {
  if (rate_ == kUnlimited) return;
  const auto room = static_cast<uint64_t>(std::max<int64_t>(0, burst_ - tokens_));
  tokens_ += static_cast<int64_t>(std::min(amount, room));
}

int64_t TokenBucket::Wait() const {
  if (HasAny()) return 0;
  if (rate_ == 0) return std::numeric_limits<int64_t>::max();
  const auto owed = static_cast<unsigned __int128>(1 - tokens_) * kNanosPerSecond;
  return static_cast<int64_t>(
      std::min<unsigned __int128>((owed + rate_ - 1) / rate_, std::numeric_limits<int64_t>::max()));
}

void SharedRate::Set(size_t tenant, const QuotaRange& range, int64_t now_nanos) {
  KV_CHECK(tenant <= tenants_.size());
  if (tenant == tenants_.size()) tenants_.emplace_back();
  Tenant& of = tenants_[tenant];
  of.ceiling.SetRate(range.ceiling, range.ceiling, now_nanos);
  of.floor_rate = range.floor;
  of.floor.SetRate(range.floor, range.floor, now_nanos);
  if (total_ == TokenBucket::kUnlimited) return;
  uint64_t floors = 0;
  for (const Tenant& each : tenants_) floors = AddUp(floors, each.floor_rate);
  common_.SetRate(floors < total_ ? total_ - floors : 0, total_, now_nanos);
}

void SharedRate::Refill(int64_t now_nanos) {
  common_.Refill(now_nanos);
  for (Tenant& each : tenants_) common_.Give(each.floor.Refill(now_nanos));
}

size_t SharedRate::Take(size_t tenant, uint64_t amount, size_t count, int64_t now_nanos) {
  Tenant& of = tenants_[tenant];
  of.ceiling.Refill(now_nanos);
  const bool shared = total_ != TokenBucket::kUnlimited;
  if (shared) Refill(now_nanos);
  size_t taken = 0;
  for (; taken < count && of.ceiling.HasAny(); ++taken) {
    if (shared) {
      TokenBucket* const from = of.floor_rate > 0 && of.floor.HasAny() ? &of.floor : &common_;
      if (!from->HasAny()) break;
      from->Take(amount);
    }
    of.ceiling.Take(amount);
  }
  return taken;
}

void SharedRate::Return(size_t tenant, uint64_t amount) {
  Tenant& of = tenants_[tenant];
  of.ceiling.Give(amount);
  if (total_ == TokenBucket::kUnlimited) return;
  (of.floor_rate > 0 ? of.floor : common_).Give(amount);
}

int64_t SharedRate::Wait(size_t tenant) const {
  const Tenant& of = tenants_[tenant];
  const auto second = static_cast<int64_t>(kNanosPerSecond);
  if (total_ == TokenBucket::kUnlimited) return std::min(second, of.ceiling.Wait());
  const int64_t floor = of.floor_rate > 0 ? of.floor.Wait() : std::numeric_limits<int64_t>::max();
  return std::min(second, std::max(of.ceiling.Wait(), std::min(floor, common_.Wait())));
}

}  // namespace kvarve
