// Who calls, asked of every call of the gRPC server at one place. Today the bearer token of a file
// answers for one tenant; certificates and signed tokens answer here too.
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_SERVICES_RPC_CALLER_H_
#define KVARVE_SERVICES_RPC_CALLER_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"
#include "services/rpc/token.h"

namespace kvarve {

class CallerCheck {
 public:
  CallerCheck(BearerToken token, std::string tenant)
      : token_(std::move(token)), tenant_(std::move(tenant)) {}

  // Unauthenticated, and counted: no token, or another one.
  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context);

  uint64_t missing() const { return missing_.load(std::memory_order_relaxed); }
  uint64_t wrong() const { return wrong_.load(std::memory_order_relaxed); }

 private:
  const BearerToken token_;
  const std::string tenant_;
  std::atomic<uint64_t> missing_{0}, wrong_{0};
};

// InvalidArgument: the call has no deadline. DeadlineExceeded: it came after it.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_CALLER_H_
