// What a client shows to daemons of other hosts, and whom it trusts: the token, its certificate and
// key, the authorities. The files are looked at again once a second; new ones that are bad, or of
// which one has not come yet, leave the old ones in use.
//
// THREADS: any.  BLOCKS: on files, once a second.
#ifndef KVARVE_CLIENT_RPC_CLIENT_FILES_H_
#define KVARVE_CLIENT_RPC_CLIENT_FILES_H_

#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/endpoint.h"
#include "client/identity/watched_file.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

// Whether "host:port" stays on this host whatever the network is: 127/8, [::1], localhost.
bool IsLoopback(std::string_view address);

class ClientFiles {
 public:
  static constexpr int64_t kLookNanos = 1'000'000'000;

  struct Shown {
    uint64_t version = 0;  // another whenever something changed
    std::string token;     // empty: none
    // Null: plaintext. The same object as long as its files are the same.
    std::shared_ptr<grpc::ChannelCredentials> tls;
  };

  // NotFound, PermissionDenied, InvalidArgument: a file, by its name. InvalidArgument: plaintext to
  // another host that was not asked for by name; TLS without authorities; half a key pair.
  static absl::StatusOr<std::unique_ptr<ClientFiles>> Open(const ClientOptions& options,
                                                           const Endpoint& endpoint);

  std::shared_ptr<const Shown> Current();
  // Looks at the files now. True: they are others than `version`'s.
  bool Changed(uint64_t version);
  // Why the files that lie there now are not in use; empty: they are.
  std::string fault() const;

 private:
  ClientFiles(const ClientOptions& options, bool tls);
  absl::StatusOr<Shown> Read(const Shown& before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool uses_tls_;
  mutable Mutex mutex_;
  WatchedFile token_ ABSL_GUARDED_BY(mutex_);
  WatchedFile authorities_ ABSL_GUARDED_BY(mutex_);
  WatchedFile certificate_ ABSL_GUARDED_BY(mutex_);
  WatchedFile key_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Shown> shown_ ABSL_GUARDED_BY(mutex_);
  std::string fault_ ABSL_GUARDED_BY(mutex_);
  int64_t looked_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_CLIENT_FILES_H_
