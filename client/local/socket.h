// One packet at a time over the plane's sequenced-packet sockets.
//
// THREADS: any; a message is one packet, so two senders never mix bytes.  BLOCKS: only
// Receive, when asked to.
#ifndef KVARVE_CLIENT_LOCAL_SOCKET_H_
#define KVARVE_CLIENT_LOCAL_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve::local {

inline constexpr size_t kMaxFdsPerMessage = 4;

// `fds` go along as SCM_RIGHTS. ResourceExhausted: no room in the socket now; InvalidArgument:
// longer than its send buffer can ever take; Unavailable: the peer is gone. Raises no SIGPIPE.
// REQUIRES: at most kMaxFdsPerMessage.
absl::Status Send(int socket, std::string_view message, std::span<const int> fds = {});

// Whether Receive waits: kNo never; kSocketTimeout as long as the socket's SO_RCVTIMEO says, or
// until a signal.
enum class Wait { kNo, kSocketTimeout };

// Reads one packet; its length, or 0 when none is there. Unavailable: end of the connection (an
// empty packet is one too). InvalidArgument: longer than `buffer`; the packet is gone. With `fds`,
// received descriptors are appended (close-on-exec). Without, no control buffer is offered and the
// kernel drops what the peer attached: a daemon takes no descriptors from clients.
absl::StatusOr<size_t> Receive(int socket, std::span<uint8_t> buffer,
                               std::vector<UniqueFd>* fds = nullptr, Wait wait = Wait::kNo);

// Asks for room for `bytes` in flight (past the system's limit where the process may). Returns what
// the socket has.
size_t RaiseSendBuffer(int socket, size_t bytes);

}  // namespace kvarve::local

#endif  // KVARVE_CLIENT_LOCAL_SOCKET_H_
