// When a read is worth asking for twice: after the time within which 95 of 100 reads were answered
// lately, and for one read in ten at most, so that a daemon that is slow as a whole is not asked
// twice as much.
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_CLIENT_RPC_HEDGE_H_
#define KVARVE_CLIENT_RPC_HEDGE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "storage/base/mutex.h"

namespace kvarve::client {

class Hedge {
 public:
  static constexpr size_t kSamples = 128, kFewestSamples = 20;
  static constexpr uint64_t kReadsPerHedge = 10;

  // A read's first frame came after so long.
  void Answered(int64_t nanos) {
    MutexLock lock(&mutex_);
    samples_[reads_++ % kSamples] = nanos;
  }
  // How long to wait for a first frame before asking again; nothing: too little is known.
  std::optional<int64_t> Delay() const {
    MutexLock lock(&mutex_);
    const size_t count = std::min<uint64_t>(reads_, kSamples);
    if (count < kFewestSamples) return std::nullopt;
    std::array<int64_t, kSamples> sorted = samples_;
    const auto at = sorted.begin() + static_cast<ptrdiff_t>(count * 95 / 100);
    std::nth_element(sorted.begin(), at, sorted.begin() + static_cast<ptrdiff_t>(count));
    return *at;
  }
  // Whether one more may be asked for twice; counts it.
  bool Take() {
    MutexLock lock(&mutex_);
    if ((hedges_ + 1) * kReadsPerHedge > reads_) return false;
    ++hedges_;
    return true;
  }
  uint64_t hedges() const {
    MutexLock lock(&mutex_);
    return hedges_;
  }

 private:
  mutable Mutex mutex_;
  std::array<int64_t, kSamples> samples_ ABSL_GUARDED_BY(mutex_){};
  uint64_t reads_ ABSL_GUARDED_BY(mutex_) = 0, hedges_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_HEDGE_H_
