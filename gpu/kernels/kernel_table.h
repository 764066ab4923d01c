// Every kernel that ships: the only list. Plans name kernels by it, the tests run each of its rows,
// docs/kernels.md is made from it, and the module must hold exactly these entries.
//
// A value: THREADS: any.
#ifndef KVARVE_GPU_KERNELS_KERNEL_TABLE_H_
#define KVARVE_GPU_KERNELS_KERNEL_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "gpu/kernels/params.h"

namespace kvarve {

enum class KernelFamily : uint8_t {
  kGather,
  kScatter,
  kCopyPages,
  kReshapeAndCache,
  kBatchCopy,
  kGatherFp8,
  kScatterFp8,
  kGatherInt4,
  kScatterInt4,
  kAttentionFp32,
  kAttentionFp16,
  kAttentionBf16,
  kAttentionFp8,
  kMergeStates,
  kKeyDiffSum,
  kKeyDiffScore,
  kKeyDiffBlocks,
};

struct KernelInfo {
  const char* name;
  KernelFamily family;
  uint32_t vector_bytes;  // of one access
  uint32_t params_bytes;
  uint32_t dim = 0;  // attention: elements of a K row that it has room for
};

inline constexpr uint32_t kKernelThreads = 256;  // of a block, all kernels
inline constexpr size_t kMaxKernels = 64;

inline constexpr KernelInfo kKernels[] = {
    {"kv_gather_1", KernelFamily::kGather, 1, sizeof(MoveParams)},
    {"kv_gather_2", KernelFamily::kGather, 2, sizeof(MoveParams)},
    {"kv_gather_4", KernelFamily::kGather, 4, sizeof(MoveParams)},
    {"kv_gather_8", KernelFamily::kGather, 8, sizeof(MoveParams)},
    {"kv_gather_16", KernelFamily::kGather, 16, sizeof(MoveParams)},
    {"kv_scatter_1", KernelFamily::kScatter, 1, sizeof(MoveParams)},
    {"kv_scatter_2", KernelFamily::kScatter, 2, sizeof(MoveParams)},
    {"kv_scatter_4", KernelFamily::kScatter, 4, sizeof(MoveParams)},
    {"kv_scatter_8", KernelFamily::kScatter, 8, sizeof(MoveParams)},
    {"kv_scatter_16", KernelFamily::kScatter, 16, sizeof(MoveParams)},
    {"kv_copy_pages_1", KernelFamily::kCopyPages, 1, sizeof(CopyPagesParams)},
    {"kv_copy_pages_2", KernelFamily::kCopyPages, 2, sizeof(CopyPagesParams)},
    {"kv_copy_pages_4", KernelFamily::kCopyPages, 4, sizeof(CopyPagesParams)},
    {"kv_copy_pages_8", KernelFamily::kCopyPages, 8, sizeof(CopyPagesParams)},
    {"kv_copy_pages_16", KernelFamily::kCopyPages, 16, sizeof(CopyPagesParams)},
    {"kv_reshape_and_cache_1", KernelFamily::kReshapeAndCache, 1, sizeof(ReshapeParams)},
    {"kv_reshape_and_cache_2", KernelFamily::kReshapeAndCache, 2, sizeof(ReshapeParams)},
    {"kv_reshape_and_cache_4", KernelFamily::kReshapeAndCache, 4, sizeof(ReshapeParams)},
    {"kv_reshape_and_cache_8", KernelFamily::kReshapeAndCache, 8, sizeof(ReshapeParams)},
    {"kv_reshape_and_cache_16", KernelFamily::kReshapeAndCache, 16, sizeof(ReshapeParams)},
    {"kv_batch_copy_1", KernelFamily::kBatchCopy, 1, sizeof(BatchCopyParams)},
    {"kv_batch_copy_2", KernelFamily::kBatchCopy, 2, sizeof(BatchCopyParams)},
    {"kv_batch_copy_4", KernelFamily::kBatchCopy, 4, sizeof(BatchCopyParams)},
    {"kv_batch_copy_8", KernelFamily::kBatchCopy, 8, sizeof(BatchCopyParams)},
    {"kv_batch_copy_16", KernelFamily::kBatchCopy, 16, sizeof(BatchCopyParams)},
    {"kv_gather_fp8", KernelFamily::kGatherFp8, 1, sizeof(PackParams)},
    {"kv_scatter_fp8", KernelFamily::kScatterFp8, 1, sizeof(PackParams)},
    {"kv_gather_int4", KernelFamily::kGatherInt4, 1, sizeof(PackParams)},
    {"kv_scatter_int4", KernelFamily::kScatterInt4, 1, sizeof(PackParams)},
    {"kv_attention_fp32_64", KernelFamily::kAttentionFp32, 16, sizeof(AttentionParams), 64},
    {"kv_attention_fp32_128", KernelFamily::kAttentionFp32, 16, sizeof(AttentionParams), 128},
    {"kv_attention_fp32_256", KernelFamily::kAttentionFp32, 16, sizeof(AttentionParams), 256},
    {"kv_attention_fp16_64", KernelFamily::kAttentionFp16, 16, sizeof(AttentionParams), 64},
    {"kv_attention_fp16_128", KernelFamily::kAttentionFp16, 16, sizeof(AttentionParams), 128},
    {"kv_attention_fp16_256", KernelFamily::kAttentionFp16, 16, sizeof(AttentionParams), 256},
    {"kv_attention_bf16_64", KernelFamily::kAttentionBf16, 16, sizeof(AttentionParams), 64},
    {"kv_attention_bf16_128", KernelFamily::kAttentionBf16, 16, sizeof(AttentionParams), 128},
    {"kv_attention_bf16_256", KernelFamily::kAttentionBf16, 16, sizeof(AttentionParams), 256},
    {"kv_attention_bf16_mla", KernelFamily::kAttentionBf16, 16, sizeof(AttentionParams), 576},
    {"kv_attention_fp8_64", KernelFamily::kAttentionFp8, 16, sizeof(AttentionParams), 64},
    {"kv_attention_fp8_128", KernelFamily::kAttentionFp8, 16, sizeof(AttentionParams), 128},
    {"kv_attention_fp8_256", KernelFamily::kAttentionFp8, 16, sizeof(AttentionParams), 256},
    {"kv_merge_states", KernelFamily::kMergeStates, 4, sizeof(MergeParams)},
    {"kv_keydiff_sum", KernelFamily::kKeyDiffSum, 1, sizeof(KeyDiffParams)},
    {"kv_keydiff_score", KernelFamily::kKeyDiffScore, 1, sizeof(KeyDiffParams)},
    {"kv_keydiff_blocks", KernelFamily::kKeyDiffBlocks, 4, sizeof(KeyDiffBlockParams)},
};
inline constexpr size_t kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);
static_assert(kKernelCount <= kMaxKernels);

// The row of kKernels for an access of so many bytes, and with room for `dim` elements; nothing for
// what the family lacks.
constexpr std::optional<uint32_t> FindKernelRow(KernelFamily family, uint32_t vector_bytes,
                                                uint32_t dim = 0) {
  for (uint32_t i = 0; i < kKernelCount; ++i) {
    const KernelInfo& info = kKernels[i];
    if (info.family == family && info.vector_bytes == vector_bytes && info.dim >= dim) return i;
  }
  return std::nullopt;
}

struct FamilyInfo {
  KernelFamily family;
  std::string_view what;
};
inline constexpr FamilyInfo kFamilies[] = {
    {KernelFamily::kGather, "pages to blocks in the canonical layout"},
    {KernelFamily::kScatter, "blocks to pages"},
    {KernelFamily::kCopyPages, "whole pages to others of the same memory (copy-on-write)"},
    {KernelFamily::kReshapeAndCache, "new rows to the slots of their tokens"},
    {KernelFamily::kBatchCopy, "many copies between any memories, then a word that says so"},
    {KernelFamily::kGatherFp8, "pages to blocks of fp8 (e4m3fn), a scale a head"},
    {KernelFamily::kScatterFp8, "blocks of fp8 to pages"},
    {KernelFamily::kGatherInt4, "pages to blocks of int4, a scale and a zero a group"},
    {KernelFamily::kScatterInt4, "blocks of int4 to pages"},
    {KernelFamily::kAttentionFp32, "attention over pages of fp32, for tests"},
    {KernelFamily::kAttentionFp16, "attention over pages of fp16"},
    {KernelFamily::kAttentionBf16, "attention over pages of bf16; MLA: K of 576 with V in it"},
    {KernelFamily::kAttentionFp8, "attention over pages of fp8 (e4m3fn)"},
    {KernelFamily::kKeyDiffSum, "sums of unit keys, of chunks of a head"},
    {KernelFamily::kKeyDiffScore, "cosines of keys to the sum of their head's (KeyDiff)"},
    {KernelFamily::kKeyDiffBlocks, "means of those over heads and a block's tokens"},
    {KernelFamily::kMergeStates, "splits' or tiers' outputs and log-sum-exps to one; the sinks"},
};

}  // namespace kvarve

#endif  // KVARVE_GPU_KERNELS_KERNEL_TABLE_H_
