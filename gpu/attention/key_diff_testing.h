// KeyDiff's kernels against its definition in double, for whatever runs kernels.
// THREADS: one.
#ifndef KVARVE_GPU_ATTENTION_KEY_DIFF_TESTING_H_
#define KVARVE_GPU_ATTENTION_KEY_DIFF_TESTING_H_

#include <cstdint>
#include <vector>

#include "gpu/attention/attention_oracle_testing.h"
#include "gpu/attention/key_diff.h"
#include "gpu/kernels/kernels_testing.h"

namespace kvarve::testing {

struct KeyDiffAnswer {
  std::vector<float> scores, of_blocks;
};
// In double, each key's cosine to the mean of the unit keys.
KeyDiffAnswer KeyDiffByDefinition(const TestPages& pages, const KeyDiffSequence& sequence,
                                  uint32_t block_tokens);
// To 1e-5.
void ExpectNear(const KeyDiffAnswer& got, const KeyDiffAnswer& want);
KeyDiffAnswer KeyDiffOnDevice(const TestPages& pages, const std::vector<KeyDiffSequence>& sequences,
                              uint32_t block_tokens, const RunLaunch& run);
// A type and a dimension; layouts and page sizes follow from the seed.
void CheckKeyDiff(ElementType type, uint32_t dim, uint64_t seed, const RunLaunch& run);
// More than one chunk; zeros; what is behind the last token; the same answer twice.
void CheckOddKeyDiff(const RunLaunch& run);

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_ATTENTION_KEY_DIFF_TESTING_H_
