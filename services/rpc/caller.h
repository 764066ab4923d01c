// Who calls and by when, asked of every call of the gRPC server at one place.
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_SERVICES_RPC_CALLER_H_
#define KVARVE_SERVICES_RPC_CALLER_H_

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"

namespace kvarve {

// Authenticator::Authenticate of what the call shows.
absl::StatusOr<Caller> CallerOf(Authenticator* auth, const grpc::CallbackServerContext& context);

// InvalidArgument: the call has no deadline. DeadlineExceeded: it came after it.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_CALLER_H_
