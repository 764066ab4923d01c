#include "gpu/agent/agent_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "gpu/agent/agent_messages.h"
#include "gpu/agent/agent_session.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int kBacklog = 64;

absl::Status Errno(const std::string& what) {
  return absl::UnavailableError(absl::StrFormat("%s: %s", what, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentServer>> AgentServer::Start(
    const cuda::Driver& driver, std::shared_ptr<ComputeDevice> device, const Options& options) {
  std::unique_ptr<AgentServer> server(new AgentServer(driver, std::move(device), options));
  KV_RETURN_IF_ERROR(server->Listen());
  server->thread_ = std::thread([agent = server.get()] { agent->Accept(); });
  return server;
}

absl::Status AgentServer::Listen() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options_.socket_path.empty() || options_.socket_path.size() >= sizeof address.sun_path)
    return absl::InvalidArgumentError("a path of a socket that is empty or too long");
  std::memcpy(address.sun_path, options_.socket_path.c_str(), options_.socket_path.size());
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!stop_.valid() || !listener_.valid()) return Errno("socket");
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);
  // Somebody who answers has it; a socket that nobody listens on is of an agent that died.
  const UniqueFd other(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(other.get(), name, sizeof address) == 0)
    return absl::AlreadyExistsError("another agent listens on " + options_.socket_path);
  struct stat there {};
  if (::lstat(options_.socket_path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode))
    ::unlink(options_.socket_path.c_str());
  if (::bind(listener_.get(), name, sizeof address) != 0) return Errno(options_.socket_path);
  if (::chmod(options_.socket_path.c_str(), 0600) != 0 || ::listen(listener_.get(), kBacklog) != 0)
    return Errno(options_.socket_path);
  return absl::OkStatus();
}

AgentServer::~AgentServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) != sizeof one) KV_CHECK(errno == EAGAIN);
  thread_.join();
  std::list<Entry> entries;
  {
    MutexLock lock(&mutex_);
    entries.swap(entries_);
  }
  for (Entry& entry : entries) entry.thread.join();
  ::unlink(options_.socket_path.c_str());
}

void AgentServer::Accept() {
  for (;;) {
    pollfd watched[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    ::poll(watched, std::size(watched), -1);
    if (watched[1].revents != 0) return;
    JoinEnded();
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) Admit(std::move(socket));
  }
}

void AgentServer::Admit(UniqueFd socket) {
  absl::StatusOr<UniqueFd> pidfd = PeerProcess(socket.get());
  MutexLock lock(&mutex_);
  ++stats_.connections;
  if (!pidfd.ok() || stats_.sessions >= kMaxSessions) {
    ++stats_.refused;
    return;
  }
  ++stats_.sessions;
  Entry& entry = entries_.emplace_back();
  entry.session = std::make_shared<AgentSession>(this, std::move(socket), *std::move(pidfd));
  entry.thread = std::thread([this, &entry] {
    entry.session->Run();
    entry.session.reset();
    MutexLock done(&mutex_);
    entry.over = true;
    --stats_.sessions;
  });
}

void AgentServer::JoinEnded() {
  std::list<Entry> ended;
  {
    MutexLock lock(&mutex_);
    for (auto i = entries_.begin(); i != entries_.end();) {
      const auto next = std::next(i);
      if (i->over) ended.splice(ended.end(), entries_, i);
      i = next;
    }
  }
  for (Entry& entry : ended) entry.thread.join();
}

AgentServer::Stats AgentServer::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace kvarve
