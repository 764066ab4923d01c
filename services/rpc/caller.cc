#include "services/rpc/caller.h"

#include <grpcpp/server_context.h>

#include <chrono>
#include <string>

#include "services/auth/grpc_credentials.h"
#include "storage/base/status_macros.h"

namespace kvarve {

absl::StatusOr<Caller> Callers::Of(const grpc::CallbackServerContext& context) const {
  const std::string peer = context.peer();
  std::string pem;
  absl::StatusOr<Caller> caller = auth_->Authenticate(PresentedBy(context, peer, &pem));
  if (caller.ok() && connections_ != nullptr) {
    KV_RETURN_IF_ERROR(connections_->Proven(peer, caller->tenant));
  }
  return caller;
}

absl::Status Callers::May(const grpc::CallbackServerContext& context, const Caller& caller,
                          std::optional<Verb> verb) const {
  return verb.has_value() ? auth_->May(caller, *verb, context.peer())
                          : auth_->MayGreet(caller, context.peer());
}

absl::StatusOr<Caller> Callers::AdminOf(const grpc::CallbackServerContext& context) const {
  KV_ASSIGN_OR_RETURN(Caller caller, Of(context));
  KV_RETURN_IF_ERROR(auth_->MayAdminister(caller, context.peer()));
  return caller;
}

std::function<bool()> Callers::Again(const grpc::CallbackServerContext& context) const {
  std::string pem;
  const std::string peer = context.peer();
  const Presented now = PresentedBy(context, peer, &pem);
  std::optional<std::string> authorization;
  if (now.authorization.has_value()) authorization = std::string(*now.authorization);
  return [auth = auth_, peer, pem, authorization] {
    Presented presented;
    presented.peer = peer;
    presented.certificate_pem = pem;
    if (authorization.has_value()) presented.authorization = *authorization;
    return auth->Authenticate(presented).ok();
  };
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
