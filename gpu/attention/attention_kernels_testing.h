// The attention kernels' tests, for whatever runs kernels: against the definition in double
// (attention_oracle_testing.h), which reads the same bytes; and odd cases, each by name.
//
// THREADS: one.
#ifndef KVARVE_GPU_ATTENTION_ATTENTION_KERNELS_TESTING_H_
#define KVARVE_GPU_ATTENTION_ATTENTION_KERNELS_TESTING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/attention/attention_oracle_testing.h"
#include "gpu/kernels/kernels_testing.h"
#include "gpu/kernels/params.h"

namespace kvarve::testing {

// Memory that launches are given. Its end is an allocation's end.
using DeviceBytes = std::vector<std::byte>;

struct DeviceNumbers {
  NumberType q = kF32, out = kF32;
};
struct DeviceAnswer {
  std::vector<float> out, lse;
};
// What the kernels answer; poison where they wrote nothing. `q` is rounded to its type before.
// Failures of planning and running are GoogleTest's.
DeviceAnswer AttendOnDevice(const TestPages& pages, const AttentionOptions& options,
                            const std::vector<AttentionSequence>& sequences,
                            std::span<const float> sinks, const std::vector<float>& q,
                            const DeviceNumbers& numbers, const RunLaunch& run);

// |out - definition| <= 1e-5 of the largest V, and half a unit of the output's type; |lse -
// definition| <= 1e-5 * max(1, |lse|).
void ExpectNear(const DeviceAnswer& got, const AttentionAnswer& want, NumberType out = kF32);

std::vector<float> RandomQueries(size_t count, NumberType type, uint64_t seed);
std::vector<int32_t> ShuffledTable(int64_t pages, uint64_t seed);

struct AttentionCase {
  ElementType type = ElementType::kBf16;
  uint32_t dim = 128;
  AttentionLayout layout = AttentionLayout::kHnd;
  uint32_t page_tokens = 16, group = 1;
  uint64_t seed = 0;  // of which windows, caps, sinks, splits, query tokens, types follow
};
// Types and dimensions that there are kernels for.
bool HasAttentionKernel(ElementType type, uint32_t dim);
// A case's memory, and what is asked of it: two sequences, the second one short and not at 0.
struct AttentionSetup {
  explicit AttentionSetup(const AttentionCase& which);
  AttentionSetup(const AttentionSetup&) = delete;
  AttentionSetup& operator=(const AttentionSetup&) = delete;
  DeviceAnswer OnDevice(const RunLaunch& run) const {
    return AttendOnDevice(memory, options, sequences, sinks, q, numbers, run);
  }
  AttentionAnswer Expected() const { return Attention(memory, options, sequences, sinks, q); }

  uint32_t kv_heads;
  int64_t tokens, pages;
  TestPages memory;
  std::vector<int32_t> one, other;  // tables
  DeviceNumbers numbers;
  AttentionOptions options;
  std::vector<float> sinks;
  std::vector<AttentionSequence> sequences;
  std::vector<float> q;
};
void CheckAttention(const AttentionCase& which, const RunLaunch& run);

struct OddCase {
  const char* name;
  void (*check)(const RunLaunch& run);
};
std::span<const OddCase> OddCases();
// The one of that name. REQUIRES: there is one.
void CheckOddCase(const char* name, const RunLaunch& run);
// 131,072 tokens of one head, undivided and in splits of 512.
void CheckLongContext(const RunLaunch& run);

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_ATTENTION_ATTENTION_KERNELS_TESTING_H_
