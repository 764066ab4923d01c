#include "gpu/agent/agent_messages.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "client/local/socket.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

constexpr int kSoPeerPidfd = 77;  // from newer headers than some distributions ship

}  // namespace

int64_t NowNanos() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

absl::Status SendWithin(int socket, std::string_view bytes, std::span<const int> fds,
                        int64_t deadline_nanos) {
  for (;;) {
    const absl::Status sent = local::Send(socket, bytes, fds);
    if (!absl::IsResourceExhausted(sent)) return sent;
    const int64_t left = deadline_nanos - NowNanos();
    if (left <= 0) return absl::DeadlineExceededError("no room to send");
    pollfd room{socket, POLLOUT, 0};
    ::poll(&room, 1, static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, 1000)));
  }
}

absl::StatusOr<UniqueFd> PeerProcess(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return absl::UnavailableError("no peer");
  if (peer.uid != ::geteuid() && peer.uid != 0)
    return absl::PermissionDeniedError("the peer is another user's");
  int pidfd = -1;
  bytes = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &bytes) == 0) return UniqueFd(pidfd);
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  // Opened by number it may be a later process: the socket's being up says that it is not.
  pollfd up{socket, POLLRDHUP, 0};
  if (!opened.valid() || (::poll(&up, 1, 0) > 0 && (up.revents & (POLLHUP | POLLRDHUP)) != 0))
    return absl::UnavailableError("the peer is gone");
  return opened;
}

bool IsGone(int pidfd) {
  pollfd gone{pidfd, POLLIN, 0};
  return ::poll(&gone, 1, 0) > 0;
}

}  // namespace kvarve
