// Attention over paged KV, and the merging of its parts: online softmax over the pages of a block
// table (PagedAttention, arXiv 2309.06180; online softmax, arXiv 1805.02867; splits joined by their
// log-sum-exp, arXiv 2311.01282). With one split it is what vLLM calls v1, with several v2.
//
// A query token at position p attends the KV positions up to p, with a window W those above p - W.
// Its logit is scale * k_scale * (q . k), capped to cap * tanh(logit / cap) where a soft cap is
// set; lse is the natural logarithm of the sum of exp(logit); an output is the mean of v_scale * v,
// weighed by exp(logit - lse). Where nothing is attended the output is 0 and lse is -infinity. A
// NaN in a row that is attended reaches the heads and tokens that attend it, what is not attended
// is never read.
//
// PagedAttention is the CPU's: AVX-512 or AVX2 where the processor has them; rows of queries and
// outputs are fp32. A CUDA device's is in attention_launch.h.
#ifndef KVARVE_GPU_ATTENTION_ATTENTION_H_
#define KVARVE_GPU_ATTENTION_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/paged/kv_view.h"
#include "storage/block/layout.h"
#include "storage/block/namespace.h"

namespace kvarve {

inline constexpr uint32_t kAttentionQueryTokensMax = 16;
// K's dimension; V's is the same. 576 is MLA, absorbed: a latent of 512, which is V too, and 64 of
// rope.
inline constexpr uint32_t kAttentionDims[] = {64, 80, 96, 128, 192, 256, 576};
inline constexpr uint32_t kMlaDim = 576, kMlaLatent = 512;

// One layer's pages.
struct AttentionPages {
  PagedTensor k;
  PagedTensor v;                          // for MLA the same as k
  ElementType type = ElementType::kBf16;  // or kFp16, kFp32, kFp8E4m3
  int64_t pages = 0;
  uint32_t page_tokens = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  float k_scale = 1, v_scale = 1;  // of fp8 pages: what a stored 1 stands for
  bool is_blocks = false;          // made by BlockPages; then these two are bytes into a block:
  int64_t k_offset = 0, v_offset = 0;
};

// Blocks in the canonical layout as pages, wherever each lies: one layer of them, to be attended by
// sequences that name blocks. For MLA (v_dim 0 in the layout) V is the latent in K's rows.
AttentionPages BlockPages(const BlockLayout& layout, uint32_t layer, ElementType type);

struct AttentionSequence {
  std::span<const int32_t> table;  // page ids; those of which nothing is attended may be anything
  // Of BlockPages: each block's first byte, in the table's stead; null where nothing is attended.
  std::span<const std::byte* const> blocks;
  int64_t kv_tokens = 0;    // tokens in the table's pages, from the first page's first
  int64_t kv_position = 0;  // of the first of them
  int64_t q_position = 0;   // of the first query token
  uint32_t q_tokens = 1;
};

struct AttentionOptions {
  uint32_t q_heads = 0;  // a multiple of kv_heads; head h attends KV head h / (q_heads / kv_heads)
  float scale = 1;
  float soft_cap = 0;         // 0: none
  int64_t window = 0;         // 0: none
  uint32_t split_tokens = 0;  // KV tokens a split, a multiple of the page's; 0: one split
};

// THREADS: Run of different items at once; the rest externally synchronised.  BLOCKS: never.
class PagedAttention {
 public:
  // InvalidArgument: says what of the pages, the options or a sequence is not as above, or which
  // page id that is attended is none. Unimplemented: too many query tokens (that is prefill, the
  // engine's own), a dimension that is not in the list, or elements of another type. Tables and
  // pages outlive this.
  static absl::StatusOr<PagedAttention> Create(const AttentionPages& pages,
                                               const AttentionOptions& options,
                                               std::span<const AttentionSequence> sequences);

  // Pieces of the work: a KV head of a split of a sequence. `q`: [query tokens of all
  // sequences][q_heads][k_dim].
  size_t items() const { return items_.size(); }
  void Run(size_t item, const float* q);
  // After all items. `out`: [query tokens][q_heads][v_dim], `lse`: [query tokens][q_heads].
  // `sinks`, when not empty, holds a logit of each query head that takes part in the softmax and
  // has no value; where this is a part of a larger attention it belongs to the last merge alone.
  void Finish(std::span<const float> sinks, float* out, float* lse) const;

 private:
  struct Item {
    uint32_t sequence;
    uint32_t head;
    uint32_t split;      // of the sequence
    int64_t begin, end;  // KV tokens
  };
  PagedAttention() = default;

  AttentionPages pages_;
  AttentionOptions options_;
  std::vector<AttentionSequence> sequences_;
  std::vector<size_t> first_row_;    // of a sequence's queries, in [tokens][q_heads]
  std::vector<uint32_t> splits_;     // of a sequence
  std::vector<size_t> first_state_;  // of a sequence's states, [split][its rows]
  std::vector<Item> items_;
  std::vector<float> outs_, lses_;
};

// One part of an attention: [rows][dim] outputs, normalised, and [rows] natural log-sum-exps.
struct AttentionState {
  const float* out;
  const float* lse;
};

// Joins parts that attended different KV of the same queries. The order of two does not matter;
// parts of nothing (lse -infinity) count for nothing, whatever their output. `sinks`: as above, one
// a row, or empty. `out` and `lse` may be those of the first part.
void MergeStates(std::span<const AttentionState> states, size_t rows, size_t dim,
                 std::span<const float> sinks, float* out, float* lse);

// Log-sum-exps of other engines, at the door. FlashInfer's are of base 2, FlashAttention's natural.
enum class LseBase : uint8_t { kNatural, kTwo };
float NaturalLse(float lse, LseBase base);

}  // namespace kvarve

#endif  // KVARVE_GPU_ATTENTION_ATTENTION_H_
