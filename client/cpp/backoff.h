// Pauses between attempts: each twice the one before, up to a longest, and spread by a quarter so
// that the clients of a host do not come back in step. THREADS: one owner.
#ifndef KVARVE_CLIENT_CPP_BACKOFF_H_
#define KVARVE_CLIENT_CPP_BACKOFF_H_

#include <algorithm>
#include <cstdint>
#include <random>

namespace kvarve::client {

class Backoff {
 public:
  // REQUIRES: 0 < first_nanos.
  Backoff(int64_t first_nanos, int64_t longest_nanos, uint32_t seed = std::random_device()())
      : first_(first_nanos), longest_(longest_nanos), next_(first_nanos), random_(seed) {}
  void Reset() { next_ = first_; }
  int64_t Next() {
    const int64_t delay = std::min(next_, longest_);
    next_ = std::min(2 * next_, longest_);
    return std::uniform_int_distribution<int64_t>(delay - delay / 4, delay + delay / 4)(random_);
  }

 private:
  const int64_t first_, longest_;
  int64_t next_;
  std::minstd_rand random_;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_BACKOFF_H_
