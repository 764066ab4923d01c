#include "gpu/paged/paged_sim.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "absl/strings/str_format.h"
#include "gpu/paged/block_table.h"
#include "gpu/paged/page_pool.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// One contiguous piece a sequence, by first fit.
class ContiguousMemory {
 public:
  explicit ContiguousMemory(int64_t tokens) { free_[0] = tokens; }
  std::optional<int64_t> Take(int64_t tokens) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [at, size] = *it;
      if (size < tokens) continue;
      free_.erase(it);
      if (size > tokens) free_[at + tokens] = size - tokens;
      return at;
    }
    return std::nullopt;
  }
  void GiveBack(int64_t at, int64_t tokens) {
    auto next = free_.lower_bound(at);
    if (next != free_.end() && at + tokens == next->first) {
      tokens += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += tokens;
        return;
      }
    }
    free_[at] = tokens;
  }

 private:
  std::map<int64_t, int64_t> free_;  // begin -> tokens
};

int64_t Reserved(SimPolicy policy, const SimMemory& memory, int64_t tokens) {
  if (policy == SimPolicy::kLongest) return memory.max_tokens;
  if (policy == SimPolicy::kExact) return tokens;
  return std::min<int64_t>(memory.max_tokens, std::bit_ceil(static_cast<uint64_t>(tokens)));
}

// A running sequence: a piece, or a block table.
struct Running {
  SimRequest request;
  int64_t tokens = 0;  // stored now
  int64_t held = 0;    // token places
  int64_t at = 0;
  std::unique_ptr<BlockTable> table;
};

class Simulation {
 public:
  Simulation(const SimMemory& memory, SimPolicy policy, std::span<const SimRequest> requests)
      : memory_(memory),
        policy_(policy),
        waiting_(requests.begin(), requests.end()),
        contiguous_(memory.tokens),
        pool_({std::max<int64_t>(1, memory.tokens / memory.page_tokens),
               static_cast<uint32_t>(memory.page_tokens)}) {}

  SimShares Run() {
    while (!waiting_.empty()) {
      while (!waiting_.empty() && Admit(waiting_.front())) waiting_.pop_front();
      if (waiting_.empty()) break;
      Count();
      Step();
    }
    if (sums_.steps > 0) {
      const double whole = static_cast<double>(memory_.tokens) * sums_.steps;
      for (double* share : {&sums_.stored, &sums_.ahead, &sums_.never, &sums_.unclaimed})
        *share /= whole;
      sums_.running /= sums_.steps;
    }
    return sums_;
  }

 private:
  bool Admit(const SimRequest& request) {
    Running next{request, request.prompt_tokens, 0, 0, nullptr};
    if (policy_ == SimPolicy::kPaged) {
      next.table = std::make_unique<BlockTable>(&pool_);
      // The next token's page too, or it would be sent away at once.
      if (!next.table->Append(next.tokens + 1).ok()) return false;
      next.table->Truncate(next.tokens);
      next.held = Held(*next.table);
    } else {
      next.held = Reserved(policy_, memory_, request.Tokens());
      const std::optional<int64_t> at = contiguous_.Take(next.held);
      if (!at) return false;
      next.at = *at;
    }
    running_.push_back(std::move(next));
    return true;
  }

  int64_t Held(const BlockTable& table) const {
    return static_cast<int64_t>(table.pages().size()) * memory_.page_tokens;
  }

  void Count() {
    int64_t held = 0, stored = 0, ahead = 0;
    for (const Running& sequence : running_) {
      held += sequence.held;
      stored += sequence.tokens;
      ahead += std::min(sequence.held, sequence.request.Tokens()) - sequence.tokens;
    }
    ++sums_.steps;
    sums_.stored += stored;
    sums_.ahead += ahead;
    sums_.never += held - stored - ahead;
    sums_.unclaimed += memory_.tokens - held;
    sums_.running += running_.size();
  }

  void Step() {
    for (size_t i = 0; i < running_.size(); ++i) {
      Running& sequence = running_[i];
      if (policy_ == SimPolicy::kPaged && !Grow(i)) break;  // it was the youngest, and left
      ++sequence.tokens;
    }
    std::erase_if(running_, [this](const Running& sequence) {
      if (sequence.tokens < sequence.request.Tokens()) return false;
      if (!sequence.table) contiguous_.GiveBack(sequence.at, sequence.held);
      return true;
    });
  }

  // One more token for a sequence; the youngest ones leave until there is room. False: it left.
  bool Grow(size_t i) {
    while (!running_[i].table->Append(1).ok()) {
      waiting_.push_front(running_.back().request);
      running_.pop_back();
      ++sums_.preempted;
      if (running_.size() == i) return false;
    }
    running_[i].held = Held(*running_[i].table);
    return true;
  }

  const SimMemory memory_;
  const SimPolicy policy_;
  std::deque<SimRequest> waiting_;
  ContiguousMemory contiguous_;
  PagePool pool_;  // before running_: tables give their pages back
  std::vector<Running> running_;
  SimShares sums_;
};

}  // namespace

std::string_view SimPolicyName(SimPolicy policy) {
  switch (policy) {
    case SimPolicy::kLongest:
      return "longest";
    case SimPolicy::kPowerOfTwo:
      return "power of two";
    case SimPolicy::kExact:
      return "exact";
    case SimPolicy::kPaged:
      return "paged";
  }
  return "";
}

absl::StatusOr<SimShares> SimulateMemory(const SimMemory& memory, SimPolicy policy,
                                         std::span<const SimRequest> requests) {
  if (memory.tokens <= 0 || memory.max_tokens <= 0 || memory.page_tokens <= 0 ||
      memory.max_tokens > BlockTable::kMaxTokens ||
      memory.tokens / memory.page_tokens > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError("sizes must be positive, and at most 2^31 pages of them");
  }
  // Whole pages, and one piece of the largest reservation, must fit.
  const int64_t usable = memory.tokens / memory.page_tokens * memory.page_tokens;
  for (const SimRequest& request : requests) {
    if (request.prompt_tokens < 0 || request.output_tokens < 1 ||
        request.prompt_tokens > memory.max_tokens ||
        request.output_tokens > memory.max_tokens - request.prompt_tokens) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a request of %d + %d tokens; a sequence has at most %d, one of output",
                          request.prompt_tokens, request.output_tokens, memory.max_tokens));
    }
  }
  if (memory.max_tokens > usable) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a sequence of %d tokens does not fit into %d", memory.max_tokens, usable));
  }
  const SimShares shares = Simulation(memory, policy, requests).Run();
  if (shares.steps == 0) return absl::InvalidArgumentError("all requests fit at once");
  return shares;
}

std::vector<SimRequest> RandomRequests(int64_t count, double prompt_mean, double output_mean,
                                       int64_t max_tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> prompt(1 / prompt_mean), output(1 / output_mean);
  auto cut = [](double tokens, int64_t most) {
    return static_cast<int64_t>(std::clamp(tokens, 1.0, static_cast<double>(most)));
  };
  std::vector<SimRequest> requests(count);
  for (SimRequest& request : requests) {
    request.prompt_tokens = cut(prompt(random), max_tokens - 1);
    request.output_tokens = cut(output(random), max_tokens - request.prompt_tokens);
  }
  return requests;
}

}  // namespace kvarve
