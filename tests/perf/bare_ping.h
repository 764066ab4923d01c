// The bare loop behind the data plane's round trips: a forked process that answers seqpacket
// messages of given sizes and does nothing else.
//
// THREADS: one owner.
#ifndef KVARVE_TESTS_PERF_BARE_PING_H_
#define KVARVE_TESTS_PERF_BARE_PING_H_

#include <cstddef>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvarve::perf {

class BarePing {
 public:
  // The child inherits the calling thread's processors.
  BarePing(size_t request_bytes, size_t reply_bytes);
  ~BarePing();
  BarePing(const BarePing&) = delete;
  BarePing& operator=(const BarePing&) = delete;

  int pid() const { return pid_; }
  double RoundTripMicros();

 private:
  UniqueFd socket_;
  int pid_ = -1;
  std::vector<char> request_;
  std::vector<char> reply_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BARE_PING_H_
