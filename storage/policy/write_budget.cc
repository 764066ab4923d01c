#include "storage/policy/write_budget.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"

namespace kvarve {
namespace {

// The share of a full bucket below which each step but the first begins.
constexpr std::array<double, kAdmissionSteps> kBegins = {1, 0.5, 0.25, 0.1, 0};
// A step is left again only this far above where it began.
constexpr double kHysteresis = 0.05;

double RateOf(const WriteBudgetOptions& options) {
  if (options.drive_writes_per_day <= 0) return 0;
  return options.drive_writes_per_day * static_cast<double>(options.capacity_bytes) / 86400 /
         std::max(options.write_amplification, 1.0);
}

}  // namespace

std::string_view AdmissionStepName(AdmissionStep step) {
  constexpr std::array<std::string_view, kAdmissionSteps> kNames = {"all", "shallow", "seen_before",
                                                                    "sampled", "none"};
  return kNames[static_cast<int>(step)];
}

WriteBudget::WriteBudget(const WriteBudgetOptions& options)
    : rate_(RateOf(options)),
      burst_(rate_ * static_cast<double>(options.burst_seconds)),
      level_(burst_),
      least_(options.least),
      step_(options.least) {}

void WriteBudget::Refill(double now_seconds) {
  if (last_ >= 0 && now_seconds > last_)
    level_ = std::min(burst_, level_ + rate_ * (now_seconds - last_));
  last_ = std::max(last_, now_seconds);
  UpdateStep();
}

void WriteBudget::UpdateStep() {
  if (unlimited()) return;
  const double share = level_ / burst_;
  auto step = static_cast<int>(step_);
  while (step + 1 < kAdmissionSteps && share <= kBegins[step + 1]) ++step;
  while (step > static_cast<int>(least_) && share > kBegins[step] + kHysteresis) --step;
  step_ = static_cast<AdmissionStep>(step);
}

uint32_t WriteBudget::Admit(const RunFacts& run, double now_seconds) {
  if (run.blocks == 0 || (run.first_depth > 0 && !run.parent_on_device)) return 0;
  if (unlimited() && step_ == AdmissionStep::kAll) return run.blocks;
  Refill(now_seconds);
  uint32_t blocks = run.blocks;
  if (!run.pinned) {
    switch (step_) {
      case AdmissionStep::kAll:
        break;
      case AdmissionStep::kShallow:
        blocks =
            run.first_depth < kShallowDepth ? std::min(blocks, kShallowDepth - run.first_depth) : 0;
        blocks = std::max(blocks, run.seen_blocks);
        break;
      case AdmissionStep::kSampled:
        if (run.hash % kSampledRuns != 0) return 0;
        [[fallthrough]];
      case AdmissionStep::kSeenBefore:
        blocks = run.seen_blocks;
        break;
      case AdmissionStep::kNone:
        return 0;
    }
  }
  if (unlimited()) return blocks;
  // Leading blocks only, as far as the bucket goes.
  const double affordable = std::floor(std::max(level_, 0.0) /
                                       static_cast<double>(std::max<uint64_t>(run.block_bytes, 1)));
  if (affordable < blocks) blocks = static_cast<uint32_t>(affordable);
  level_ -= static_cast<double>(blocks) * static_cast<double>(run.block_bytes);
  UpdateStep();
  return blocks;
}

void WriteBudget::Charge(uint64_t bytes, double now_seconds) {
  if (unlimited()) return;
  Refill(now_seconds);
  // Not without end: a device that was formatted or moved is not shut out for days.
  level_ = std::max(level_ - static_cast<double>(bytes), -burst_);
  UpdateStep();
}

void WriteBudget::GiveBack(uint64_t bytes) {
  level_ = std::min(burst_, level_ + static_cast<double>(bytes));
  UpdateStep();
}

std::string WriteBudget::Save(int64_t wall_seconds) const {
  return absl::StrFormat("1 %.0f %d", level_, wall_seconds);
}

bool WriteBudget::Restore(std::string_view text, int64_t wall_seconds) {
  const std::string copy(text);
  if (copy.rfind("1 ", 0) != 0) return false;
  char* end = nullptr;
  const double level = std::strtod(copy.c_str() + 2, &end);
  if (*end != ' ' || !std::isfinite(level)) return false;
  const char* const time = end + 1;
  const long long saved = std::strtoll(time, &end, 10);
  if (end == time || *end != '\0') return false;
  const double away = saved <= wall_seconds ? static_cast<double>(wall_seconds - saved) : 0;
  level_ = std::clamp(level, -burst_, burst_);
  level_ = std::min(burst_, level_ + rate_ * away);
  UpdateStep();
  return true;
}

}  // namespace kvarve
