// Replays a trace of block references against an eviction policy. The rule: of a request only the
// leading blocks found are hits; what is missing is put, root first, with a victim for each when
// full; and the chain is touched from its deepest block to its root, so that its root is the most
// recent. THREADS: any, one owner of the policy.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_REPLAY_H_
#define KVARVE_STORAGE_POLICY_REPLAY_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/policy/eviction_policy.h"

namespace kvarve {

// A forest of blocks numbered from 0, and the chains that were asked for in it.
struct Trace {
  static constexpr uint32_t kRoot = 0xffffffffu;
  std::vector<uint32_t> parents;                // of each block; kRoot: it begins a prompt
  std::vector<std::vector<uint32_t>> requests;  // blocks, root first
};

// A line a request: ids from root to leaf, separated by spaces; "a-b" is a, a + 1, ..., b; lines
// that begin with '#' are skipped. Ids name blocks only below their parent: equal ids under
// different parents are different blocks. InvalidArgument names the line.
absl::StatusOr<Trace> ParseTrace(std::string_view text);

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t blocks = 0;      // referenced
  uint64_t hit_blocks = 0;  // of these, contiguous leading hits
  uint64_t evicted = 0;
  uint64_t rejected = 0;  // found no victim
  double hit_ratio() const { return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / blocks; }
};

// REQUIRES: `policy` is new, capacity_blocks > 0.
ReplayResult Replay(const Trace& trace, uint64_t capacity_blocks, EvictionPolicy* policy);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_REPLAY_H_
