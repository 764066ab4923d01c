// What a request mix wastes of KV memory when each sequence reserves one contiguous piece, and when
// it grows page by page. Requests wait in line for memory, all the time; a step computes one token
// of every running sequence. The paged run uses PagePool and BlockTable themselves.
//
// A function: THREADS: any.  BLOCKS: no.
#ifndef KVARVE_GPU_PAGED_PAGED_SIM_H_
#define KVARVE_GPU_PAGED_PAGED_SIM_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvarve {

struct SimRequest {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // at least 1
  int64_t Tokens() const { return prompt_tokens + output_tokens; }
};

struct SimMemory {
  int64_t tokens = 0;      // that fit into the KV memory
  int64_t max_tokens = 0;  // of a sequence
  int64_t page_tokens = 0;
};

enum class SimPolicy {
  kLongest,     // every sequence reserves max_tokens
  kPowerOfTwo,  // the power of two above its real length, at most max_tokens
  kExact,       // its real length, as if it were known
  kPaged,
};
std::string_view SimPolicyName(SimPolicy policy);

// Shares of the memory, averaged over the steps in which requests were waiting; they sum to 1.
struct SimShares {
  double stored = 0;     // carry a token
  double ahead = 0;      // reserved for tokens that this sequence will have
  double never = 0;      // reserved, and never used by this sequence
  double unclaimed = 0;  // belongs to nobody: too small, or in the wrong places
  double running = 0;    // sequences
  int64_t steps = 0;
  int64_t preempted = 0;  // sequences that gave their memory back and start again (kPaged)
  // Of what sequences hold, how much carries no token.
  double Waste() const { return stored == 0 ? 0 : (ahead + never) / (stored + ahead + never); }
};

// InvalidArgument: a request that can never run (longer than max_tokens or than the memory), sizes
// that are not positive, or no steps to average over (all requests fit at once).
absl::StatusOr<SimShares> SimulateMemory(const SimMemory& memory, SimPolicy policy,
                                         std::span<const SimRequest> requests);

// `count` requests whose lengths are exponential around their means, at least one token each and
// cut to max_tokens together.
std::vector<SimRequest> RandomRequests(int64_t count, double prompt_mean, double output_mean,
                                       int64_t max_tokens, uint64_t seed);

}  // namespace kvarve

#endif  // KVARVE_GPU_PAGED_PAGED_SIM_H_
