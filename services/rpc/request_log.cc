#include "services/rpc/request_log.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rpc/grpc_status.h"
#include "client/trace/trace.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"

namespace kvarve {
namespace {

constexpr char kTraceparent[] = "traceparent";

int64_t Now() { return SystemClock::Get()->NowNanos(); }

}  // namespace

RequestLog::Request RequestLog::Begin(RpcMethod method,
                                      const grpc::CallbackServerContext& context) const {
  Request request;
  request.method = method;
  if (slow_nanos_ == 0) return request;
  request.begin_nanos = Now();
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find(kTraceparent); found != metadata.end()) {
    request.trace = TraceOf({found->second.data(), found->second.size()});
  }
  return request;
}

void RequestLog::End(const Request& request, const absl::Status& status, uint64_t bytes) {
  const auto code = static_cast<size_t>(ToGrpcCode(status.code()));
  calls_[static_cast<size_t>(request.method)][code].fetch_add(1, std::memory_order_relaxed);
  if (request.method == RpcMethod::kReadRun) read_bytes_ += bytes;
  if (request.method == RpcMethod::kWriteRun) write_bytes_ += bytes;
  CountOf(request, status.ok(), bytes);
  if (slow_nanos_ == 0 || request.method == RpcMethod::kWatchEvents) return;
  const int64_t now = Now(), nanos = now - request.begin_nanos;
  if (nanos < slow_nanos_) return;
  slow_.fetch_add(1, std::memory_order_relaxed);
  if (!lines_.MayWrite(now)) return;
  KvLog(LogLevel::kWarning, "slow call",
        {{"method", std::string(RpcMethodName(request.method))},
         {"micros", absl::StrCat(nanos / 1000)},
         {"code", absl::StrCat(code)},
         {"tenant", request.tenant},
         {"request_id", request.id != 0 ? absl::StrFormat("%016x", request.id) : std::string()},
         {"trace", request.trace},
         {"block_bytes", absl::StrCat(bytes)}});
}

// As many tenants as are configured: nobody else is let in.
void RequestLog::CountOf(const Request& request, bool ok, uint64_t bytes) {
  if (request.tenant.empty()) return;
  MutexLock lock(&mutex_);
  TenantCalls& of = of_tenant_[request.tenant];
  ++(ok ? of.ok : of.failed);
  if (request.method == RpcMethod::kReadRun) of.read_bytes += bytes;
  if (request.method == RpcMethod::kWriteRun) of.write_bytes += bytes;
}

void RequestLog::AddTo(RpcStats* stats) const {
  for (size_t method = 0; method < kRpcMethods; ++method) {
    for (size_t code = 0; code < kRpcCodes; ++code) {
      stats->calls[method][code] = calls_[method][code].load(std::memory_order_relaxed);
    }
  }
  stats->read_bytes = read_bytes_;
  stats->write_bytes = write_bytes_;
  stats->slow_calls = slow_;
  MutexLock lock(&mutex_);
  stats->calls_of_tenant = of_tenant_;
}

}  // namespace kvarve
