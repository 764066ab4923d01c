#include "client/rpc/grpc_status.h"

#include <string>

namespace kvarve {
namespace {

constexpr int kLastCode = 16;  // UNAUTHENTICATED, in both

static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) ==
              grpc::StatusCode::INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kNotFound) == grpc::StatusCode::NOT_FOUND);
static_assert(static_cast<int>(absl::StatusCode::kResourceExhausted) ==
              grpc::StatusCode::RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(absl::StatusCode::kFailedPrecondition) ==
              grpc::StatusCode::FAILED_PRECONDITION);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == grpc::StatusCode::UNAVAILABLE);
static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
              grpc::StatusCode::UNAUTHENTICATED);
static_assert(grpc::StatusCode::UNAUTHENTICATED == kLastCode);

}  // namespace

grpc::StatusCode ToGrpcCode(absl::StatusCode code) {
  const int number = static_cast<int>(code);
  return number >= 0 && number <= kLastCode ? static_cast<grpc::StatusCode>(number)
                                            : grpc::StatusCode::UNKNOWN;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {ToGrpcCode(status.code()), std::string(status.message().substr(0, kMaxStatusTextBytes))};
}

absl::Status FromGrpc(const grpc::Status& status) {
  const int number = status.error_code();
  const auto code = number >= 0 && number <= kLastCode ? static_cast<absl::StatusCode>(number)
                                                       : absl::StatusCode::kUnknown;
  return absl::Status(code, status.error_message());
}

}  // namespace kvarve
