// How much may be written to a device, and which runs of blocks get it: a bucket of bytes that
// fills at the rate the drive is rated for, and a ladder of rules that get stricter as it empties.
// Pure, as all policies: no clock, no I/O.
//
// Chain-consistent: of a run only leading blocks are admitted, and only where the block before them
// is on the device already (or is none), since a block is of no use there without all its
// ancestors.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_WRITE_BUDGET_H_
#define KVARVE_STORAGE_POLICY_WRITE_BUDGET_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace kvarve {

// From generous to nothing. The bucket's level decides, with some hysteresis. A block that was seen
// before is one that was asked for twice, or whose parent was.
enum class AdmissionStep : uint8_t {
  kAll,
  kShallow,     // depth below kShallowDepth, or seen before
  kSeenBefore,  // leading blocks that were
  kSampled,     // those of one run in kSampledRuns
  kNone,
};
inline constexpr int kAdmissionSteps = 5;
inline constexpr uint32_t kShallowDepth = 64;
inline constexpr uint64_t kSampledRuns = 4;
std::string_view AdmissionStepName(AdmissionStep step);

struct WriteBudgetOptions {
  uint64_t capacity_bytes = 0;          // of the device
  double drive_writes_per_day = 1;      // what it is rated for; 0: no limit
  double write_amplification = 1.1;     // bytes that reach the device for one admitted, measured
  int64_t burst_seconds = 6 * 60 * 60;  // a bucket that is full holds so much
  AdmissionStep least = AdmissionStep::kAll;  // never more generous than this, whatever is left
};

// A run of consecutive blocks of one chain.
struct RunFacts {
  uint32_t first_depth = 0;
  uint32_t blocks = 0;
  uint64_t block_bytes = 0;
  bool parent_on_device = false;  // of the first block; a root has no need of one
  uint32_t seen_blocks = 0;       // leading ones that were seen before
  uint64_t hash = 0;              // of the first block's key
  bool pinned = false;            // kept by order: admitted while the bucket has anything
};

class WriteBudget {
 public:
  // Begins full.
  explicit WriteBudget(const WriteBudgetOptions& options);

  // How many leading blocks of the run may be written now; their bytes are taken from the bucket.
  // `now_seconds` never goes back.
  uint32_t Admit(const RunFacts& run, double now_seconds);
  // Bytes written without asking: survivors, footers. May put the level below 0.
  void Charge(uint64_t bytes, double now_seconds);
  // Of what Admit took so much was not written after all.
  void GiveBack(uint64_t bytes);

  AdmissionStep step() const { return step_; }
  double level_bytes() const { return level_; }
  double bytes_per_second() const { return rate_; }
  double burst_bytes() const { return burst_; }
  bool unlimited() const { return rate_ == 0; }

  // The level for a later start, and back. It is filled up by what the time between them allows; a
  // text that is no level, or a clock that went back, adds nothing.
  std::string Save(int64_t wall_seconds) const;
  bool Restore(std::string_view text, int64_t wall_seconds);

 private:
  void Refill(double now_seconds);
  void UpdateStep();

  const double rate_;
  const double burst_;
  double level_;
  double last_ = -1;  // none yet
  const AdmissionStep least_;
  AdmissionStep step_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_WRITE_BUDGET_H_
