// kvarve.v1.KvCache over a BlockStore: who may call, what a request must look like, and the
// answers. Every unary handler runs in a thread of gRPC and takes at most about a millisecond; runs
// and watches are reactors of their own (read_run.h, write_run.h, watch.h). THREADS: any.
#ifndef KVARVE_SERVICES_RPC_KV_CACHE_SERVICE_H_
#define KVARVE_SERVICES_RPC_KV_CACHE_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "services/rpc/block_store.h"
#include "services/rpc/caller.h"
#include "services/rpc/request_log.h"
#include "services/rpc/rpc_server.h"
#include "services/rpc/streams.h"
#include "services/rpc/watch.h"

namespace kvarve {

// The data frames of runs stay raw buffers; all else is messages.
using KvCacheServiceBase = v1::KvCache::WithCallbackMethod_Hello<
    v1::KvCache::WithCallbackMethod_Lookup<v1::KvCache::WithRawCallbackMethod_ReadRun<
        v1::KvCache::WithRawCallbackMethod_WriteRun<v1::KvCache::WithCallbackMethod_Prefetch<
            v1::KvCache::WithCallbackMethod_Touch<v1::KvCache::WithCallbackMethod_Pin<
                v1::KvCache::WithCallbackMethod_Unpin<v1::KvCache::WithCallbackMethod_Report<
                    v1::KvCache::WithCallbackMethod_Invalidate<
                        v1::KvCache::WithCallbackMethod_Stats<
                            v1::KvCache::WithCallbackMethod_WatchEvents<
                                v1::KvCache::Service>>>>>>>>>>>>;

class KvCacheService final : public KvCacheServiceBase {
 public:
  // `store` outlives the service.
  KvCacheService(const RpcServerOptions& options, const Callers& callers, BlockStore* store);

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* Hello(Context* context, const v1::HelloRequest* request, v1::HelloReply* reply) override;
  Unary* Lookup(Context* context, const v1::LookupRequest* request,
                v1::LookupReply* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadRun(Context* context,
                                                      const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* WriteRun(Context* context,
                                                      grpc::ByteBuffer* response) override;
  Unary* Prefetch(Context* context, const v1::PrefetchRequest* request,
                  v1::PrefetchReply* reply) override;
  Unary* Touch(Context* context, const v1::TouchRequest* request, v1::TouchReply* reply) override;
  Unary* Pin(Context* context, const v1::PinRequest* request, v1::PinReply* reply) override;
  Unary* Unpin(Context* context, const v1::UnpinRequest* request, v1::UnpinReply* reply) override;
  Unary* Report(Context* context, const v1::ReportRequest* request,
                v1::ReportReply* reply) override;
  Unary* Invalidate(Context* context, const v1::InvalidateRequest* request,
                    v1::InvalidateReply* reply) override;
  Unary* Stats(Context* context, const v1::StatsRequest* request, v1::StatsReply* reply) override;
  grpc::ServerWriteReactor<v1::EventBatch>* WatchEvents(
      Context* context, const v1::WatchEventsRequest* request) override;

  RpcStats Counted() const;
  // A draining service takes no new blocks.
  void SetDraining(bool draining) { draining_.store(draining, std::memory_order_relaxed); }
  bool draining() const { return draining_.load(std::memory_order_relaxed); }

 private:
  // Whether the call may run at all: a caller that may do this, and a deadline.
  // Without a verb any of them is enough.
  // Notes the caller's tenant, of a caller who may not do this, too.
  absl::StatusOr<Caller> Admit(const Context& context, std::optional<Verb> verb,
                               RequestLog::Request* noted);
  // Admits, runs, counts and finishes one call.
  template <typename Request, typename Run>
  Unary* Serve(RpcMethod method, std::optional<Verb> verb, Context* context, const Request& request,
               Run run);

  absl::Status RunHello(const Caller& caller, const v1::HelloRequest& request,
                        v1::HelloReply* reply) const;
  void OpenOne(const Caller& caller, const v1::NamespaceClaim& claim,
               v1::OpenedNamespace* opened) const;
  absl::Status RunInvalidate(const Caller& caller, const v1::InvalidateRequest& request,
                             v1::InvalidateReply* reply) const;
  void FillStats(const Caller& caller, v1::StatsReply* reply) const;
  absl::StatusOr<uint64_t> FirstEvent(const v1::WatchEventsRequest& request) const;

  const std::string daemon_version_;
  const uint64_t max_message_bytes_;
  const uint32_t max_pin_ms_;
  const Callers callers_;
  BlockStore* const store_;
  RequestLog log_;  // streams that end count themselves
  Streams streams_;
  Watchers watchers_;
  std::atomic<bool> draining_{false};
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_KV_CACHE_SERVICE_H_
