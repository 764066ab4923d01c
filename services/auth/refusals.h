// Who was refused and why: counted by reason, of each of which one a second is logged, and who
// proves nothing is slowed down by its address.
// THREADS: any.  BLOCKS: on the log.
#ifndef KVARVE_SERVICES_AUTH_REFUSALS_H_
#define KVARVE_SERVICES_AUTH_REFUSALS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "services/auth/failure_limiter.h"
#include "storage/base/clock.h"

namespace kvarve {

// Also the label "reason" of kvarve_auth_failures_total.
enum class AuthFault : uint8_t {
  kNoToken = 0,
  kWrongToken,  // not the shared one
  kMalformed,
  kAlgorithm,
  kUnknownKey,
  kSignature,
  kClaims,
  kExpired,
  kNotYetValid,
  kAudience,
  kRevoked,      // token or certificate
  kCertificate,  // none, none of ours, or expired while connected
  kTenant,       // token and certificate differ, or the tenant is not configured
  kRole,         // was let in, but its role does not do this: administration, or blocks
  kVerb,         // a client without the verb that the call needs
  kThrottled,    // too many failures of its address
};
inline constexpr size_t kAuthFaults = 16;
std::string_view AuthFaultName(AuthFault fault);

class Refusals {
 public:
  explicit Refusals(const Clock* clock);

  // Of a call from `peer`. `name` and `tenant` are of who was let in nevertheless, for the log.
  void Add(AuthFault fault, std::string_view peer, std::string_view name = {},
           std::string_view tenant = {});
  // Nanoseconds that who proves nothing has to wait at that address; 0: none.
  int64_t Wait(std::string_view peer);
  std::array<uint64_t, kAuthFaults> Counts() const;

 private:
  const Clock* const clock_;
  FailureLimiter limiter_;
  std::array<std::atomic<uint64_t>, kAuthFaults> counts_{};
  std::array<std::atomic<int64_t>, kAuthFaults> last_log_nanos_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_REFUSALS_H_
