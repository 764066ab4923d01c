// The servers of administration: KvAdmin over gRPC on a Unix socket that its owner and root alone
// can connect to (mode 0600), or on a port in mutual TLS, for certificates of the role admin.
//
// THREADS: Start and the destructor, one.  BLOCKS: the destructor, for calls under way, up to a
// second.
#ifndef KVARVE_SERVICES_RPC_ADMIN_SERVER_H_
#define KVARVE_SERVICES_RPC_ADMIN_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"
#include "services/auth/transport_options.h"
#include "services/config/settings.h"
#include "services/rpc/admin_service.h"

namespace kvarve {

class AdminServer {
 public:
  // InvalidArgument: `path` is not absolute or too long. FailedPrecondition: its folder is missing,
  // or something that is no socket lies there. Unavailable: it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const std::string& path,
                                                            AdminActions actions);
  // FailedPrecondition: `transport` has no TLS, or what ServerCredentialsOf refuses. Unavailable:
  // it cannot be listened on. `auth` outlives the server.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const ListenAddress& listen,
                                                            TransportOptions transport,
                                                            Authenticator* auth,
                                                            AdminActions actions);
  ~AdminServer();

  uint16_t port() const;  // 0: a socket

 private:
  struct Rep;
  explicit AdminServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_ADMIN_SERVER_H_
