// gRPC's own log becomes part of ours: one event a line in the format that is set, so many a
// second. Whoever connects and speaks no TLS makes gRPC say so, without having shown who he is.
// THREADS: any.  BLOCKS: on the log, for kGrpcLinesPerSecond at most.
#ifndef KVARVE_SERVICES_RPC_GRPC_LOG_H_
#define KVARVE_SERVICES_RPC_GRPC_LOG_H_

#include <cstdint>

namespace kvarve {

inline constexpr uint64_t kGrpcLinesPerSecond = 5;

void UseGrpcLog();  // of the whole process; again: nothing

// TLS handshakes that failed, on all of this process's ports, since UseGrpcLog: this version of
// gRPC says so in its log only. A peer that goes away in the middle is not among them.
uint64_t TlsHandshakeFailures();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_GRPC_LOG_H_
