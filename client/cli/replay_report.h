// What a sweep of replays found, as rows and as one static page with plots. THREADS: one.
#ifndef KVARVE_CLIENT_CLI_REPLAY_REPORT_H_
#define KVARVE_CLIENT_CLI_REPLAY_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvarve::cli {

struct ReplayRow {
  double share = 0;  // of the unique blocks
  uint64_t host_blocks = 0, host_bytes = 0;
  double hit_ratio = 0, host_hit_ratio = 0;
  double first_half = 0, second_half = 0;
  double lru = 0, s3fifo = 0, belady = 0;  // host tier only
  double loaded_bytes = 0;                 // bytes moved to the engine
  double nvme_written_bytes = 0;
  double drive_writes_per_day = 0;
  double saved_seconds = 0;  // of prefill
};

struct ReplayReport {
  std::string trace, policy;
  uint64_t requests = 0, references = 0, unique_blocks = 0;
  double span_seconds = 0;
  uint64_t block_bytes = 0;
  double nvme_share = 0;
  std::vector<ReplayRow> rows;
};

// One page, no scripts, nothing loaded from elsewhere.
std::string ReplayPage(const ReplayReport& report);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_REPLAY_REPORT_H_
