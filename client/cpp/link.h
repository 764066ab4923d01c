// A client's link to its daemon, across connections: who has the turn on the connection, which
// namespaces are open on it, whether asking makes sense now. A background thread (the watcher)
// connects, connects again, reopens the namespaces, reads unasked messages while nobody calls,
// probes a daemon that stopped answering, and asks again for staging where there was none left,
// when nothing is being read. Calls never connect and never wait for the watcher.
//
// THREADS: any. turn_mutex_ (held over a request and its answer) before state_mutex_ (held
// briefly). BLOCKS: Run, for the turn and in what its body calls; WaitReady; Stop.
#ifndef KVARVE_CLIENT_CPP_LINK_H_
#define KVARVE_CLIENT_CPP_LINK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/breaker.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/endpoint.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/namespace_info.h"
#include "client/cpp/outbox.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

class Link {
 public:
  static constexpr size_t kMaxNamespaces = 1024;

  Link(ClientOptions options, Endpoint endpoint);
  ~Link();
  // ResourceExhausted: no descriptor or thread is left to the process.
  absl::Status Start();
  // Says BYE when no view is left, and ends the connection.
  void Stop();

  // The connection, while one caller has it to itself.
  class Turn {
   public:
    Connection& connection() { return connection_; }
    absl::StatusOr<OpenNamespaceInfo> Namespace(ClientNamespace ns);
    // Connection::Call, counted by the breaker.
    absl::StatusOr<std::span<const uint8_t>> Call(std::string_view message, local::Type expected,
                                                  int64_t timeout_nanos,
                                                  std::shared_ptr<StagingRegion> region = nullptr)
        ABSL_NO_THREAD_SAFETY_ANALYSIS;  // REQUIRES: the turn, which having a Turn means
    // The daemon sent what cannot be: ends the connection.
    absl::Status Garbage(std::string_view what);

   private:
    friend class Link;
    Turn(Link& link, Connection& connection) : link_(link), connection_(connection) {}
    Link& link_;
    Connection& connection_;
  };
  // Runs `body` in a turn. FailedPrecondition: in a forked child. Unavailable: not connected, or
  // the breaker is open.
  absl::Status Run(absl::FunctionRef<absl::Status(Turn&)> body);
  absl::Status CheckProcess() const;

  absl::StatusOr<ClientNamespace> OpenNamespace(const NamespaceDescriptor& descriptor);
  // As last opened, whether or not it is now. InvalidArgument: no such namespace.
  absl::StatusOr<OpenNamespaceInfo> KnownNamespace(ClientNamespace ns) const;
  absl::Status WaitReady(int64_t timeout_nanos);
  ClientState State() const;
  void CountMismatch();

  // Null when not connected. Its pools, staging and session may be used; calls need a turn.
  std::shared_ptr<Connection> Current() const;
  const ClientOptions& options() const { return options_; }
  Outbox& outbox() { return *outbox_; }
  // Sends what is owed if nobody has the turn; else whoever has it does. Never waits.
  void FlushOwed();

 private:
  struct Entry {
    NamespaceDescriptor descriptor;
    NamespaceDigest digest;
    bool resolved = false;  // opened or refused on this connection
    absl::Status refusal;
    OpenNamespaceInfo info;
  };

  absl::Status Admit() const;
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mutex_);
  void MirrorBreaker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mutex_);
  void OpenOne(Turn& turn, ClientNamespace ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mutex_);
  void OpenMissing(Turn& turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mutex_);
  absl::Status Resolve(ClientNamespace ns, const local::NamespaceOpenedBody& opened);
  void Refuse(ClientNamespace ns, const absl::Status& why);

  // The watcher (link_watch.cc).
  void Watch();
  absl::StatusOr<std::shared_ptr<Connection>> Dial(std::vector<ClientNamespace>* named) const;
  std::shared_ptr<Connection> TryConnect();
  void Adopt(const std::shared_ptr<Connection>& connection,
             const std::vector<ClientNamespace>& named) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mutex_);
  bool LacksStaging(const Connection& connection) const;
  bool IsIdle(const Connection& connection) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mutex_);
  std::shared_ptr<Connection> TryStaging(Connection& connection);
  void OpenScarceAgain();
  local::Hello MakeHello(std::vector<ClientNamespace>* named) const;
  bool Tend(Connection& connection);
  bool Doze(int64_t nanos, const Connection& connection);
  void Pause(int64_t nanos);
  void Wake();

  const ClientOptions options_;
  const Endpoint endpoint_;
  const ForkStamp stamp_;
  const std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>();

  Mutex turn_mutex_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(turn_mutex_);
  Breaker breaker_ ABSL_GUARDED_BY(turn_mutex_);

  // Mirrors for who has no turn.
  std::atomic<bool> connected_{false};
  std::atomic<bool> breaker_open_{false};
  std::atomic<uint64_t> timeouts_{0}, mismatches_{0};
  std::atomic<uint64_t> turns_{0};  // of callers

  mutable Mutex state_mutex_;
  CondVar state_changed_;
  std::shared_ptr<Connection> current_ ABSL_GUARDED_BY(state_mutex_);
  std::deque<Entry> namespaces_ ABSL_GUARDED_BY(state_mutex_);
  std::string last_error_ ABSL_GUARDED_BY(state_mutex_);
  std::string daemon_version_ ABSL_GUARDED_BY(state_mutex_);
  uint64_t connects_ ABSL_GUARDED_BY(state_mutex_) = 0;

  std::atomic<bool> stopping_{false};
  UniqueFd wake_;  // eventfds: the connection needs the watcher now;
  UniqueFd stop_;  // the link ends
  std::thread watcher_;
  uint64_t turns_seen_ = 0;  // the watcher's
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_LINK_H_
