// Time as an argument: policies and tests never read the system's clock.
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_CLOCK_H_
#define KVARVE_STORAGE_BASE_CLOCK_H_

#include <time.h>

#include <atomic>
#include <cstdint>

namespace kvarve {

// Monotonic nanoseconds since an arbitrary start.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNanos() const = 0;
};

class SystemClock final : public Clock {
 public:
  int64_t NowNanos() const override {
    timespec ts;
    ::clock_gettime(CLOCK_MONOTONIC, &ts);
    return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
  }
  static const SystemClock* Get() {
    static const SystemClock clock;
    return &clock;
  }
};

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_.load(std::memory_order_relaxed); }
  void Advance(int64_t nanos) { now_.fetch_add(nanos, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_{0};
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_CLOCK_H_
