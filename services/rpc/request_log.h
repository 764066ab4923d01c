// What calls leave behind: counters, and of those that took long a line in the log, with the
// caller's tenant, the request's id and the trace that it belongs to (W3C trace context, as
// instrumented clients send it in the metadata "traceparent").
//
// THREADS: any.  BLOCKS: on the log, for kLinesPerSecond at most; the other slow calls are counted.
#ifndef KVARVE_SERVICES_RPC_REQUEST_LOG_H_
#define KVARVE_SERVICES_RPC_REQUEST_LOG_H_

#include <grpcpp/server_context.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "services/rpc/line_limit.h"
#include "services/rpc/rpc_server.h"
#include "storage/base/mutex.h"

namespace kvarve {

class RequestLog {
 public:
  static constexpr uint64_t kLinesPerSecond = 20;

  // A call under way. Whoever learns tenant and id fills them in.
  struct Request {
    RpcMethod method = RpcMethod::kHello;
    int64_t begin_nanos = 0;
    std::string trace, tenant;
    uint64_t id = 0;  // 0: none
  };

  explicit RequestLog(int64_t slow_nanos) : slow_nanos_(slow_nanos) {}  // 0: none is slow

  Request Begin(RpcMethod method, const grpc::CallbackServerContext& context) const;
  // `bytes`: of blocks' payload. The time of a run is its peer's too, and a watch is never slow.
  void End(const Request& request, const absl::Status& status, uint64_t bytes = 0);
  void AddTo(RpcStats* stats) const;

 private:
  void CountOf(const Request& request, bool ok, uint64_t bytes);

  const int64_t slow_nanos_;
  std::array<std::array<std::atomic<uint64_t>, kRpcCodes>, kRpcMethods> calls_{};
  mutable Mutex mutex_;
  std::map<std::string, TenantCalls> of_tenant_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> read_bytes_{0}, write_bytes_{0}, slow_{0};
  LineLimit lines_{kLinesPerSecond};
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_REQUEST_LOG_H_
