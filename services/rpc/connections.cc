#include "services/rpc/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/auth/failure_limiter.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint64_t kListener = 0, kWake = 1, kFirst = 2;  // numbers in epoll
constexpr int kBacklog = 1024;
constexpr int kAcceptsPerTurn = 64;
constexpr int kTurnMillis = 100;
constexpr int kNoFilesMillis = 20;  // until accept is tried again when no descriptor is left
// What was sent and is not taken so long ends the connection.
constexpr unsigned kUserTimeoutMillis = 15'000;
constexpr int kMaxMetadataBytes = 8 << 10;
constexpr size_t kMemoryQuotaBytes = 256 << 20;
constexpr int kMaxAgeMillis = 3'600'000;
constexpr int kAgeGraceMillis = 30'000;
// A peer that is gone, or reads nothing at all, holds its connection's memory so long at most.
constexpr int kKeepaliveMillis = 20'000;
constexpr int kKeepaliveTimeoutMillis = 5'000;
constexpr int64_t kNanosPerMilli = 1'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

absl::Status Failed(const ListenAddress& address) {
  return absl::UnavailableError(
      absl::StrFormat("rpc.listen: cannot listen on %s (%s); is another process on that port?",
                      address.ToString(), std::strerror(errno)));
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress SocketAddressOf(const ListenAddress& address) {
  SocketAddress out;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    out.size = sizeof(*v4);
  } else if (::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    out.size = sizeof(*v6);
  }
  return out;
}

uint16_t PortOf(const SocketAddress& address) {
  return ntohs(address.storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port
                   : reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
}

// As gRPC names it: "ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000".
std::string PeerName(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.storage.ss_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
    return absl::StrFormat("ipv4:%s:%d", text.data(), PortOf(address));
  }
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text.data(), text.size());
    return absl::StrFormat("ipv4:%s:%d", text.data(), PortOf(address));
  }
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
  const std::string scope =
      v6->sin6_scope_id != 0 ? absl::StrFormat("%%25%d", v6->sin6_scope_id) : "";
  return absl::StrFormat("ipv6:%%5B%s%s%%5D:%d", text.data(), scope, PortOf(address));
}

void SetOption(int socket, int level, int name, unsigned value) {
  ::setsockopt(socket, level, name, &value, sizeof(value));
}

bool Watch(int epoll, int fd, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

void LimitEach(const ConnectionLimits& limits, int streams, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("kvarve");
  quota.Resize(kMemoryQuotaBytes);
  builder->SetResourceQuota(quota);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, streams);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxAgeMillis);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kAgeGraceMillis);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Clients look after their connections likewise; without this gRPC takes that for an attack.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveMillis / 2);
  // TLS's hello and HTTP/2's preface; Connections sees to all that may be slow after them.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              static_cast<int>(limits.greeting_nanos / kNanosPerMilli));
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

absl::StatusOr<std::unique_ptr<Connections>> Connections::Listen(const ListenAddress& address,
                                                                 const ConnectionLimits& limits) {
  KV_RETURN_IF_ERROR(CheckQuotas(limits.quotas, Resource::kConnections, limits.connections, 1));
  SocketAddress at = SocketAddressOf(address);
  UniqueFd listener(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Failed(address);
  SetOption(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.storage.ss_family == AF_INET6) {
    SetOption(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);  // [::] is IPv4 too, as gRPC has it
  }
  if (::bind(listener.get(), at.get(), at.size) != 0 || ::listen(listener.get(), kBacklog) != 0 ||
      ::getsockname(listener.get(), at.get(), &at.size) != 0) {
    return Failed(address);
  }
  std::unique_ptr<Connections> connections(
      new Connections(std::move(listener), PortOf(at), limits));
  if (!connections->epoll_.valid() || !connections->wake_.valid() ||
      !Watch(connections->epoll_.get(), connections->wake_.get(), EPOLLIN, kWake) ||
      !Watch(connections->epoll_.get(), connections->listener_.get(), EPOLLIN, kListener)) {
    return Failed(address);
  }
  return connections;
}

Connections::Connections(UniqueFd listener, uint16_t port, const ConnectionLimits& limits)
    : limits_(limits),
      port_(port),
      listener_(std::move(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      use_(limits.quotas, limits.default_quota, limits.connections),
      next_(kFirst) {}

void Connections::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void Connections::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  ::shutdown(listener_.get(), SHUT_RDWR);  // who still waits to be accepted hears it at once
}

void Connections::Run() {
  std::array<epoll_event, 256> events;
  while (true) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), kTurnMillis);
    bool accepts = false;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      for (int i = 0; i < count; ++i) {
        const uint64_t number = events[static_cast<size_t>(i)].data.u64;
        accepts = accepts || number == kListener;
        if (number >= kFirst) Forget(number);
      }
    }
    for (int i = 0; accepts && i < kAcceptsPerTurn; ++i) {
      if (AcceptOne()) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        PushOutOne();
        ::usleep(kNoFilesMillis * 1000);  // for gRPC to close what that was
      }
      break;
    }
    EndSilent();
  }
}

// False: there is none now (errno says why).
bool Connections::AcceptOne() {
  SocketAddress from;
  from.size = sizeof(from.storage);
  UniqueFd socket(::accept4(listener_.get(), from.get(), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return errno == ECONNABORTED;
  UniqueFd watch(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!watch.valid()) return false;
  SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMillis);
  {
    MutexLock lock(&mutex_);
    if (!MakeRoom()) {
      ++stats_.refused;
      return true;
    }
    const uint64_t number = next_++;
    // EPOLLHUP and EPOLLERR come unasked: both sides are shut, or the connection is dead.
    if (!Watch(epoll_.get(), watch.get(), EPOLLET, number)) return false;
    Connection connection;
    connection.watch = std::move(watch);
    connection.peer = PeerName(from);
    connection.address = AddressOfPeer(connection.peer);
    connection.since = Now();
    connection.place = unproven_.insert(unproven_.end(), number);
    ++unproven_of_[connection.address];
    of_peer_[connection.peer] = number;
    connections_.emplace(number, std::move(connection));
    ++stats_.accepted;
  }
  Acceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listener_.get();
  parameters.fd = socket.release();
  acceptor_->HandleNewConnection(&parameters);
  return true;
}

bool Connections::MakeRoom() {
  if (connections_.size() < limits_.connections) return true;
  if (unproven_.empty()) return false;
  End(OldestOfTheGreediest());
  ++stats_.pushed_out;
  return true;
}

void Connections::PushOutOne() {
  MutexLock lock(&mutex_);
  if (unproven_.empty()) return;
  End(OldestOfTheGreediest());
  ++stats_.pushed_out;
}

uint64_t Connections::OldestOfTheGreediest() const {
  const auto most = std::ranges::max_element(unproven_of_, {},
                                             [](const auto& address) { return address.second; });
  return *std::ranges::find_if(
      unproven_, [&](uint64_t number) { return connections_.at(number).address == most->first; });
}

// gRPC reads the end, and closes its own descriptor.
void Connections::End(uint64_t number) {
  ::shutdown(connections_.at(number).watch.get(), SHUT_RDWR);
  Forget(number);
}

void Connections::Forget(uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Unlist(&found->second);
  if (!found->second.tenant.empty()) use_.Leave(found->second.tenant);
  const auto named = of_peer_.find(found->second.peer);
  if (named != of_peer_.end() && named->second == number) of_peer_.erase(named);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.watch.get(), nullptr);
  connections_.erase(found);
}

void Connections::Unlist(Connection* connection) {
  if (std::exchange(connection->proven, true)) return;
  unproven_.erase(connection->place);
  const auto of = unproven_of_.find(connection->address);
  if (--of->second == 0) unproven_of_.erase(of);
}

absl::Status Connections::Proven(std::string_view peer, const std::string& tenant) {
  MutexLock lock(&mutex_);
  const auto found = of_peer_.find(std::string(peer));
  if (found == of_peer_.end()) return absl::OkStatus();  // it has just ended
  Connection& connection = connections_.at(found->second);
  if (connection.proven) return absl::OkStatus();
  if (!tenant.empty()) {
    if (absl::Status refused = use_.Enter(tenant); !refused.ok()) {
      ++stats_.over_quota;
      return refused;
    }
    connection.tenant = tenant;
  }
  Unlist(&connection);
  return absl::OkStatus();
}

void Connections::EndSilent() {
  MutexLock lock(&mutex_);
  const int64_t oldest = Now() - limits_.greeting_nanos;
  while (!unproven_.empty() && connections_.at(unproven_.front()).since < oldest) {
    End(unproven_.front());
    ++stats_.silent;
  }
}

ConnectionStats Connections::Stats() const {
  MutexLock lock(&mutex_);
  ConnectionStats stats = stats_;
  stats.open = connections_.size();
  stats.of_tenants = use_.Used();
  return stats;
}

}  // namespace kvarve
