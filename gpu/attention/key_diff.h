// KeyDiff (arXiv 2504.15364): how alike a key is to the other keys of its head, as an importance
// that needs no query: a key's score is its cosine to the mean of its sequence's and head's unit
// keys. That ranks as the sum of its cosines to all of them does, in two passes. The largest scores
// are the most redundant keys and go first; a block's score is the mean of its tokens' over all
// heads. Of a key of zeros, or where the mean is 0, the score is 0. A NaN in a key makes all of its
// head's scores NaN.
//
// THREADS: any; a plan is read-only once made.  BLOCKS: never.
#ifndef KVARVE_GPU_ATTENTION_KEY_DIFF_H_
#define KVARVE_GPU_ATTENTION_KEY_DIFF_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/attention/attention.h"
#include "gpu/kernels/params.h"
#include "gpu/kernels/plan.h"

namespace kvarve {

struct KeyDiffSequence {
  std::span<const int32_t> table;            // page ids, or
  std::span<const std::byte* const> blocks;  // of BlockPages: each block's first byte
  int64_t tokens = 0;                        // in them, from the first on
};

// On the CPU (AVX-512 or AVX2 where there are). `scores`: [kv_heads][tokens]; `of_blocks`: one for
// each `block_tokens` of the tokens, the last may have fewer. Only K of the pages is read.
// InvalidArgument, Unimplemented: as PagedAttention::Create; or results of another size.
absl::Status KeyDiff(const AttentionPages& pages, const KeyDiffSequence& sequence,
                     uint32_t block_tokens, std::span<float> scores, std::span<float> of_blocks);

// Where things lie for the device: the plan's tables, copied as they are; its workspace; scores as
// above, of one sequence after the other.
struct KeyDiffPlaces {
  uint64_t page_ids = 0, items = 0, blocks = 0;
  uint64_t sums = 0;  // float[sum_count()]
  uint64_t scores = 0, of_blocks = 0;
};

// On a CUDA device, with no atomics: equal keys give equal scores on every run.
class KeyDiffPlan {
 public:
  // As KeyDiff. Besides, Unimplemented: blocks instead of pages; InvalidArgument: sequences of 2^31
  // tokens or more, pages whose elements are not aligned to their size, no tokens at all.
  static absl::StatusOr<KeyDiffPlan> Create(const AttentionPages& pages,
                                            std::span<const KeyDiffSequence> sequences,
                                            uint32_t block_tokens);

  std::span<const int32_t> page_ids() const { return page_ids_; }
  std::span<const KeyDiffItem> items() const { return items_; }
  std::span<const KeyDiffBlock> blocks() const { return blocks_; }
  uint64_t sum_count() const { return sums_ * pages_.k_dim; }
  uint64_t score_count() const { return scores_; }

  // Three, for one stream in this order. InvalidArgument: a place that is missing or not aligned.
  absl::StatusOr<std::vector<Launch>> Launches(const KeyDiffPlaces& places) const;

 private:
  KeyDiffPlan() = default;
  void AddSequence(const KeyDiffSequence& sequence, uint32_t block_tokens);

  AttentionPages pages_;
  uint64_t sums_ = 0, scores_ = 0;  // so far: rows, numbers
  std::vector<int32_t> page_ids_;
  std::vector<KeyDiffItem> items_;
  std::vector<KeyDiffBlock> blocks_;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_ATTENTION_KEY_DIFF_H_
