// The one mapping between absl::Status and grpc::Status; the codes are the same ones by number.
// THREADS: any.
#ifndef KVARVE_CLIENT_RPC_GRPC_STATUS_H_
#define KVARVE_CLIENT_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace kvarve {

inline constexpr size_t kMaxStatusTextBytes = 1024;

grpc::StatusCode ToGrpcCode(absl::StatusCode code);
// Text beyond kMaxStatusTextBytes is cut: it travels in a trailer.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_RPC_GRPC_STATUS_H_
