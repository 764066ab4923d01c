// The TCP connections of the gRPC server: how many there may be, and how long one may take to show
// whose it is. gRPC bounds neither, so that the sockets are accepted here and handed to it; a
// duplicate of each stays, to see its end and to end it.
//
// A connection is proven when a call on it was authenticated, and is the tenant's of that call,
// whose quota may refuse it. One that is not ends after the greeting time, whatever it sent so far.
// When there are as many as may be, a new one pushes out the oldest unproven one of the address
// that has most of those; when all are proven, the new one is closed at once.
//
// THREADS: Listen, Start and Stop one; the others any.  BLOCKS: Stop, for its thread.
#ifndef KVARVE_SERVICES_RPC_CONNECTIONS_H_
#define KVARVE_SERVICES_RPC_CONNECTIONS_H_

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/config/settings.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/cache/quota.h"

namespace kvarve {

struct ConnectionLimits {
  uint32_t connections = 4096;
  int64_t greeting_nanos = 30'000'000'000;
  TenantQuotas quotas;        // of connections
  TenantQuota default_quota;  // of tenants that are not named there
};

// What gRPC itself keeps to on each connection of a server: streams, metadata, memory, age,
// silence, and no compressed requests, which could grow far beyond the largest that are read.
void LimitEach(const ConnectionLimits& limits, int streams, grpc::ServerBuilder* builder);

struct ConnectionStats {
  uint64_t open = 0, accepted = 0;
  uint64_t refused = 0;     // there were too many
  uint64_t pushed_out = 0;  // unproven, for a new one
  uint64_t silent = 0;      // unproven for the greeting time
  uint64_t over_quota = 0;  // calls on connections that their tenant may not have
  std::vector<std::pair<std::string, uint64_t>> of_tenants;  // proven
};

class Connections {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // Unavailable: the address cannot be listened on. InvalidArgument: floors that do not fit.
  static absl::StatusOr<std::unique_ptr<Connections>> Listen(const ListenAddress& address,
                                                             const ConnectionLimits& limits);
  ~Connections() { Stop(); }

  uint16_t port() const { return port_; }
  // Hands connections to `acceptor` from now on.
  void Start(std::unique_ptr<Acceptor> acceptor);
  // A call of `peer`, as gRPC names it, was authenticated; an empty tenant (of who sees no blocks)
  // has no quota. ResourceExhausted, with the numbers: the tenant may have no more; the connection
  // stays unproven.
  absl::Status Proven(std::string_view peer, const std::string& tenant);
  ConnectionStats Stats() const;
  // Accepts no more; what is open stays so. Again: nothing.
  void Stop();

 private:
  struct Connection {
    UniqueFd watch;
    std::string peer, address;
    std::string tenant;  // empty: none that is counted
    int64_t since = 0;
    bool proven = false;
    std::list<uint64_t>::iterator place;  // in unproven_
  };
  Connections(UniqueFd listener, uint16_t port, const ConnectionLimits& limits);

  void Run();
  bool AcceptOne();
  // Whether there is room, made by pushing one out if need be.
  bool MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushOutOne();
  uint64_t OldestOfTheGreediest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Out of the list of those that are not proven.
  void Unlist(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSilent();

  const ConnectionLimits limits_;
  const uint16_t port_;
  const UniqueFd listener_, epoll_, wake_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by number
  std::unordered_map<std::string, uint64_t> of_peer_ ABSL_GUARDED_BY(mutex_);
  std::list<uint64_t> unproven_ ABSL_GUARDED_BY(mutex_);                         // the oldest first
  std::unordered_map<std::string, size_t> unproven_of_ ABSL_GUARDED_BY(mutex_);  // by address
  ConnectionUse use_ ABSL_GUARDED_BY(mutex_);                                    // proven
  ConnectionStats stats_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_CONNECTIONS_H_
