#include "client/local/socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"

namespace kvarve::local {
namespace {

constexpr int kMaxInterrupts = 16;  // EINTR before the call counts as failed

std::string ErrnoText(const char* what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

struct alignas(cmsghdr) ControlBuffer {
  std::array<char, CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))> bytes{};
};

void TakeFds(msghdr* message, std::vector<UniqueFd>* fds) {
  for (cmsghdr* control = CMSG_FIRSTHDR(message); control != nullptr;
       control = CMSG_NXTHDR(message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

absl::Status Send(int socket, std::string_view bytes, std::span<const int> fds) {
  KV_CHECK(fds.size() <= kMaxFdsPerMessage);
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  for (int attempt = 0; attempt < kMaxInterrupts; ++attempt) {
    // A plain send is a little cheaper, and the way of nearly all messages.
    const ssize_t sent = fds.empty() ? ::send(socket, bytes.data(), bytes.size(), kFlags)
                                     : ::sendmsg(socket, &message, kFlags);
    if (sent >= 0) return absl::OkStatus();
    if (errno != EINTR) break;
  }
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
    case ETOOMANYREFS:
      return absl::ResourceExhaustedError(ErrnoText("send"));
    case EMSGSIZE:
      return absl::InvalidArgumentError(absl::StrCat(
          "send: a message of ", bytes.size(), " bytes does not fit the socket's send buffer"));
    default:
      return absl::UnavailableError(ErrnoText("send"));
  }
}

namespace {

// As recvmsg with room for descriptors; `truncated`: the packet was longer than the buffer.
ssize_t ReceiveWithFds(int socket, std::span<uint8_t> buffer, int flags, std::vector<UniqueFd>* fds,
                       bool* truncated) {
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t received = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (received < 0) return received;
  TakeFds(&message, fds);
  *truncated = (message.msg_flags & MSG_TRUNC) != 0;
  return received;
}

}  // namespace

absl::StatusOr<size_t> Receive(int socket, std::span<uint8_t> buffer, std::vector<UniqueFd>* fds,
                               Wait wait) {
  const int flags = wait == Wait::kNo ? MSG_DONTWAIT : 0;
  bool truncated = false;
  ssize_t received = 0;
  if (fds != nullptr) {
    received = ReceiveWithFds(socket, buffer, flags, fds, &truncated);
  } else {
    // A plain receive is a little cheaper; asked to, it tells the packet's real length.
    received = ::recv(socket, buffer.data(), buffer.size(), flags | MSG_TRUNC);
    truncated = received > static_cast<ssize_t>(buffer.size());
  }
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return size_t{0};
    return absl::UnavailableError(ErrnoText("receive"));
  }
  if (received == 0) return absl::UnavailableError("the connection ended");
  if (truncated) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet is longer than ", buffer.size(), " bytes"));
  }
  return static_cast<size_t>(received);
}

size_t RaiseSendBuffer(int socket, size_t bytes) {
  const int wanted = static_cast<int>(bytes);
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof(wanted)) != 0) {
    ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted));
  }
  int got = 0;
  socklen_t size = sizeof(got);
  if (::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &got, &size) != 0 || got < 0) return 0;
  return static_cast<size_t>(got);
}

}  // namespace kvarve::local
