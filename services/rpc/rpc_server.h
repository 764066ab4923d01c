// The gRPC server of one node: KvCache, health and reflection. Who may call is the Authenticator's
// word (health and reflection need none: they show the schema and whether the node serves).
// THREADS: any.  BLOCKS: Start, on files and sockets; Stop, up to its grace.
#ifndef KVARVE_SERVICES_RPC_RPC_SERVER_H_
#define KVARVE_SERVICES_RPC_RPC_SERVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"
#include "services/auth/transport_options.h"
#include "services/config/settings.h"
#include "services/rpc/block_store.h"
#include "services/rpc/connections.h"
#include "services/rpc/streams.h"

namespace kvarve {

inline constexpr uint32_t kRpcVersionMin = 1;
inline constexpr uint32_t kRpcVersionMax = 1;

struct RpcServerOptions {
  ListenAddress listen;        // port 0: any free one
  TransportOptions transport;  // its address is `listen`
  AuthOptions auth;            // `tls` is what `transport` says
  uint64_t max_message_bytes = 1 << 20;
  uint32_t max_pin_ms = 60'000;
  StreamLimits streams;
  ConnectionLimits connections;
  int64_t slow_call_nanos = 100'000'000;  // 0: none is slow
  std::string daemon_version;
};

enum class RpcMethod : uint8_t {
  kHello = 0,
  kLookup = 1,
  kInvalidate = 2,
  kStats = 3,
  kReadRun = 4,
  kWriteRun = 5,
  kPrefetch = 6,
  kTouch = 7,
  kPin = 8,
  kUnpin = 9,
  kReport = 10,
  kWatchEvents = 11,
};
inline constexpr size_t kRpcMethods = 12;
inline constexpr size_t kRpcCodes = 17;  // absl::StatusCode, by number
std::string_view RpcMethodName(RpcMethod method);

struct TenantCalls {
  uint64_t ok = 0, failed = 0;
  uint64_t read_bytes = 0, write_bytes = 0;  // as RpcStats'
};

struct RpcStats {
  std::array<std::array<uint64_t, kRpcCodes>, kRpcMethods> calls{};
  AuthStats auth;
  uint64_t read_bytes = 0, write_bytes = 0;  // of blocks' payload, in runs that have ended
  std::map<std::string, TenantCalls> calls_of_tenant;  // of callers who were let in
  uint64_t slow_calls = 0;
  uint64_t tls_handshake_failures = 0;  // on the port of administration, too
  StreamStats streams;
  ConnectionStats connections;
};

class RpcServer {
 public:
  // FailedPrecondition: what ServerCredentialsOf and Authenticator::Create refuse. Unavailable: the
  // address is taken. `store` outlives the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                          BlockStore* store);
  ~RpcServer();

  uint16_t port() const;
  // Who may call, for the server of administration too; lives as long as this.
  Authenticator* auth() const;
  RpcStats Stats() const;
  // A draining server takes no new blocks, and health checks hear that it does not serve. Returns
  // the streams that are open.
  uint64_t SetDraining(bool draining);
  bool draining() const;
  // Calls that run get `grace_nanos` to end, then they are cancelled. Again: nothing.
  void Stop(int64_t grace_nanos);

 private:
  struct Rep;
  explicit RpcServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_RPC_SERVER_H_
