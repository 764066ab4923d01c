// The NVMe tier as a trace sees it: a ring in which the oldest block makes place, and comes to the
// young end again if it was hit since it was written and its parent is still there. What a
// request put or found in the host tier is offered as the run that begins at its first ancestor
// that is not on the device; a WriteBudget says how much of it is written. THREADS: externally
// synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_NVME_MODEL_H_
#define KVARVE_STORAGE_POLICY_NVME_MODEL_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "storage/policy/trace.h"
#include "storage/policy/write_budget.h"

namespace kvarve {

struct NvmeModelOptions {
  uint64_t blocks = 0;  // capacity
  uint64_t block_bytes = 1;
  WriteBudgetOptions budget;  // capacity_bytes: of the device
};

struct NvmeModelStats {
  uint64_t hit_blocks = 0;      // those not in the host tier
  uint64_t written_blocks = 0;  // those written again too
  uint64_t rewritten_blocks = 0;
  uint64_t refused_blocks = 0;
};

class NvmeModel {
 public:
  NvmeModel(const Trace& trace, const NvmeModelOptions& options);

  bool Has(uint32_t block) const { return !states_.empty() && states_[block].here; }
  // It was asked for.
  void Seen(uint32_t block);
  // It was asked for and found, so that the ring keeps it once more.
  void Hit(uint32_t block);
  // It is in the host tier, with all its ancestors, and was asked for.
  void Offer(uint32_t leaf, double seconds);
  const NvmeModelStats& stats() const { return stats_; }

 private:
  struct State {
    bool here = false, hit = false;
    uint8_t seen = 0;
  };
  void Write(uint32_t block, double seconds);
  void MakeRoom(double seconds);

  const Trace& trace_;
  const NvmeModelOptions options_;
  WriteBudget budget_;
  std::vector<State> states_;  // of each block; empty: no such tier
  std::deque<uint32_t> ring_;  // the oldest in front
  std::vector<uint32_t> path_, run_;
  NvmeModelStats stats_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_NVME_MODEL_H_
