// The daemon of another host as this client knows it: the channel (which connects again by itself,
// with growing and jittered pauses), the namespaces opened there, and whether asking makes sense
// now. A daemon that was started again has forgotten the namespaces: it says NOT_FOUND, and they
// are opened anew.
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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/breaker.h"
#include "client/cpp/client.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/namespace_info.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

// Token and deadline (SystemClock's nanoseconds).
void PrepareContext(grpc::ClientContext* context, const std::string& token, int64_t deadline_nanos);

class RemoteNode {
 public:
  static constexpr size_t kMaxNamespaces = 1024;

  RemoteNode(const ClientOptions& options, std::string address, std::string token);

  absl::StatusOr<ClientNamespace> AddNamespace(const NamespaceDescriptor& descriptor);
  absl::StatusOr<OpenNamespaceInfo> KnownNamespace(ClientNamespace ns) const;
  absl::Status WaitReady(int64_t timeout_nanos);
  ClientState State() const;
  void CountMismatch();

  // Runs `body` with the namespace as it is open now, once more if the daemon had forgotten it.
  // FailedPrecondition: in a forked child. Unavailable: the daemon did not answer several times.
  absl::Status Ask(ClientNamespace ns, int64_t deadline_nanos,
                   absl::FunctionRef<absl::Status(const OpenNamespaceInfo&)> body);

  v1::KvCache::Stub* stub() const { return stub_.get(); }
  grpc::GenericStub* generic() { return &generic_; }
  const std::string& token() const { return token_; }
  bool in_child() const { return stamp_.InChild(); }
  uint64_t incarnation() const;
  uint32_t max_pin_ms() const;

 private:
  struct Entry {
    NamespaceDescriptor descriptor;
    NamespaceDigest digest;
    bool resolved = false;  // opened or refused by this life of the daemon
    absl::Status refusal;
    OpenNamespaceInfo info;
  };

  absl::Status Admit();
  // Opens what is not; then the namespace's info or refusal.
  absl::StatusOr<OpenNamespaceInfo> Resolved(ClientNamespace ns, int64_t deadline_nanos);
  absl::Status Hello(int64_t deadline_nanos);
  void TakeHello(const v1::HelloReply& reply, const std::vector<ClientNamespace>& named)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget();
  void Note(const absl::Status& status);

  const ClientOptions options_;
  const std::string address_;
  const std::string token_;
  const ForkStamp stamp_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::KvCache::Stub> stub_;
  grpc::GenericStub generic_;

  mutable Mutex mutex_;
  std::deque<Entry> namespaces_ ABSL_GUARDED_BY(mutex_);
  Breaker breaker_ ABSL_GUARDED_BY(mutex_);
  ClientState state_ ABSL_GUARDED_BY(mutex_);
  uint32_t max_pin_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t hellos_ ABSL_GUARDED_BY(mutex_) = 0;
  bool was_lost_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_REMOTE_NODE_H_
