// The log of what clients asked a daemon for, and the trace that it becomes. Blocks have 64-bit ids
// that say nothing of tokens or keys; of one log, equal ids are equal chains up to there.
//
// Format, little-endian: "kvaccess", u32 version, u32 0; then a record an access: u64 microseconds
// since the log began, u64 request, u64 id of the block before the first (0: it is a root, or
// unknown), u32 depth of the first, u32 count, count u64 ids.
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_ACCESS_LOG_H_
#define KVARVE_STORAGE_POLICY_ACCESS_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/policy/trace.h"

namespace kvarve {

// Consecutive blocks of one chain, read or put by a request.
struct Access {
  uint64_t micros = 0;
  uint64_t request = 0;  // 0: the client named none
  uint64_t parent = 0;
  uint32_t first_depth = 0;
  std::vector<uint64_t> ids;
};

inline constexpr std::string_view kAccessLogMagic = "kvaccess";
std::string AccessLogHeader();
void AppendAccess(const Access& access, std::string* log);

struct AccessLogTrace {
  Trace trace;
  uint64_t accesses = 0;
  uint64_t unnamed = 0;     // of these, left out: of no named request
  uint64_t incomplete = 0;  // requests left out: the begin of their chain was never seen
};

// A request is all accesses of its number, at the time of the first; its blocks are those from the
// root to the deepest. A record that is cut off ends the log, as a crash leaves it.
// InvalidArgument: not such a log, of another version, or a record that none can be.
absl::StatusOr<AccessLogTrace> TraceOfAccessLog(std::string_view log);

// As ParseTrace reads it.
std::string TraceCsv(const Trace& trace);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_ACCESS_LOG_H_
