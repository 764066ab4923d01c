// What the plane counts, and the snapshot that the metrics read.
// THREADS: any; single relaxed atomics, so a snapshot is exact only when nothing runs. BLOCKS: Of
// and CopyTo, for each other.
#ifndef KVARVE_SERVICES_LOCAL_COUNTERS_H_
#define KVARVE_SERVICES_LOCAL_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"

namespace kvarve {

enum class SessionEnd : uint8_t {
  kBye = 0,
  kHangup = 1,       // the socket closed without BYE
  kProcessExit = 2,  // the process ended; something else kept the socket open
  kProtocol = 3,     // too many malformed messages
  kSlowReader = 4,   // did not read its answers
  kStop = 5,         // the daemon stops
};
inline constexpr size_t kSessionEnds = 6;
std::string_view SessionEndName(SessionEnd end);

enum class Refusal : uint8_t {
  kNotAllowed = 0,
  kSessions = 1,  // max_sessions, or too many ended ones in quarantine
  kSessionsOfUid = 2,
  kEndedOfProcess = 3,
  kDescriptors = 4,  // EMFILE, ENFILE, or no thread
  kHelloTimeout = 5,
  kBadHello = 6,
  kVersion = 7,
  kSessionsOfTenant = 8,
};
inline constexpr size_t kRefusals = 9;
std::string_view RefusalName(Refusal refusal);

inline constexpr size_t kRequestTypes = 32;  // by local::Type; 0 and unknown ones at 0
// Name of a message type ("lookup"); "unknown" for what is none.
std::string_view RequestTypeName(size_t type);

inline constexpr std::array<int64_t, 15> kLatencyBoundsMicros = {
    5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1000000};

struct RequestStats {
  uint64_t ok = 0, failed = 0;
  uint64_t total_micros = 0;
  // buckets[i]: took at most kLatencyBoundsMicros[i], and more than the bound before; the last:
  // longer.
  std::array<uint64_t, kLatencyBoundsMicros.size() + 1> buckets{};
};

struct TenantRequests {  // on the socket
  uint64_t ok = 0, failed = 0;
  uint64_t put_bytes = 0, read_bytes = 0, granted_bytes = 0;
};

struct LocalStats {
  uint64_t sessions = 0;  // live
  std::vector<std::pair<std::string, uint64_t>> sessions_of_tenant;
  std::map<std::string, TenantRequests> requests_of_tenant;
  uint64_t ended_sessions = 0;  // without BYE, waiting for their processes
  uint64_t processes = 0;       // known now
  uint64_t sessions_opened = 0;
  std::array<uint64_t, kSessionEnds> session_ends{};
  std::array<uint64_t, kRefusals> refusals{};
  std::array<RequestStats, kRequestTypes> requests{};
  uint64_t malformed = 0;  // messages
  uint64_t put_bytes = 0, read_bytes = 0, granted_bytes = 0;
  uint64_t staging_bytes = 0;  // of live and ended sessions
  uint64_t leased_bytes = 0, quarantined_bytes = 0;
  uint64_t pool_adds = 0, pool_drops = 0, chunks_forgotten = 0;
  uint64_t slow_requests = 0;
};

class Counters {
 public:
  using Cell = std::atomic<uint64_t>;
  static void Add(Cell& cell, uint64_t n = 1) { cell.fetch_add(n, std::memory_order_relaxed); }

  // Of one tenant; tenants are as many as are configured, and never forgotten.
  struct Tenant {
    Cell ok{0}, failed{0}, put_bytes{0}, read_bytes{0}, granted_bytes{0};
  };
  Tenant& Of(const std::string& tenant);

  void Request(size_t type, bool ok, int64_t nanos);
  void Ended(SessionEnd end) { Add(ends_[static_cast<size_t>(end)]); }
  void Refused(Refusal refusal) { Add(refusals_[static_cast<size_t>(refusal)]); }
  // Fills in what is counted here; the rest is the caller's.
  void CopyTo(LocalStats* stats) const;

  Cell sessions_opened{0}, malformed{0}, put_bytes{0}, read_bytes{0}, granted_bytes{0};
  Cell pool_adds{0}, pool_drops{0}, chunks_forgotten{0}, slow_requests{0};

 private:
  struct RequestCells {
    Cell ok{0}, failed{0}, total_micros{0};
    std::array<Cell, kLatencyBoundsMicros.size() + 1> buckets{};
  };
  std::array<Cell, kSessionEnds> ends_{};
  std::array<Cell, kRefusals> refusals_{};
  std::array<RequestCells, kRequestTypes> requests_{};
  mutable Mutex mutex_;
  std::map<std::string, Tenant> of_tenant_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_COUNTERS_H_
