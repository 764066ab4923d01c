// Slows down who guesses: each address may fail so often, then it has to wait. Addresses are those
// of the connection, without port; IPv6 by its first 64 bits, which one host has to itself.
// THREADS: any.
#ifndef KVARVE_SERVICES_AUTH_FAILURE_LIMITER_H_
#define KVARVE_SERVICES_AUTH_FAILURE_LIMITER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace kvarve {

// The address of "ipv4:10.0.0.1:5000" or "ipv6:%5Bfe80::1%5D:5000", as gRPC names its peers;
// anything else is one address of its own.
std::string AddressOfPeer(std::string_view peer);

class FailureLimiter {
 public:
  static constexpr size_t kMaxAddresses = 8192;  // the longest unheard of is forgotten
  static constexpr uint32_t kBurst = 20;
  static constexpr int64_t kNanosPerFailure = 1'000'000'000;  // one more each second

  explicit FailureLimiter(const Clock* clock) : clock_(clock) {}

  // Nanoseconds that the address has to wait before it may try again; 0: now.
  int64_t Wait(const std::string& address);
  void Failed(const std::string& address);
  size_t addresses() const;

 private:
  struct Entry {
    std::string address;
    int64_t full_at = 0;  // when all its failures are forgiven
  };
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the last that failed first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> of_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_FAILURE_LIMITER_H_
