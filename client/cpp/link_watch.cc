// The watcher of a Link: its one background thread.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/backoff.h"
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
// Pauses, in probe intervals, of a client that got no staging or no room for a namespace: by
// default 1 to 60 seconds.
constexpr int64_t kFirstScarceProbes = 4, kLongestScarceProbes = 240;
constexpr size_t kHelloNamespaceBytes =
    64 * 1024;  // HELLO fits any send buffer; more are opened one by one

int64_t Now() { return SystemClock::Get()->NowNanos(); }

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
    connection_->Leave();
  } else {
    connection_->Shutdown();
  }
  outbox_->End();
  connection_ = nullptr;
  connected_.store(false);
  MutexLock state_lock(&state_mutex_);
  current_ = nullptr;
}

// Waits while `connection` needs nothing. True when its peer ended it.
bool Link::Doze(int64_t nanos, const Connection& connection) {
  // POLLRDHUP alone: an answer to a caller does not wake this thread. It costs each answer that
  // comes through the socket a look at this thread all the same, so a socket without a mailbox is
  // left alone (-1) while it is in use: callers see its end themselves, and Tend does at the next
  // tick.
  const uint64_t turns = turns_.load(std::memory_order_relaxed);
  const bool changed = std::exchange(turns_seen_, turns) != turns;
  const bool in_use = changed && !connection.has_mailbox();
  pollfd polled[] = {{stop_.get(), POLLIN, 0},
                     {wake_.get(), POLLIN, 0},
                     {in_use ? -1 : connection.socket(), POLLRDHUP, 0}};
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
  const int64_t probe = options_.probe_interval_nanos;
  Backoff backoff(kFirstRetryNanos, probe);
  Backoff scarce(kFirstScarceProbes * probe, kLongestScarceProbes * probe);
  int64_t scarce_at = 0;  // when to ask again for what the daemon had not left
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
      scarce.Reset();
      scarce_at = connected_at + scarce.Next();
      if (connection == nullptr) Pause(backoff.Next());
    } else {
      const bool probing = breaker_open_.load();
      const bool ended = Doze(probing ? std::min(kTickNanos, probe) : kTickNanos, *connection);
      if (ended) connection->WakeCaller();
      if (!Tend(*connection) && ended) Pause(kBusyTickNanos);
      if (Now() < scarce_at) continue;
      if (LacksStaging(*connection)) {
        if (std::shared_ptr<Connection> better = TryStaging(*connection)) connection = better;
      }
      OpenScarceAgain();
      scarce_at = Now() + scarce.Next();
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
  hello.body.flags = local::kTakesMailbox;
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

absl::StatusOr<std::shared_ptr<Connection>> Link::Dial(std::vector<ClientNamespace>* named) const {
  Connection::Params params{.endpoint = endpoint_,
                            .hello = MakeHello(named),
                            .timeout_nanos = kOpenTimeoutNanos,
                            .poll_nanos = options_.poll_nanos,
                            .cancel_fd = stop_.get(),
                            .memory = options_.memory};
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Connection> made, Connection::Connect(params, outbox_));
  return std::shared_ptr<Connection>(std::move(made));
}

std::shared_ptr<Connection> Link::TryConnect() {
  std::vector<ClientNamespace> named;
  absl::StatusOr<std::shared_ptr<Connection>> made = Dial(&named);
  if (!made.ok()) {
    {
      MutexLock lock(&state_mutex_);
      last_error_ = std::string(ToStd(made.status().message()));
    }
    state_changed_.notify_all();
    return nullptr;
  }
  MutexLock lock(&turn_mutex_);
  Adopt(*made, named);
  return *std::move(made);
}

void Link::Adopt(const std::shared_ptr<Connection>& connection,
                 const std::vector<ClientNamespace>& named) {
  connection_ = connection;
  outbox_->Begin(connection->session());
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
}

// Namespaces that were refused for want of room are opened with the next Tend.
void Link::OpenScarceAgain() {
  MutexLock lock(&state_mutex_);
  for (Entry& entry : namespaces_) {
    if (entry.resolved && absl::IsResourceExhausted(entry.refusal)) entry.resolved = false;
  }
}

// What this client wants and the daemon had not left: any at all, or enough for one block.
bool Link::LacksStaging(const Connection& connection) const {
  if (options_.staging_bytes == 0) return false;
  const uint64_t bytes = connection.staging() != nullptr ? connection.staging()->bytes() : 0;
  if (bytes == 0) return true;
  MutexLock lock(&state_mutex_);
  return std::ranges::any_of(namespaces_, [&](const Entry& entry) {
    return bytes < entry.info.block_bytes && entry.info.block_bytes <= options_.staging_bytes;
  });
}

// Nothing that a call gave out depends on this connection.
bool Link::IsIdle(const Connection& connection) const {
  const std::shared_ptr<StagingMemory>& staging = connection.staging();
  return connection.session()->users.load() == 0 && outbox_->empty() &&
         Now() >= connection.held_until() &&
         (staging == nullptr || staging->free_bytes() == staging->bytes());
}

// Asks for staging with a second connection, which takes the first one's place only if it got some
// and nothing is out on the first: no call fails for it. Null: all stays as it was.
std::shared_ptr<Connection> Link::TryStaging(Connection& connection) {
  {
    MutexLock lock(&turn_mutex_);
    if (connection_.get() != &connection || breaker_.open() || !IsIdle(connection)) return nullptr;
  }
  std::vector<ClientNamespace> named;
  absl::StatusOr<std::shared_ptr<Connection>> made = Dial(&named);
  if (!made.ok()) return nullptr;
  MutexLock lock(&turn_mutex_);
  const bool takes_over = connection_.get() == &connection && !connection.broken() &&
                          IsIdle(connection) && !LacksStaging(**made);
  (takes_over ? connection : **made).Leave();
  if (!takes_over) return nullptr;
  outbox_->End(/*left=*/true);
  {
    MutexLock state_lock(&state_mutex_);
    for (Entry& entry : namespaces_) entry.resolved = false;
  }
  Adopt(*made, named);
  return *std::move(made);
}

}  // namespace kvarve::client
