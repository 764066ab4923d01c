#include "storage/policy/replay.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint64_t kMaxRequestBlocks = 1 << 20;

// Numbers the blocks of a trace: a block is its parent and its id.
class BlockNumbers {
 public:
  explicit BlockNumbers(Trace* trace) : trace_(trace) {}
  uint32_t Of(uint32_t parent, uint64_t id) {
    const auto next = static_cast<uint32_t>(trace_->parents.size());
    const auto [it, is_new] = numbers_.try_emplace(std::make_pair(parent, id), next);
    if (is_new) trace_->parents.push_back(parent);
    return it->second;
  }

 private:
  Trace* const trace_;
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> numbers_;
};

// The ids of a line, in order. False: not well formed.
bool ParseLine(std::string_view line, std::vector<uint64_t>* ids) {
  const char* at = line.data();
  const char* const end = at + line.size();
  while (at != end) {
    if (*at == ' ') {
      ++at;
      continue;
    }
    uint64_t first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) return false;
    uint64_t last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) return false;
    }
    if (last < first || last - first >= kMaxRequestBlocks - ids->size()) return false;
    for (uint64_t id = first; id <= last; ++id) ids->push_back(id);
    at = parsed.ptr;
    if (at != end && *at != ' ') return false;
  }
  return true;
}

// What is resident, and the tree facts that the index keeps in the daemon. Ids of the policy are
// the blocks' numbers.
class Residents {
 public:
  Residents(const Trace& trace, uint64_t capacity, EvictionPolicy* policy)
      : trace_(trace),
        capacity_(capacity),
        policy_(policy),
        resident_(trace.parents.size()),
        children_(trace.parents.size()) {}

  bool Has(uint32_t block) const { return resident_[block]; }

  // False when everything is pinned by its children.
  bool Put(uint32_t block, uint32_t depth, ReplayResult* result) {
    if (size_ == capacity_) {
      const uint32_t victim = policy_->Victim(0);
      if (victim == kNoVictim) return false;
      Evict(victim);
      ++result->evicted;
    }
    const uint32_t parent = trace_.parents[block];
    // A parent that had to go for its own child leaves an orphan: nobody can hit it.
    if (parent != Trace::kRoot && !resident_[parent]) return false;
    if (parent != Trace::kRoot && children_[parent]++ == 0) policy_->OnEvictable(parent, false);
    BlockTraits traits;
    traits.depth = depth;
    policy_->OnInsert(block, traits, true);
    resident_[block] = true;
    ++size_;
    return true;
  }

 private:
  void Evict(uint32_t block) {
    KV_CHECK(resident_[block] && children_[block] == 0);
    policy_->OnRemove(block);
    resident_[block] = false;
    --size_;
    const uint32_t parent = trace_.parents[block];
    if (parent != Trace::kRoot && --children_[parent] == 0) policy_->OnEvictable(parent, true);
  }

  const Trace& trace_;
  const uint64_t capacity_;
  EvictionPolicy* const policy_;
  uint64_t size_ = 0;
  std::vector<bool> resident_;
  std::vector<uint32_t> children_;  // resident ones
};

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view text) {
  Trace trace;
  BlockNumbers numbers(&trace);
  std::vector<uint64_t> ids;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    ids.clear();
    if (!ParseLine(line, &ids)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("trace line %d: expected ids and ranges like \"0 14-27\"", number));
    }
    std::vector<uint32_t>& request = trace.requests.emplace_back();
    uint32_t parent = Trace::kRoot;
    for (uint64_t id : ids) request.push_back(parent = numbers.Of(parent, id));
  }
  return trace;
}

ReplayResult Replay(const Trace& trace, uint64_t capacity_blocks, EvictionPolicy* policy) {
  KV_CHECK(capacity_blocks > 0);
  Residents residents(trace, capacity_blocks, policy);
  ReplayResult result;
  for (const std::vector<uint32_t>& request : trace.requests) {
    size_t hits = 0;
    while (hits < request.size() && residents.Has(request[hits])) ++hits;
    ++result.requests;
    result.blocks += request.size();
    result.hit_blocks += hits;
    for (size_t i = hits; i > 0; --i) policy->OnTouch(request[i - 1]);
    size_t stored = hits;
    while (stored < request.size() &&
           residents.Put(request[stored], static_cast<uint32_t>(stored), &result)) {
      ++stored;
    }
    result.rejected += request.size() - stored;
    for (size_t i = request.size(); i > 0; --i) {
      if (residents.Has(request[i - 1])) policy->OnTouch(request[i - 1]);
    }
  }
  return result;
}

}  // namespace kvarve
