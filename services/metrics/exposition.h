// kvarve's metrics: one table of names, each made from a snapshot of what the parts counted. The
// only user of prometheus-cpp. docs/metrics.md is made from the same table. THREADS: any.
#ifndef KVARVE_SERVICES_METRICS_EXPOSITION_H_
#define KVARVE_SERVICES_METRICS_EXPOSITION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/local/counters.h"
#include "services/rpc/rpc_server.h"
#include "storage/cache/cache.h"

namespace kvarve {

// Of the access log.
struct RecordCounts {
  uint64_t accesses = 0, bytes = 0, dropped = 0;
};

struct MetricsSnapshot {
  std::string version;
  double start_seconds = 0;  // of the daemon, since 1970
  CacheStats cache;
  std::vector<std::pair<std::string, uint64_t>> page_bytes;  // of a pool's newest chunk, by tenant
  LocalStats local;
  std::optional<RpcStats> rpc;         // none: the gRPC server is off
  std::optional<RecordCounts> record;  // none: nothing is recorded
};

// Prometheus' text format, version 0.0.4.
std::string ExposeMetrics(const MetricsSnapshot& snapshot);
std::string MetricsMarkdown();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_METRICS_EXPOSITION_H_
