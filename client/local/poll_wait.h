// Looking again for a moment before sleeping. Where the two sides of a socket run on two
// processors, waking one that sleeps takes longer than most requests (4 µs on good hardware, 35 in
// some virtual machines), so a side that expects something soon first asks for it again and again.
//
// It learns when that does not pay off: the other side shares the processor, has long work to do,
// or has nothing to say. After each time in vain the next 1, 3, 7, ... up to kSkipsMax waits sleep
// at once, which makes the price of polling that never helps a thousandth of `nanos` a wait.
//
// THREADS: PollSeats any; a PollWait externally synchronised.  BLOCKS: up to `nanos`, busy.
#ifndef KVARVE_CLIENT_LOCAL_POLL_WAIT_H_
#define KVARVE_CLIENT_LOCAL_POLL_WAIT_H_

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "storage/base/clock.h"

namespace kvarve::local {

// How many threads may poll at a time.
class PollSeats {
 public:
  explicit PollSeats(int seats) : none_(seats == 0), free_(seats) {}
  bool none() const { return none_; }
  bool Take() {
    if (free_.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
    Leave();
    return false;
  }
  void Leave() { free_.fetch_add(1, std::memory_order_relaxed); }

  // This process's: half as many as it had processors at the first call, and none on one.
  static PollSeats* OfProcess() {
    static PollSeats seats(Processors() / 2);
    return &seats;
  }

 private:
  static int Processors() {
    cpu_set_t allowed;
    return ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  }
  const bool none_;
  std::atomic<int> free_;
};

class PollWait {
 public:
  static constexpr uint32_t kSkipsMax = 1023;

  // `nanos` 0: never polls.
  explicit PollWait(int64_t nanos, PollSeats* seats = PollSeats::OfProcess(),
                    const Clock* clock = SystemClock::Get())
      : nanos_(seats->none() ? 0 : nanos), seats_(seats), clock_(clock) {}

  // Calls look() until it returns true. False: it is time to sleep.
  template <typename Look>
  bool Poll(Look look) {
    if (nanos_ == 0) return false;
    if (skips_ > 0) {
      --skips_;
      return false;
    }
    if (!seats_->Take()) return false;
    bool came = look();
    if (!came) {  // what was there already says nothing about waiting
      came = PollUntil(clock_->NowNanos() + nanos_, look);
      in_vain_ = came ? 0 : std::min(2 * in_vain_ + 1, kSkipsMax);
      skips_ = in_vain_;
    }
    seats_->Leave();
    return came;
  }

 private:
  template <typename Look>
  bool PollUntil(int64_t deadline_nanos, Look look) {
    do {
      for (int i = 0; i < kLooksAClockRead; ++i) {
        if (look()) return true;
      }
    } while (clock_->NowNanos() < deadline_nanos);
    return false;
  }

  static constexpr int kLooksAClockRead = 8;  // a look is a system call

  const int64_t nanos_;
  PollSeats* const seats_;
  const Clock* const clock_;
  uint32_t in_vain_ = 0;  // the skips that followed the last time in vain
  uint32_t skips_ = 0;    // left
};

}  // namespace kvarve::local

#endif  // KVARVE_CLIENT_LOCAL_POLL_WAIT_H_
