#include "services/local/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvarve {
namespace {

// From newer kernel headers than some distributions ship.
constexpr int kSoPeerGroups = 59;
constexpr int kSoPeerPidfd = 77;
constexpr long kPidFsMagic = 0x50494446;
constexpr size_t kMaxGroups = 65536;  // NGROUPS_MAX

std::vector<gid_t> GroupsOf(int socket) {
  std::vector<gid_t> groups(64);
  socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerGroups, groups.data(), &bytes) != 0) {
    if (errno != ERANGE || bytes / sizeof(gid_t) > kMaxGroups) return {};
    groups.resize(bytes / sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, kSoPeerGroups, groups.data(), &bytes) != 0) return {};
  }
  groups.resize(bytes / sizeof(gid_t));
  return groups;
}

bool HungUp(int socket) {
  pollfd poll{socket, POLLIN | POLLRDHUP, 0};
  return ::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

UniqueFd PidfdOf(int socket, pid_t pid, PidfdSource source) {
  if (source == PidfdSource::kNone) return UniqueFd();
  if (source == PidfdSource::kPeer) {
    int pidfd = -1;
    socklen_t bytes = sizeof(pidfd);
    if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &bytes) == 0) return UniqueFd(pidfd);
  }
  if (pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

absl::StatusOr<Peer> IdentifyPeer(int socket, PidfdSource source) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return absl::UnavailableError(absl::StrCat("peer credentials: ", std::strerror(errno)));
  }
  Peer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  peer.groups = GroupsOf(socket);
  peer.pidfd = PidfdOf(socket, peer.pid, source);
  if (peer.pidfd.valid()) {
    struct statfs fs;
    struct stat st;
    if (::fstatfs(peer.pidfd.get(), &fs) == 0 && fs.f_type == kPidFsMagic &&
        ::fstat(peer.pidfd.get(), &st) == 0) {
      peer.pidfd_inode = st.st_ino;
    }
  }
  // Opened by number, a pidfd may be that of a later process: the socket still being up says that
  // it is not.
  if (HungUp(socket)) return absl::UnavailableError("the peer is gone");
  return peer;
}

bool HasExited(int pidfd) {
  pollfd poll{pidfd, POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

}  // namespace kvarve
