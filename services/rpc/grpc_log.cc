#include "services/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>
#include <string>

#include "services/rpc/line_limit.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"

namespace kvarve {
namespace {

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_ERROR:
      return LogLevel::kWarning;  // of a caller, not of this process
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    default:
      return LogLevel::kDebug;
  }
}

void Write(gpr_log_func_args* args) {
  static constinit LineLimit limit(kGrpcLinesPerSecond);
  static constinit std::atomic<uint64_t> left_out{0};
  if (!limit.MayWrite(SystemClock::Get()->NowNanos())) {
    left_out.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  KvLog(LevelOf(args->severity), "gRPC says",
        {{"what", args->message}, {"left_out", std::to_string(left_out.exchange(0))}});
}

}  // namespace

void UseGrpcLog() { gpr_set_log_function(&Write); }

}  // namespace kvarve
