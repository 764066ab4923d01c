#include "services/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>
#include <string>
#include <string_view>

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

constinit std::atomic<uint64_t> g_handshake_failures{0};

bool IsFailedHandshake(const gpr_log_func_args& args) {
  return std::string_view(args.file).ends_with("ssl_transport_security.cc") &&
         std::string_view(args.message).starts_with("Handshake failed");
}

void Write(gpr_log_func_args* args) {
  if (IsFailedHandshake(*args)) g_handshake_failures.fetch_add(1, std::memory_order_relaxed);
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

uint64_t TlsHandshakeFailures() { return g_handshake_failures.load(std::memory_order_relaxed); }

}  // namespace kvarve
