// A session's answers on their way out. Sending never waits: what the socket does not take is
// queued, in order, up to a limit of bytes and of time without progress; beyond either the client
// is given up.
//
// THREADS: the session's own.  BLOCKS: never.
#ifndef KVARVE_SERVICES_LOCAL_OUTBOX_H_
#define KVARVE_SERVICES_LOCAL_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

class Outbox {
 public:
  Outbox(int socket, size_t max_bytes, int64_t max_stuck_nanos)
      : socket_(socket), max_bytes_(max_bytes), max_stuck_nanos_(max_stuck_nanos) {}

  using Fds = std::vector<std::shared_ptr<const UniqueFd>>;

  // Sends or queues one message, with at most kMaxFdsPerMessage descriptors. Unavailable: the
  // client is gone. ResourceExhausted: too much is queued; DeadlineExceeded: nothing was taken for
  // too long (both: close).
  absl::Status Send(std::string message, Fds fds, int64_t now_nanos);
  // Sends what the socket takes now. Errors as above.
  absl::Status Flush(int64_t now_nanos);

  bool empty() const { return queue_.empty(); }
  size_t queued_bytes() const { return queued_bytes_; }

 private:
  struct Message {
    std::string bytes;
    Fds fds;
  };

  const int socket_;
  const size_t max_bytes_;
  const int64_t max_stuck_nanos_;
  std::deque<Message> queue_;
  size_t queued_bytes_ = 0;
  int64_t progress_nanos_ = 0;  // when the queue began, or last gave a message
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_OUTBOX_H_
