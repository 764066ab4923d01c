// What tenants may have of something that is limited: a floor that is theirs whenever they want it,
// a ceiling that they never pass, and in between what others leave idle. Pure: no clock is read, no
// state is kept but what the callers hold.
//
// Two kinds of things are shared. Those that can be taken back (memory, entries of the index): each
// tenant has a fair share, may borrow beyond it while there is room, and gives back what another
// below its share asks for. Those that cannot (leases, connections): what others have not used of
// their floors is kept free for them.
// THREADS: externally synchronised.
#ifndef KVARVE_STORAGE_CACHE_QUOTA_H_
#define KVARVE_STORAGE_CACHE_QUOTA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace kvarve {

enum class Resource : uint8_t {
  kHostBytes = 0,   // slots in use, in their rounded sizes
  kEntries = 1,     // blocks
  kLeaseBytes = 2,  // under lease, of all its clients together
  kIngest = 3,      // bytes a second put into the store
  kConnections = 4,
  kDeviceBytes = 5,  // on the NVMe tier's devices; a ceiling only: what comes is refused there
};
inline constexpr size_t kResources = 6;
std::string_view ResourceName(Resource resource);

struct QuotaRange {
  static constexpr uint64_t kNoCeiling = std::numeric_limits<uint64_t>::max();
  uint64_t floor = 0;
  uint64_t ceiling = kNoCeiling;
  friend bool operator==(const QuotaRange&, const QuotaRange&) = default;
};

struct TenantQuota {
  std::array<QuotaRange, kResources> ranges;
  const QuotaRange& of(Resource resource) const { return ranges[static_cast<size_t>(resource)]; }
  QuotaRange& of(Resource resource) { return ranges[static_cast<size_t>(resource)]; }
  friend bool operator==(const TenantQuota&, const TenantQuota&) = default;
};
using TenantQuotas = std::map<std::string, TenantQuota>;

// InvalidArgument, with the numbers: a floor above its ceiling, or floors that are together more
// than there is (`unit`: they are kept in multiples of it).
absl::Status CheckQuotas(const TenantQuotas& quotas, Resource resource, uint64_t total,
                         uint64_t unit);

// The fair share of each, which together are at most `total`: floors first (in proportion, if they
// are more than there is), the rest in equal parts, none beyond its ceiling.
std::vector<uint64_t> FairShares(uint64_t total, std::span<const QuotaRange> ranges);

// Use of something that cannot be taken back, by tenants that are numbered densely.
class ReservedUse {
 public:
  // Tenants are added in order; a changed range counts from the next Take on.
  void Set(size_t tenant, const QuotaRange& range);
  uint64_t used(size_t tenant) const { return tenants_[tenant].used; }
  uint64_t total_used() const { return used_; }
  // How much more the tenant may take of `total`: below its ceiling, and leaving to others what is
  // free of their floors.
  uint64_t Room(size_t tenant, uint64_t total) const;
  void Add(size_t tenant, uint64_t amount);  // also beyond Room: what is exempt counts as used
  void Sub(size_t tenant, uint64_t amount);

 private:
  struct Tenant {
    QuotaRange range;
    uint64_t used = 0;
    uint64_t idle_floor() const { return range.floor > used ? range.floor - used : 0; }
  };
  std::vector<Tenant> tenants_;
  uint64_t used_ = 0;
  uint64_t idle_floors_ = 0;  // of all tenants
};

// Connections of tenants by name, in one place that many listen at.
class ConnectionUse {
 public:
  // At most `total` of all. REQUIRES: CheckQuotas of connections passed.
  ConnectionUse(const TenantQuotas& quotas, const TenantQuota& others, uint64_t total);

  // Counts one more. ResourceExhausted, with the numbers.
  absl::Status Enter(const std::string& tenant);
  void Leave(const std::string& tenant);
  std::vector<std::pair<std::string, uint64_t>> Used() const;  // of each tenant that was here

 private:
  size_t NumberOf(const std::string& tenant);
  const TenantQuota others_;
  const uint64_t total_;
  ReservedUse use_;
  std::map<std::string, size_t> numbers_;
  std::vector<uint64_t> ceilings_;
};

// A rate: so many units a second, and at most `burst` saved up. What is taken may leave it in debt
// by less than one piece; until that is paid nothing more is taken.
class TokenBucket {
 public:
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
  // Both below 2^62, or the rate kUnlimited. A changed rate begins with a second's worth.
  void SetRate(uint64_t per_second, uint64_t burst, int64_t now_nanos);
  // Fills up to now; returns what ran over (nothing when the rate is unlimited).
  uint64_t Refill(int64_t now_nanos);
  bool HasAny() const { return rate_ == kUnlimited || tokens_ > 0; }
  void Take(uint64_t amount);
  void Give(uint64_t amount);  // back, or from another; never beyond the burst
  // Nanoseconds until there is something again; 0: now.
  int64_t Wait() const;

 private:
  uint64_t rate_ = kUnlimited;
  int64_t burst_ = 0;
  int64_t tokens_ = 0;
  int64_t filled_nanos_ = 0;
  uint64_t rest_ = 0;  // billionths of a token
};

// The rate at which all tenants together put bytes: each has its floor to itself, what is left and
// what idle tenants do not use goes to whoever asks first.
class SharedRate {
 public:
  explicit SharedRate(uint64_t total_per_second) : total_(total_per_second) {}
  uint64_t total() const { return total_; }
  void Set(size_t tenant, const QuotaRange& range, int64_t now_nanos);
  // How many of `count` pieces of `amount` each may come now; they are taken.
  size_t Take(size_t tenant, uint64_t amount, size_t count, int64_t now_nanos);
  // Gives pieces back that were not used after all.
  void Return(size_t tenant, uint64_t amount);
  // Nanoseconds until it is worth trying again, at most a second.
  int64_t Wait(size_t tenant) const;

 private:
  struct Tenant {
    TokenBucket floor, ceiling;
    uint64_t floor_rate = 0;
  };
  void Refill(int64_t now_nanos);
  const uint64_t total_;  // TokenBucket::kUnlimited: ceilings only
  std::vector<Tenant> tenants_;
  TokenBucket common_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_QUOTA_H_
