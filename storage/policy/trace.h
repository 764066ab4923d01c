// Traces of block references: what each request asked for, when, and how long its answer was.
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_TRACE_H_
#define KVARVE_STORAGE_POLICY_TRACE_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr uint64_t kMaxTraceRequestBlocks = 1 << 20;

struct TraceRequest {
  double seconds = 0;                      // since the first
  uint32_t prompt_tokens = 0;              // 0: not known
  uint32_t response_tokens = 0xffffffffu;  // that: not known
  std::vector<uint32_t> blocks;            // root first
};

// A forest of blocks numbered from 0, and the chains that were asked for in it. A block is an id
// below its parent: equal ids under different parents are different blocks.
struct Trace {
  static constexpr uint32_t kRoot = 0xffffffffu;
  std::vector<uint32_t> parents;  // of each block; kRoot: it begins a prompt
  std::vector<uint32_t> ids;      // of each block: the trace's own id, numbered from 0
  uint32_t unique_ids = 0;
  uint64_t references = 0;
  std::vector<TraceRequest> requests;
};

class TraceBuilder {
 public:
  // Request by request, in order. Times may not go back: one that does counts as the time before.
  void Add(double seconds, uint32_t prompt_tokens, uint32_t response_tokens,
           std::span<const uint64_t> ids);
  Trace Finish();

 private:
  Trace trace_;
  double first_seconds_ = 0;
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> blocks_;
  absl::flat_hash_map<uint64_t, uint32_t> ids_;
};

// A line a request: `seconds,prompt tokens,response tokens,ids`, or only ids. Ids from root to
// leaf, separated by spaces; "a-b" is a, a + 1, ..., b. Skipped are empty lines, lines that begin
// with
// '#', and a first line that begins with "timestamp,". InvalidArgument names the line.
absl::StatusOr<Trace> ParseTrace(std::string_view text);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_TRACE_H_
