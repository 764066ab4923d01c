// kvarve.v1.KvCache over a BlockStore: who may call, what a request must look like, and the
// answers. Every handler runs in a thread of gRPC and takes at most about a millisecond. THREADS:
// any.
#ifndef KVARVE_SERVICES_RPC_KV_CACHE_SERVICE_H_
#define KVARVE_SERVICES_RPC_KV_CACHE_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include <array>
#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "services/rpc/block_store.h"
#include "services/rpc/rpc_server.h"
#include "services/rpc/token.h"

namespace kvarve {

class KvCacheService final : public v1::KvCache::CallbackService {
 public:
  // `store` outlives the service.
  KvCacheService(const RpcServerOptions& options, BearerToken token, BlockStore* store);

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const v1::HelloRequest* request, v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override;
  grpc::ServerUnaryReactor* Invalidate(grpc::CallbackServerContext* context,
                                       const v1::InvalidateRequest* request,
                                       v1::InvalidateReply* reply) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request, v1::StatsReply* reply) override;

  RpcStats Counted() const;

 private:
  // Whether the call may run at all: a token and a deadline.
  absl::Status Admit(const grpc::CallbackServerContext& context);
  // Admits, runs, counts and finishes one call.
  template <typename Run>
  grpc::ServerUnaryReactor* Serve(RpcMethod method, grpc::CallbackServerContext* context, Run run);

  absl::Status RunHello(const v1::HelloRequest& request, v1::HelloReply* reply) const;
  absl::Status RunLookup(const v1::LookupRequest& request, v1::LookupReply* reply) const;
  absl::Status RunInvalidate(const v1::InvalidateRequest& request,
                             v1::InvalidateReply* reply) const;
  void FillStats(v1::StatsReply* reply) const;

  const std::string daemon_version_;
  const uint64_t max_message_bytes_;
  const BearerToken token_;
  BlockStore* const store_;

  std::array<std::array<std::atomic<uint64_t>, kRpcCodes>, kRpcMethods> calls_{};
  std::atomic<uint64_t> auth_missing_{0}, auth_wrong_{0};
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_KV_CACHE_SERVICE_H_
