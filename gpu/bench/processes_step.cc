// Two processes and one memory of a device's: an engine allocates and exports it, an agent imports
// it and copies from it all the time, and one of them is killed in the middle. The other must go
// on, with its bytes whole.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_format.h"
#include "gpu/bench/gpu_steps.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {
namespace {

constexpr std::byte kPattern{0x5C};

absl::Status SendMemory(int to, int fd, uint64_t bytes) {
  iovec data{&bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(to, &message, MSG_NOSIGNAL) > 0 ? absl::OkStatus()
                                                   : absl::UnavailableError("the other is gone");
}

absl::StatusOr<std::pair<UniqueFd, uint64_t>> ReceiveMemory(int from) {
  uint64_t bytes = 0;
  iovec data{&bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (n != sizeof bytes || header == nullptr) return absl::UnavailableError("no memory came");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return std::pair(UniqueFd(fd), bytes);
}

// Exports memory full of the pattern; then waits for its end, or checks the memory when it is told.
absl::Status Engine(const Plan& plan, uint64_t bytes, int socket,
                    const std::function<void()>& ready) {
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<ComputeDevice> device, Open(plan));
  KV_ASSIGN_OR_RETURN(const ComputeDevice::Shareable shared, device->AllocateShareable(bytes));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> host,
                      HostBuffer::Create(device, shared.memory.bytes()));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device->NewStream());
  std::memset(host->bytes().data(), static_cast<int>(kPattern), host->bytes().size());
  const CopyJob there{host->address(), shared.memory.address(), shared.memory.bytes()};
  KV_RETURN_IF_ERROR(stream->Copy({&there, 1}, CopyOrder::kAny));
  KV_RETURN_IF_ERROR(Finish(*stream));
  KV_RETURN_IF_ERROR(SendMemory(socket, shared.export_fd.get(), shared.memory.bytes()));
  ready();  // returns when the agent is dead, or never
  std::memset(host->bytes().data(), 0, host->bytes().size());
  const CopyJob back{shared.memory.address(), host->address(), shared.memory.bytes()};
  KV_RETURN_IF_ERROR(stream->Copy({&back, 1}, CopyOrder::kStream));
  KV_RETURN_IF_ERROR(Finish(*stream));
  for (const std::byte byte : host->bytes()) {
    if (byte != kPattern) return absl::DataLossError("the engine's bytes are not what they were");
  }
  return absl::OkStatus();
}

// Copies the engine's memory until `go_on` says no, a word to the engine for each.
absl::Status Agent(const Plan& plan, int socket, const std::function<bool()>& go_on) {
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<ComputeDevice> device, Open(plan));
  KV_ASSIGN_OR_RETURN(const auto received, ReceiveMemory(socket));
  KV_ASSIGN_OR_RETURN(const DeviceMemory memory,
                      device->Import(received.first.get(), received.second));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> host,
                      HostBuffer::Create(device, memory.bytes()));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device->NewStream());
  const CopyJob job{memory.address(), host->address(), memory.bytes()};
  do {
    KV_RETURN_IF_ERROR(stream->Copy({&job, 1}, CopyOrder::kStream));
    ::send(socket, "copied", 6, MSG_NOSIGNAL | MSG_DONTWAIT);
    KV_RETURN_IF_ERROR(Finish(*stream));
  } while (go_on());
  for (const std::byte byte : host->bytes()) {
    if (byte != kPattern) return absl::DataLossError("the agent read other bytes");
  }
  return absl::OkStatus();
}

// Hears of `copies`, then kills.
void KillAfter(int socket, int copies, pid_t pid) {
  char word[16];
  for (int i = 0; i<copies&& ::recv(socket, word, sizeof word, 0)> 0; ++i) {
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

absl::Status Round(const Plan& plan, bool kill_agent, int copies) {
  const uint64_t bytes = plan.tiny ? 2 * kMiB : 512 * kMiB;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return absl::InternalError("no socket");
  UniqueFd mine(ends[0]), its(ends[1]);
  const pid_t pid = ::fork();  // before any driver: a driver's state is no child's
  if (pid < 0) return absl::InternalError("no process");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    mine.reset();
    const absl::Status status = kill_agent ? Agent(plan, its.get(), [] { return true; })
                                           : Engine(plan, bytes, its.get(), [] {
                                               for (;;) ::pause();
                                             });
    ::_exit(status.ok() ? 0 : 1);
  }
  its.reset();
  if (kill_agent)
    return Engine(plan, bytes, mine.get(), [&] { KillAfter(mine.get(), copies, pid); });
  int left = copies;
  const absl::Status status = Agent(plan, mine.get(), [&] {
    if (--left == 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    return left > -3;  // goes on for a while without the engine
  });
  if (left > 0) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  return status;
}

}  // namespace

absl::Status RunProcesses(const Plan& plan, const Report& report) {
  const int rounds = plan.tiny ? 1 : 3;
  for (int i = 0; i < rounds; ++i) {
    for (const bool kill_agent : {true, false}) {
      // In a process of its own: a driver once started may not be forked.
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        const absl::Status status = Round(plan, kill_agent, 2 + i);
        report({{"row", kill_agent ? "agent killed" : "engine killed"},
                {"round", i},
                {"right", status.ok()},
                {"said", status.ToString()}});
        ::_exit(status.ok() ? 0 : 1);
      }
      int end = 0;
      if (pid < 0 || ::waitpid(pid, &end, 0) != pid || end != 0)
        return absl::InternalError(absl::StrFormat("round %d failed", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvarve::gpu_bench
