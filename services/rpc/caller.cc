#include "services/rpc/caller.h"

#include <grpcpp/server_context.h>

#include <chrono>
#include <string>

#include "services/auth/grpc_credentials.h"

namespace kvarve {

absl::StatusOr<Caller> CallerOf(Authenticator* auth, const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  std::string pem;
  return auth->Authenticate(PresentedBy(context, peer, &pem));
}

absl::Status CheckDeadline(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return absl::InvalidArgumentError("no deadline; every call needs one");
  }
  if (deadline <= std::chrono::system_clock::now())
    return absl::DeadlineExceededError("came too late");
  return absl::OkStatus();
}

}  // namespace kvarve
