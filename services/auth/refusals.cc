#include "services/auth/refusals.h"

#include <string>

#include "storage/base/log.h"

namespace kvarve {
namespace {

constexpr int64_t kLogNanos = 1'000'000'000;  // between two lines of one reason

// A right token that has expired is no guess, nor is anything of who was let in.
bool IsGuess(AuthFault fault) {
  switch (fault) {
    case AuthFault::kExpired:
    case AuthFault::kRevoked:
    case AuthFault::kTenant:
    case AuthFault::kRole:
    case AuthFault::kVerb:
    case AuthFault::kThrottled:
      return false;
    default:
      return true;
  }
}

}  // namespace

std::string_view AuthFaultName(AuthFault fault) {
  constexpr std::string_view kNames[kAuthFaults] = {
      "no_token", "wrong_token", "malformed",     "algorithm", "unknown_key", "signature",
      "claims",   "expired",     "not_yet_valid", "audience",  "revoked",     "certificate",
      "tenant",   "role",        "verb",          "throttled"};
  return kNames[static_cast<size_t>(fault)];
}

Refusals::Refusals(const Clock* clock) : clock_(clock), limiter_(clock) {
  for (auto& last : last_log_nanos_) last = INT64_MIN / 2;
}

void Refusals::Add(AuthFault fault, std::string_view peer, std::string_view name,
                   std::string_view tenant) {
  const auto reason = static_cast<size_t>(fault);
  counts_[reason].fetch_add(1, std::memory_order_relaxed);
  if (IsGuess(fault)) limiter_.Failed(AddressOfPeer(peer));
  // By reason, so that none hides another.
  const int64_t now = clock_->NowNanos();
  int64_t last = last_log_nanos_[reason].load(std::memory_order_relaxed);
  if (now - last < kLogNanos || !last_log_nanos_[reason].compare_exchange_strong(last, now)) return;
  KvLog(LogLevel::kWarning, "caller refused",
        {{"reason", std::string(AuthFaultName(fault))},
         {"address", AddressOfPeer(peer)},
         {"caller", std::string(name)},
         {"tenant", std::string(tenant)}});
}

int64_t Refusals::Wait(std::string_view peer) { return limiter_.Wait(AddressOfPeer(peer)); }

std::array<uint64_t, kAuthFaults> Refusals::Counts() const {
  std::array<uint64_t, kAuthFaults> counts;
  for (size_t i = 0; i < kAuthFaults; ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return counts;
}

}  // namespace kvarve
