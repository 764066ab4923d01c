// The bare loop behind the data plane's round trips: a forked process that answers seqpacket
// messages of given sizes and does nothing else, or only what it is told to.
//
// THREADS: one owner.
#ifndef KVARVE_TESTS_PERF_BARE_PING_H_
#define KVARVE_TESTS_PERF_BARE_PING_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvarve::perf {

class BarePing {
 public:
  struct Options {
    size_t request_bytes = 0;
    size_t reply_bytes = 0;
    // What the answering process does before each answer; null: nothing.
    std::function<void(std::span<const char> request, std::span<char> reply)> work;
  };
  BarePing(size_t request_bytes, size_t reply_bytes)
      : BarePing(Options{.request_bytes = request_bytes, .reply_bytes = reply_bytes}) {}
  // The child inherits the calling thread's processors, and its memory as it is now.
  explicit BarePing(Options options);
  ~BarePing();
  BarePing(const BarePing&) = delete;
  BarePing& operator=(const BarePing&) = delete;

  int pid() const { return pid_; }
  std::span<char> request() { return request_; }
  double RoundTripMicros();

 private:
  [[noreturn]] void Answer(int socket);

  const Options options_;
  UniqueFd socket_;
  int pid_ = -1;
  std::vector<char> request_;
  std::vector<char> reply_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BARE_PING_H_
