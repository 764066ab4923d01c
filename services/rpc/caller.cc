#include "services/rpc/caller.h"

#include <grpcpp/server_context.h>

#include <chrono>
#include <iterator>
#include <string_view>

namespace kvarve {
namespace {

constexpr char kAuthorization[] = "authorization";

}  // namespace

absl::StatusOr<Caller> CallerCheck::Identify(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto [first, last] = metadata.equal_range(kAuthorization);
  if (first == last) {
    missing_.fetch_add(1, std::memory_order_relaxed);
    return absl::UnauthenticatedError("no token; send the header authorization: Bearer TOKEN");
  }
  if (std::next(first) != last ||
      !token_.Matches(std::string_view(first->second.data(), first->second.size()))) {
    wrong_.fetch_add(1, std::memory_order_relaxed);
    return absl::UnauthenticatedError("wrong token");
  }
  Caller caller;
  caller.tenant = tenant_;
  caller.verbs = VerbSet::All();
  return caller;
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
