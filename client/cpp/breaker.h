// Decides when to stop asking a daemon that does not answer, and when to look again. Pure: time is
// an argument.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_CLIENT_CPP_BREAKER_H_
#define KVARVE_CLIENT_CPP_BREAKER_H_

#include <cstdint>

namespace kvarve::client {

class Breaker {
 public:
  // A probe that has no answer after so many intervals is sent again.
  static constexpr int kResendIntervals = 16;

  // REQUIRES: failures >= 1, probe_interval_nanos > 0.
  Breaker(int failures, int64_t probe_interval_nanos)
      : failures_(failures), probe_interval_nanos_(probe_interval_nanos) {}

  // Open: no request goes out but probes.
  bool open() const { return timeouts_ >= failures_; }

  void TimedOut(int64_t now_nanos);
  // Any answer, late ones and a probe's included, and a new connection.
  void Answered();

  // True when the caller shall send a probe now; it is then taken as sent.
  bool TakeProbe(int64_t now_nanos);

 private:
  int failures_;
  int64_t probe_interval_nanos_;
  int timeouts_ = 0;  // consecutive, not above failures_
  int64_t next_probe_nanos_ = 0;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_BREAKER_H_
