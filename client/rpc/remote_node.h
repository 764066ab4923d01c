// The daemon of another host as this client knows it: the channel (which connects again by itself,
// with growing and jittered pauses), the namespaces opened there, and whether asking makes sense
// now. A daemon that was started again has forgotten the namespaces: it says NOT_FOUND, and they
// are opened anew. When the files of its credentials change, a new channel takes over as soon as it
// is connected; calls under way end on the old one.
//
// gRPC connects only while somebody waits in it, and a call on a channel that is not connected does
// not wait: a thread does, as long as there is no connection. A daemon ends connections on which
// nobody shows who it is (rpc.greeting): that thread says hello on one that has been quiet.
//
// THREADS: any.  BLOCKS: Ask and Open, up to the deadline.
#ifndef KVARVE_CLIENT_RPC_REMOTE_NODE_H_
#define KVARVE_CLIENT_RPC_REMOTE_NODE_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/breaker.h"
#include "client/cpp/client.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/namespace_info.h"
#include "client/cpp/remote.h"
#include "client/rpc/client_files.h"
#include "client/trace/trace.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

// Token, trace (TraceScope's, else a new one) and deadline (SystemClock's nanoseconds).
void PrepareContext(grpc::ClientContext* context, const std::string& token, int64_t deadline_nanos);

// A channel, and what is shown on it. THREADS: any.
struct NodeLink {
  NodeLink(const Endpoint& endpoint, const std::string& server_name,
           std::shared_ptr<const ClientFiles::Shown> with);

  const std::shared_ptr<const ClientFiles::Shown> shown;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::KvCache::Stub> stub;
  mutable grpc::GenericStub generic;
};
using NodeLinkPtr = std::shared_ptr<const NodeLink>;

class RemoteNode {
 public:
  static constexpr size_t kMaxNamespaces = 1024;

  RemoteNode(const ClientOptions& options, Endpoint endpoint, std::unique_ptr<ClientFiles> files);
  ~RemoteNode();

  void TakeTracesFrom(RemotePlane::CurrentTrace current) { current_trace_ = current; }

  absl::StatusOr<ClientNamespace> AddNamespace(const NamespaceDescriptor& descriptor);
  absl::StatusOr<OpenNamespaceInfo> KnownNamespace(ClientNamespace ns) const;
  absl::Status WaitReady(int64_t timeout_nanos);
  ClientState State() const;
  void CountMismatch();

  // Runs `body` with the namespace as it is open now; once more if the daemon had forgotten it, or
  // refused credentials that have changed since: `body` may have begun before that.
  // FailedPrecondition: in a forked child. Unavailable: the daemon did not answer several times.
  absl::Status Ask(ClientNamespace ns, int64_t deadline_nanos,
                   absl::FunctionRef<absl::Status(const OpenNamespaceInfo&)> body);

  // The same without a namespace.
  absl::Status Call(absl::FunctionRef<absl::Status()> body);
  // Whether the credentials are others than those that `refused` shows; the next link() has them.
  bool Renewed(const NodeLinkPtr& refused);

  // An error with what it means where gRPC says little.
  absl::Status Explained(const absl::Status& status) const;
  // For one call.
  NodeLinkPtr link();
  // A connection of its own, for what is asked once more.
  NodeLinkPtr other_link();
  bool in_child() const { return stamp_.InChild(); }
  uint64_t incarnation() const;
  uint32_t max_pin_ms() const;
  // Whole blocks that a frame of a put may hold.
  size_t max_blocks_per_write_frame() const;
  // Until the next Hello says otherwise: an older daemon may have come in the other's place.
  void WriteSingleBlocks();

 private:
  void KeepConnected();
  static bool Connect(const NodeLink& link);
  bool IsQuiet() const;
  struct Entry {
    NamespaceDescriptor descriptor;
    NamespaceDigest digest;
    bool resolved = false;  // opened or refused by this life of the daemon
    absl::Status refusal;
    OpenNamespaceInfo info;
  };

  absl::Status Admit();
  std::string WhyLost(const absl::Status& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Opens what is not; then the namespace's info or refusal.
  absl::StatusOr<OpenNamespaceInfo> Resolved(ClientNamespace ns, int64_t deadline_nanos);
  absl::Status Hello(const NodeLinkPtr& on, int64_t deadline_nanos);
  void TakeHello(const v1::HelloReply& reply, const std::vector<ClientNamespace>& named)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget();
  void Note(const absl::Status& status);

  const ClientOptions options_;
  const Endpoint endpoint_;
  const ForkStamp stamp_;
  const std::unique_ptr<ClientFiles> files_;
  RemotePlane::CurrentTrace current_trace_ = &TraceScope::Current;

  mutable Mutex mutex_;
  NodeLinkPtr link_ ABSL_GUARDED_BY(mutex_);
  NodeLinkPtr other_ ABSL_GUARDED_BY(mutex_);  // null: not needed yet
  NodeLinkPtr next_ ABSL_GUARDED_BY(mutex_);   // connects; null: there is no newer one
  std::deque<Entry> namespaces_ ABSL_GUARDED_BY(mutex_);
  Breaker breaker_ ABSL_GUARDED_BY(mutex_);
  ClientState state_ ABSL_GUARDED_BY(mutex_);
  uint32_t max_pin_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t max_blocks_per_write_frame_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t hellos_ ABSL_GUARDED_BY(mutex_) = 0;
  bool was_lost_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t noted_ ABSL_GUARDED_BY(mutex_) = 0;  // when a call ended the last time
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar stopped_;
  std::thread keeper_;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_REMOTE_NODE_H_
