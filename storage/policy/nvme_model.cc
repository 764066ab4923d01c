#include "storage/policy/nvme_model.h"

#include <algorithm>
#include <cstddef>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// Blocks that are written again take at most this share of the device's bytes a day, counted in
// blocks: 1 of 4 written.
constexpr uint64_t kRewriteShare = 4;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;  // spreads the numbers of blocks

}  // namespace

NvmeModel::NvmeModel(const Trace& trace, const NvmeModelOptions& options)
    : trace_(trace),
      options_(options),
      budget_(options.budget),
      states_(options.blocks > 0 ? trace.parents.size() : 0) {}

void NvmeModel::Seen(uint32_t block) {
  if (states_.empty()) return;
  State& state = states_[block];
  state.seen = static_cast<uint8_t>(std::min(state.seen + 1, 255));
}

void NvmeModel::Hit(uint32_t block) {
  if (states_.empty()) return;
  if (states_[block].here) states_[block].hit = true;
}

void NvmeModel::Offer(uint32_t leaf, double seconds) {
  if (states_.empty()) return;
  path_.clear();
  for (uint32_t block = leaf; block != Trace::kRoot; block = trace_.parents[block]) {
    path_.push_back(block);
  }
  std::reverse(path_.begin(), path_.end());
  const auto here = [this](uint32_t block) { return states_[block].here; };
  const auto begin = std::ranges::find_if_not(path_, here);
  run_.assign(begin, std::find_if(begin, path_.end(), here));
  if (run_.empty()) return;
  RunFacts facts;
  facts.first_depth = static_cast<uint32_t>(begin - path_.begin());
  facts.blocks = static_cast<uint32_t>(run_.size());
  facts.block_bytes = options_.block_bytes;
  const uint32_t parent = trace_.parents[run_.front()];
  facts.parent_on_device = parent != Trace::kRoot;
  const auto seen_before = [this](uint32_t block) {
    return block != Trace::kRoot && states_[block].seen >= 2;
  };
  while (facts.seen_blocks < run_.size()) {
    const uint32_t block = run_[facts.seen_blocks];
    if (!seen_before(block) && !seen_before(trace_.parents[block])) break;
    ++facts.seen_blocks;
  }
  facts.hash = (uint64_t{run_.front()} + 1) * kGolden >> 32;
  const uint32_t admitted = budget_.Admit(facts, seconds);
  for (uint32_t i = 0; i < admitted; ++i) {
    // The block before it may have made place for it.
    const uint32_t before = trace_.parents[run_[i]];
    if (before != Trace::kRoot && !states_[before].here) break;
    Write(run_[i], seconds);
  }
  stats_.refused_blocks += run_.size() - admitted;
}

void NvmeModel::Write(uint32_t block, double seconds) {
  while (ring_.size() >= options_.blocks) MakeRoom(seconds);
  ring_.push_back(block);
  states_[block].here = true;
  states_[block].hit = false;
  ++stats_.written_blocks;
}

void NvmeModel::MakeRoom(double seconds) {
  const uint32_t oldest = ring_.front();
  ring_.pop_front();
  State& state = states_[oldest];
  const uint32_t parent = trace_.parents[oldest];
  const bool parent_here = parent == Trace::kRoot || states_[parent].here;
  const bool affordable = stats_.rewritten_blocks * kRewriteShare < stats_.written_blocks;
  if (state.hit && parent_here && affordable) {
    state.hit = false;
    ring_.push_back(oldest);
    ++stats_.written_blocks;
    ++stats_.rewritten_blocks;
    budget_.Charge(options_.block_bytes, seconds);
    return;
  }
  state.here = false;
}

}  // namespace kvarve
