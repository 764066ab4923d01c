// libkvarve's way to daemons of other hosts: gRPC, blocks as raw frames.
//
// A read copies each block once, out of gRPC's buffers to where the caller wants it, and compares
// its checksum on the way. A put sends blocks from where they lie; when the daemon sheds it, it is
// sent again after the time that the daemon names, within the put's time-out. Nothing else is tried
// again: a miss costs an engine less than waiting does.
//
// THREADS: UseGrpc, once, before the first Client.
#ifndef KVARVE_CLIENT_RPC_GRPC_PLANE_H_
#define KVARVE_CLIENT_RPC_GRPC_PLANE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/remote.h"

namespace kvarve::client {

// What ClientFiles::Open refuses.
absl::StatusOr<std::unique_ptr<RemotePlane>> MakeGrpcPlane(const ClientOptions& options,
                                                           const Endpoint& endpoint);
// "kvarve://" endpoints of this process go over gRPC.
inline void UseGrpc() { UseRemotePlane(&MakeGrpcPlane); }

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_GRPC_PLANE_H_
