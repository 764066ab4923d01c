// Attention on a CUDA device: the checked launches of kv_attention_* and kv_merge_states
// (gpu/kernels). What attention.h says of positions, logits, log-sum-exps and NaN holds here, too;
// every page id, length and stride is looked at on the host before anything runs.
//
// With one split and no sinks it is one launch, which writes the answer (vLLM's v1). Otherwise the
// splits' answers go to a workspace and a second launch merges them (v2), and the sinks take part
// once, there. The same kernel merges parts of a context that other tiers attended.
//
// THREADS: any; a plan is read-only once made.  BLOCKS: never.
#ifndef KVARVE_GPU_ATTENTION_ATTENTION_LAUNCH_H_
#define KVARVE_GPU_ATTENTION_ATTENTION_LAUNCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/attention/attention.h"
#include "gpu/kernels/params.h"
#include "gpu/kernels/plan.h"

namespace kvarve {

// Where things lie for the device.
struct AttentionPlaces {
  // [query tokens of all sequences][q_heads][k_dim] at strides in bytes.
  uint64_t q = 0;
  int64_t q_token_stride = 0, q_head_stride = 0;
  NumberType q_type = kBf16;
  // [query tokens][q_heads][v_dim], at a multiple of 16; and float[query tokens][q_heads].
  uint64_t out = 0, lse = 0;
  NumberType out_type = kBf16;
  uint64_t sinks = 0;  // float[q_heads]; 0: none
  // The plan's tables, copied as they are, and its workspace, at a multiple of 16.
  uint64_t page_ids = 0, items = 0, parts = 0, merges = 0, workspace = 0;
};

class AttentionPlan {
 public:
  // As PagedAttention::Create. Besides, Unimplemented: blocks instead of pages, MLA in other than
  // bf16; InvalidArgument: pages whose rows are not aligned to their elements, sequences of 2^31
  // tokens or more. `with_sinks`: places will name sinks.
  static absl::StatusOr<AttentionPlan> Create(const AttentionPages& pages,
                                              const AttentionOptions& options,
                                              std::span<const AttentionSequence> sequences,
                                              bool with_sinks);

  std::span<const int32_t> page_ids() const { return page_ids_; }
  std::span<const AttentionItem> items() const { return items_; }
  // Empty, as the workspace is, where one launch does.
  std::span<const MergePart> parts() const { return parts_; }
  std::span<const MergeItem> merges() const { return merges_; }
  uint64_t workspace_bytes() const { return workspace_bytes_; }

  // One launch or two, for one stream in this order. InvalidArgument: a place that is missing or
  // not aligned, sinks where none were planned, or none where they were.
  absl::StatusOr<std::vector<Launch>> Launches(const AttentionPlaces& places) const;

 private:
  AttentionPlan() = default;
  void AddSequence(const AttentionSequence& sequence);
  void AddItems(const AttentionSequence& sequence, uint32_t first_token, int64_t begin, int64_t end,
                uint64_t out_row);
  absl::Status CheckPlaces(const AttentionPlaces& places) const;

  AttentionPages pages_;
  AttentionOptions options_;
  bool with_sinks_ = false, merged_ = false;
  uint64_t q_tokens_ = 0, states_ = 0;  // so far: query tokens, rows of the workspace
  std::vector<int32_t> page_ids_;
  std::vector<AttentionItem> items_;
  std::vector<MergePart> parts_;  // addresses count from the workspace
  std::vector<MergeItem> merges_;
  uint64_t workspace_bytes_ = 0;
};

// Rows [first_row, first_row + rows) of the answer from rows [0, rows) of parts, which are
// [first_part, first_part + parts) of a table; for MergeParams::items.
void AddMergeItems(uint64_t first_part, uint32_t parts, uint64_t first_row, uint32_t rows,
                   std::vector<MergeItem>* items);

// What attended elsewhere becomes one answer: outputs are fp32, log-sum-exps natural
// (NaturalLse()). `parts` hold device addresses; the table lies at `parts_at`.
struct MergeRequest {
  std::span<const MergePart> parts;
  std::span<const MergeItem> items;
  uint64_t parts_at = 0, items_at = 0;
  uint64_t out = 0, lse = 0;  // may be those of the first part
  uint64_t sinks = 0;         // float[q_heads] or 0
  uint32_t q_heads = 1, dim = 0;
  NumberType out_type = kF32;
};
absl::StatusOr<Launch> PlanMergeStates(const MergeRequest& request);

}  // namespace kvarve

#endif  // KVARVE_GPU_ATTENTION_ATTENTION_LAUNCH_H_
