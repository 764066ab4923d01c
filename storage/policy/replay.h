// Replays a trace against an eviction policy, as the daemon would use it. The rule: of a request
// only the leading blocks found are hits, and they are touched; what is missing is put, root first,
// with a victim for each when full, until the policy refuses one; a block whose parent is not here
// is never kept. THREADS: any, one owner of the policy.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_REPLAY_H_
#define KVARVE_STORAGE_POLICY_REPLAY_H_

#include <cstdint>

#include "storage/policy/eviction_policy.h"
#include "storage/policy/nvme_model.h"
#include "storage/policy/trace.h"

namespace kvarve {

struct ReplayOptions {
  uint64_t host_blocks = 0;      // REQUIRES: > 0
  bool response_lengths = true;  // tell the policy; a daemon does not know them
  NvmeModelOptions nvme;         // blocks = 0: no such tier
};

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t blocks = 0;      // referenced
  uint64_t hit_blocks = 0;  // of these, contiguous leading hits, in any tier
  uint64_t host_hit_blocks = 0;
  uint64_t evicted = 0;   // from the host tier
  uint64_t refused = 0;   // by the policy, the blocks below them counted too
  uint64_t rejected = 0;  // found no victim, the blocks below them counted too
  uint64_t late_blocks = 0, late_hit_blocks = 0;  // of the trace's second half
  uint64_t hit_tokens = 0;  // of hits, where the trace says how long prompts are
  NvmeModelStats nvme;

  double hit_ratio() const { return Ratio(hit_blocks, blocks); }
  double early_hit_ratio() const {
    return Ratio(hit_blocks - late_hit_blocks, blocks - late_blocks);
  }
  double late_hit_ratio() const { return Ratio(late_hit_blocks, late_blocks); }
  static double Ratio(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// REQUIRES: `policy` is new, or has only loaded what it learned before.
ReplayResult Replay(const Trace& trace, const ReplayOptions& options, EvictionPolicy* policy);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_REPLAY_H_
