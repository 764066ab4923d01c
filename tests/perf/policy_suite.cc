// Suite "policy": what each eviction policy costs by itself, without a cache: touches of whole
// chains, victims until nothing is left, accesses of a replayed workload, and memory.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/status_macros.h"
#include "storage/policy/eviction_policy.h"
#include "storage/policy/replay.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

// Numbers that repeat from run to run.
class Sequence {
 public:
  uint64_t Below(uint64_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint64_t>(static_cast<unsigned __int128>(state_) * bound >> 64);
  }

 private:
  uint64_t state_ = 1;
};

constexpr uint32_t kEntries = 1'000'000;
// Blocks of each of the policy's chains: one leaf, fifteen inner blocks.
constexpr uint32_t kChain = 16;

std::unique_ptr<EvictionPolicy> FilledPolicy(std::string_view name, Sequence* sequence) {
  auto policy = NewEvictionPolicy(name);
  policy->OnRequest({});
  for (uint32_t id = 0; id < kEntries; ++id) {
    BlockTraits traits;
    traits.key = id + 1;
    policy->OnInsert(id, traits, id % kChain == kChain - 1);
  }
  std::vector<uint32_t> ids(kChain);
  for (uint32_t n = 0; n < kEntries / kChain; ++n) {
    std::iota(ids.begin(), ids.end(),
              static_cast<uint32_t>(sequence->Below(kEntries / kChain)) * kChain);
    policy->OnRequest({});
    policy->OnTouchRun(ids);
  }
  return policy;
}

// Whole chains in random order, each a request's; bare: the same stores into an array of numbers.
void TouchRow(BenchTable* table, std::string_view policy_name) {
  const std::string name = "policy/touches_1M/" + std::string(policy_name);
  if (!table->Wants(name)) return;
  Sequence sequence;
  const auto policy = FilledPolicy(policy_name, &sequence);
  std::vector<uint64_t> bare(kEntries);
  uint64_t clock = 0;
  std::vector<uint32_t> ids(kChain);
  const auto measure = [&](auto touch_all) {
    const double start = NowMicros();
    for (uint32_t n = 0; n < kEntries / kChain; ++n) {
      std::iota(ids.begin(), ids.end(),
                static_cast<uint32_t>(sequence.Below(kEntries / kChain)) * kChain);
      touch_all();
    }
    return (NowMicros() - start) * 1000 / kEntries;
  };
  const auto mine = [&] {
    policy->PrefetchTouch(ids);
    policy->OnRequest({});
    policy->OnTouchRun(ids);
  };
  const auto loop = [&] {
    for (size_t i = kChain; i-- > 0;) bare[ids[i]] = ++clock;
  };
  table->Compare({.name = name,
                  .unit = "ns",
                  .better = Better::kLower,
                  .mine = [&] { return measure(mine); },
                  .bare = [&] { return measure(loop); }});
}

// Everything leaves, leaf by leaf; bare: an ordered set of touches that knows no chains.
void VictimRow(BenchTable* table, std::string_view policy_name) {
  const std::string name = "policy/victims_1M/" + std::string(policy_name);
  if (!table->Wants(name)) return;
  Sequence sequence;
  const auto mine = [&] {
    const auto policy = FilledPolicy(policy_name, &sequence);
    uint32_t left = kEntries;
    const double start = NowMicros();
    for (uint32_t id; (id = policy->Victim(0)) != kNoVictim; --left) {
      policy->OnRemove(id);
      if (id % kChain != 0) policy->OnEvictable(id - 1, true);
    }
    const double nanos = (NowMicros() - start) * 1000 / kEntries;
    KV_CHECK(left == 0);
    return nanos;
  };
  const auto bare = [&] {
    std::set<std::pair<uint64_t, uint32_t>> touches;
    for (uint32_t id = 0; id < kEntries; ++id) touches.emplace(sequence.Below(1ull << 60), id);
    const double start = NowMicros();
    while (!touches.empty()) touches.erase(touches.begin());
    return (NowMicros() - start) * 1000 / kEntries;
  };
  table->Compare({.name = name,
                  .unit = "ns",
                  .better = Better::kLower,
                  .mine = mine,
                  .bare = bare,
                  .rounds = 3});
}

// Sessions whose prompts grow turn by turn, and prompts that nobody asks for again.
Trace SessionTrace() {
  Sequence sequence;
  TraceBuilder builder;
  std::vector<std::vector<uint64_t>> prompts(20'000);
  uint64_t next_id = 1;
  for (int request = 0; request < 120'000; ++request) {
    std::vector<uint64_t> once;
    std::vector<uint64_t>& prompt =
        sequence.Below(3) == 0 ? once : prompts[sequence.Below(prompts.size())];
    if (prompt.size() > 48) prompt.clear();
    for (uint64_t more = 4 + sequence.Below(9); more > 0; --more) prompt.push_back(next_id++);
    builder.Add(request, 0, UINT32_MAX, prompt);
  }
  return builder.Finish();
}

// All that a cache asks of a policy, in the order that it does; bare: the same with lru. At most
// 1 us: a planner replays a million accesses a second.
void AccessRows(BenchTable* table) {
  const std::string access = "policy/access/";
  if (std::ranges::none_of(kEvictionPolicies, [&](std::string_view name) {
        return table->Wants(access + std::string(name));
      })) {
    return;
  }
  const Trace trace = SessionTrace();
  const ReplayOptions options{.host_blocks = trace.parents.size() / 5};
  const auto measure = [&](std::string_view name) {
    const auto policy = NewEvictionPolicy(name);
    const double start = NowMicros();
    const ReplayResult result = Replay(trace, options, policy.get());
    return (NowMicros() - start) * 1000 / static_cast<double>(result.blocks);
  };
  for (const std::string_view name : kEvictionPolicies) {
    table->Compare({.name = access + std::string(name),
                    .unit = "ns",
                    .better = Better::kLower,
                    .mine = [&] { return measure(name); },
                    .bare = [&] { return measure("lru"); },
                    .rounds = 3,
                    .value_gate = 1000});
  }
}

// With as many ghosts as there may be.
void MemoryRow(BenchTable* table, std::string_view policy_name) {
  const std::string name = "policy/bytes_a_block_1M/" + std::string(policy_name);
  if (!table->Wants(name)) return;
  const auto policy = NewEvictionPolicy(policy_name);
  BlockTraits traits;
  for (traits.key = 1; traits.key <= kEntries; ++traits.key)
    policy->OnInsert(static_cast<uint32_t>(traits.key - 1), traits, true);
  for (; traits.key <= 6 * kEntries; ++traits.key) {
    const uint32_t id = policy->Victim(0);
    policy->OnRemove(id);
    policy->OnInsert(id, traits, true);
  }
  table->Measure({.name = name,
                  .unit = "bytes",
                  .better = Better::kLower,
                  .gate = 96,
                  .measure = [&] { return static_cast<double>(policy->MemoryBytes()) / kEntries; },
                  .rounds = 1});
}

void Run(BenchTable* table) {
  const PinnedTo one_processor(AllowedCpus().back());
  for (const std::string_view name : kEvictionPolicies) TouchRow(table, name);
  for (const std::string_view name : kEvictionPolicies) VictimRow(table, name);
  AccessRows(table);
  for (const std::string_view name : kEvictionPolicies) MemoryRow(table, name);
}

KVARVE_BENCH_SUITE(policy, "touches, victims, accesses and memory of each eviction policy", Run);

}  // namespace
}  // namespace kvarve::perf
