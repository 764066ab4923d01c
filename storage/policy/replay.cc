#include "storage/policy/replay.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// The host tier: what is resident, and the tree facts that the index keeps in the daemon. Ids of
// the policy are the blocks' numbers.
class Host {
 public:
  Host(const Trace& trace, uint64_t capacity, EvictionPolicy* policy)
      : trace_(trace),
        capacity_(capacity),
        policy_(policy),
        resident_(trace.parents.size()),
        children_(trace.parents.size()) {}

  bool Has(uint32_t block) const { return resident_[block]; }
  bool full() const { return size_ == capacity_; }

  BlockTraits Traits(uint32_t block, uint32_t depth) const {
    BlockTraits traits;
    traits.depth = depth;
    traits.key = uint64_t{block} + 1;
    const uint32_t parent = trace_.parents[block];
    if (parent != Trace::kRoot && resident_[parent]) traits.parent = parent;
    return traits;
  }

  void Insert(uint32_t block, const BlockTraits& traits) {
    KV_CHECK(size_ < capacity_ && !resident_[block]);
    const uint32_t parent = trace_.parents[block];
    if (parent != Trace::kRoot) {
      KV_CHECK(resident_[parent]);
      if (children_[parent]++ == 0) policy_->OnEvictable(parent, false);
    }
    policy_->OnInsert(block, traits, true);
    resident_[block] = true;
    ++size_;
  }

  void Evict(uint32_t block) {
    KV_CHECK(resident_[block] && children_[block] == 0);
    policy_->OnRemove(block);
    resident_[block] = false;
    --size_;
    const uint32_t parent = trace_.parents[block];
    if (parent != Trace::kRoot && --children_[parent] == 0) policy_->OnEvictable(parent, true);
  }

  // A victim that is not `kept` (kRoot: any).
  uint32_t Victim(uint32_t kept) {
    const bool guarded = kept != Trace::kRoot && children_[kept] == 0;
    if (guarded) policy_->OnEvictable(kept, false);
    const uint32_t victim = policy_->Victim(0);
    if (guarded) policy_->OnEvictable(kept, true);
    return victim;
  }

 private:
  const Trace& trace_;
  const uint64_t capacity_;
  EvictionPolicy* const policy_;
  uint64_t size_ = 0;
  std::vector<bool> resident_;
  std::vector<uint32_t> children_;  // resident ones
};

class Replayer {
 public:
  Replayer(const Trace& trace, const ReplayOptions& options, EvictionPolicy* policy)
      : trace_(trace),
        options_(options),
        policy_(policy),
        host_(trace, options.host_blocks, policy),
        nvme_(trace, options.nvme) {}

  ReplayResult Run() {
    for (size_t n = 0; n < trace_.requests.size(); ++n) {
      const TraceRequest& request = trace_.requests[n];
      const uint64_t hits = One(request);
      ++result_.requests;
      result_.blocks += request.blocks.size();
      result_.hit_blocks += hits;
      if (!request.blocks.empty())
        result_.hit_tokens += request.prompt_tokens * hits / request.blocks.size();
      if (n >= trace_.requests.size() / 2) {
        result_.late_blocks += request.blocks.size();
        result_.late_hit_blocks += hits;
      }
    }
    result_.nvme = nvme_.stats();
    result_.nvme.hit_blocks = result_.hit_blocks - result_.host_hit_blocks;
    return result_;
  }

 private:
  uint64_t One(const TraceRequest& request) {
    const std::vector<uint32_t>& blocks = request.blocks;
    size_t in_host = 0;
    while (in_host < blocks.size() && host_.Has(blocks[in_host])) ++in_host;
    size_t hits = in_host;  // ancestors of what is in the host tier are there too
    while (hits < blocks.size() && nvme_.Has(blocks[hits])) ++hits;
    result_.host_hit_blocks += in_host;
    for (const uint32_t block : blocks) nvme_.Seen(block);
    for (size_t i = 0; i < hits; ++i) nvme_.Hit(blocks[i]);

    RequestFacts facts;
    if (options_.response_lengths) facts.response_tokens = request.response_tokens;
    policy_->OnRequest(facts);
    policy_->OnTouchRun(std::span(blocks).first(in_host));
    size_t stored = in_host;
    while (stored < blocks.size() && Put(blocks, stored)) ++stored;
    if (stored > 0) nvme_.Offer(blocks[stored - 1], request.seconds);
    for (size_t i = 0; i < stored; ++i) policy_->OnCopied(blocks[i], nvme_.Has(blocks[i]));
    for (size_t i = stored; i < blocks.size(); ++i)
      policy_->OnRefuse(host_.Traits(blocks[i], static_cast<uint32_t>(i)));
    return hits;
  }

  bool Put(const std::vector<uint32_t>& blocks, size_t at) {
    const BlockTraits traits = host_.Traits(blocks[at], static_cast<uint32_t>(at));
    if (host_.full()) {
      const uint32_t victim = host_.Victim(at == 0 ? Trace::kRoot : blocks[at - 1]);
      if (victim == kNoVictim) {
        result_.rejected += blocks.size() - at;
        return false;
      }
      // Where there is a device everything gets there through the host tier.
      if (options_.nvme.blocks == 0 && !policy_->Admits(traits, victim)) {
        result_.refused += blocks.size() - at;
        return false;
      }
      host_.Evict(victim);
      ++result_.evicted;
    }
    host_.Insert(blocks[at], traits);
    return true;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  EvictionPolicy* const policy_;
  Host host_;
  NvmeModel nvme_;
  ReplayResult result_;
};

}  // namespace

ReplayResult Replay(const Trace& trace, const ReplayOptions& options, EvictionPolicy* policy) {
  KV_CHECK(options.host_blocks > 0);
  return Replayer(trace, options, policy).Run();
}

}  // namespace kvarve
