// The watcher of a Link: its one background thread.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/link.h"
#include "client/local/socket.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {

using local::Type;

namespace {

constexpr int64_t kTickNanos = 100'000'000;
constexpr int64_t kBusyTickNanos = 1'000'000;  // somebody has the turn while the connection ends
constexpr int64_t kOpenTimeoutNanos = 2'000'000'000;
constexpr int64_t kFirstRetryNanos = 10'000'000;
constexpr int64_t kSteadyNanos =
    1'000'000'000;  // a connection that lived so long starts the backoff again
constexpr size_t kHelloNamespaceBytes =
    64 * 1024;  // HELLO fits any send buffer; more are opened one by one

int64_t Now() { return SystemClock::Get()->NowNanos(); }

// Doubles from kFirstRetryNanos to `max`, and spreads the clients of a host by a quarter.
class Backoff {
 public:
  explicit Backoff(int64_t max) : max_(max), random_(std::random_device()()) {}
  void Reset() { next_ = kFirstRetryNanos; }
  int64_t Next() {
    const int64_t delay = std::min(next_, max_);
    next_ = std::min(2 * next_, max_);
    return std::uniform_int_distribution<int64_t>(delay - delay / 4, delay + delay / 4)(random_);
  }

 private:
  int64_t max_;
  int64_t next_ = kFirstRetryNanos;
  std::minstd_rand random_;
};

void Raise(const UniqueFd& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof(one));
}

void PollFor(std::span<pollfd> polled, int64_t nanos) {
  const timespec wait = {nanos / 1'000'000'000, nanos % 1'000'000'000};
  ::ppoll(polled.data(), polled.size(), &wait, nullptr);
}

}  // namespace

Link::Link(ClientOptions options, Endpoint endpoint)
    : options_(std::move(options)),
      endpoint_(std::move(endpoint)),
      breaker_(options_.breaker_failures, options_.probe_interval_nanos),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Link::~Link() { KV_CHECK(!watcher_.joinable()); }

absl::Status Link::Start() {
  if (!wake_.valid() || !stop_.valid()) {
    return absl::ResourceExhaustedError("no descriptor is left (see ulimit -n)");
  }
  // Signals are for the program's own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status started;
  try {
    watcher_ = std::thread([this] { Watch(); });
  } catch (const std::system_error& error) {
    started = absl::ResourceExhaustedError(absl::StrCat("no thread: ", error.what()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void Link::Wake() { Raise(wake_); }

void Link::Stop() {
  stopping_.store(true);
  Raise(stop_);
  watcher_.join();
  MutexLock lock(&turn_mutex_);
  if (connection_ == nullptr) return;
  outbox_->Flush([this](std::string_view message) { return connection_->SendOnly(message); });
  if (connection_->session()->users.load() == 0) {
    connection_->SendOnly(std::move(local::Builder(Type::kBye, 0).Add(local::ByeBody())).Finish())
        .IgnoreError();
  }
  connection_->Shutdown();
  outbox_->End();
  connection_ = nullptr;
  connected_.store(false);
  MutexLock state_lock(&state_mutex_);
  current_ = nullptr;
}

// Waits while `connection` needs nothing. True when its peer ended it.
bool Link::Doze(int64_t nanos, const Connection& connection) {
  // POLLRDHUP alone: an answer to a caller does not wake this thread.
  pollfd polled[] = {
      {stop_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}, {connection.socket(), POLLRDHUP, 0}};
  PollFor(polled, nanos);
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  return polled[2].revents != 0;
}

void Link::Pause(int64_t nanos) {
  pollfd polled[] = {{stop_.get(), POLLIN, 0}};
  PollFor(polled, nanos);
}

void Link::Watch() {
  ::pthread_setname_np(::pthread_self(), "kvarve-watch");
  Backoff backoff(options_.probe_interval_nanos);
  std::shared_ptr<Connection>
      connection;  // kept until this thread has seen its end: it polls the socket
  int64_t connected_at = 0;
  while (!stopping_.load()) {
    if (connection != nullptr && !connected_.load()) {
      connection = nullptr;
      if (Now() - connected_at > kSteadyNanos) backoff.Reset();
      Pause(backoff.Next());
    } else if (connection == nullptr) {
      connection = TryConnect();
      connected_at = Now();
      if (connection == nullptr) Pause(backoff.Next());
    } else {
      const bool probing = breaker_open_.load();
      const bool ended = Doze(
          probing ? std::min(kTickNanos, options_.probe_interval_nanos) : kTickNanos, *connection);
      if (!Tend(*connection) && ended) Pause(kBusyTickNanos);
    }
  }
}

// What nobody's call does: unasked messages, namespaces that are not open, probes. False: somebody
// has the turn.
bool Link::Tend(Connection& connection) {
  if (!turn_mutex_.TryLock()) return false;
  if (connection_.get() == &connection) {
    if (connection.Drain()) breaker_.Answered();
    if (!connection.broken() && breaker_.TakeProbe(Now())) {
      connection.SendOnly(local::Builder(Type::kSync, connection.NextRequest()).Finish())
          .IgnoreError();
    }
    if (!connection.broken() && !breaker_.open()) {
      Turn turn(*this, connection);
      OpenMissing(turn);
    }
    MirrorBreaker();
    Settle();
  }
  turn_mutex_.Unlock();
  return true;
}

local::Hello Link::MakeHello(std::vector<ClientNamespace>* named) const {
  local::Hello hello;
  hello.body.role = static_cast<uint8_t>(options_.role);
  hello.body.dp_rank = options_.dp_rank;
  hello.body.pp_rank = options_.pp_rank;
  hello.body.tp_rank = options_.tp_rank;
  hello.body.staging_bytes = options_.staging_bytes;
  hello.engine_id = options_.engine_id;
  hello.client_name = options_.client_name;
  size_t bytes = 0;
  MutexLock lock(&state_mutex_);
  for (ClientNamespace ns = 0; ns < namespaces_.size(); ++ns) {
    const Entry& entry = namespaces_[ns];
    bytes += EncodeDescriptor(entry.descriptor).size() + sizeof(uint32_t) + 32;
    if (bytes > kHelloNamespaceBytes || named->size() == local::kMaxNamespacesPerHello) break;
    hello.namespaces.push_back(entry.descriptor);
    hello.digests.push_back(entry.digest);
    named->push_back(ns);
  }
  return hello;
}

std::shared_ptr<Connection> Link::TryConnect() {
  std::vector<ClientNamespace> named;
  Connection::Params params{.endpoint = endpoint_,
                            .hello = MakeHello(&named),
                            .timeout_nanos = kOpenTimeoutNanos,
                            .cancel_fd = stop_.get()};
  absl::StatusOr<std::unique_ptr<Connection>> made = Connection::Connect(params, outbox_);
  if (!made.ok()) {
    {
      MutexLock lock(&state_mutex_);
      last_error_ = std::string(ToStd(made.status().message()));
    }
    state_changed_.notify_all();
    return nullptr;
  }
  std::shared_ptr<Connection> connection = *std::move(made);
  MutexLock lock(&turn_mutex_);
  connection_ = connection;
  breaker_.Answered();
  MirrorBreaker();
  const local::Welcome& welcome = connection->welcome();
  {
    MutexLock state_lock(&state_mutex_);
    current_ = connection;
    daemon_version_ = welcome.daemon_version;
    last_error_.clear();
    ++connects_;
    connected_.store(true);
    for (Entry& entry : namespaces_) entry.refusal = absl::OkStatus();
  }
  for (size_t i = 0; i < named.size(); ++i) {
    // One that was refused here is asked for again by itself: that answer says why.
    if (welcome.namespaces[i].code != 0) continue;
    if (Resolve(named[i], welcome.namespaces[i]).ok()) continue;
    connection->Shutdown();
    break;
  }
  Turn turn(*this, *connection);
  if (!connection->broken()) OpenMissing(turn);
  Settle();
  state_changed_.notify_all();
  return connection;
}

}  // namespace kvarve::client
