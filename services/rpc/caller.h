// Who calls and by when, asked of every call of the gRPC server at one place.
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_SERVICES_RPC_CALLER_H_
#define KVARVE_SERVICES_RPC_CALLER_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"
#include "services/rpc/connections.h"

namespace kvarve {

class Callers {
 public:
  // Both outlive it; `connections` may be null.
  Callers(Authenticator* auth, Connections* connections) : auth_(auth), connections_(connections) {}

  // Authenticator::Authenticate of what the call shows; whoever passes has proven its connection,
  // or is refused by Connections::Proven.
  absl::StatusOr<Caller> Of(const grpc::CallbackServerContext& context) const;
  // Authenticator::May of whom Of let in; without a verb, MayGreet.
  absl::Status May(const grpc::CallbackServerContext& context, const Caller& caller,
                   std::optional<Verb> verb) const;
  // The same, of who wants to administer. PermissionDenied: it is no admin.
  absl::StatusOr<Caller> AdminOf(const grpc::CallbackServerContext& context) const;
  // Asks the same again, later and as often as wanted: false once what the call showed has expired
  // or is revoked.
  std::function<bool()> Again(const grpc::CallbackServerContext& context) const;

 private:
  Authenticator* const auth_;
  Connections* const connections_;
};

// InvalidArgument: the call has no deadline. DeadlineExceeded: it came after it.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_CALLER_H_
