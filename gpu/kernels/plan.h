// Launches of the kernels, checked: every page id, length, stride and count is looked at here, on
// the host, before anything runs; a kernel trusts its parameters. What a kernel reads from tables
// (page ids, addresses of blocks) the caller puts into device memory unchanged, and says where.
//
// The width of an access is the widest of 1, 2, 4, 8, 16 bytes that divides every base, stride,
// size and offset of the launch.
//
// THREADS: any.  BLOCKS: never.  InvalidArgument: what is wrong, by name.
#ifndef KVARVE_GPU_KERNELS_PLAN_H_
#define KVARVE_GPU_KERNELS_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/kernels/kernel_table.h"
#include "gpu/kernels/params.h"
#include "gpu/paged/kv_view.h"
#include "gpu/paged/page_pool.h"
#include "storage/block/layout.h"

namespace kvarve {

// What cuLaunchKernel is given. Blocks have kKernelThreads threads.
struct Launch {
  uint32_t kernel = 0;  // row of kKernels
  uint32_t grid = 1;    // blocks, in x alone: y and z end at 65,535
  alignas(16) std::array<std::byte, 256> params{};
};

// Pieces of work that one launch may have.
inline constexpr uint64_t kMaxPieces = 1u << 30;
// Blocks of a launch: movers are bound by memory, and leave processors to the engine.
inline constexpr uint32_t kMaxGrid = 64;

// For the device: one row for each layer's K, then its V if there is one.
std::vector<MoveTensor> MoveTensors(const KvView& view, const BlockLayout& layout);

struct MoveRequest {
  std::span<const int64_t>
      page_ids;  // of all blocks, in the order of tokens; −1: no page, left out
  std::span<const uint64_t> blocks;  // device address of each block, of BlockBytes()
  uint32_t token_begin = 0;          // [begin, end) of every block; not empty
  uint32_t token_end = 0;
  // Where MoveTensors(), page_ids and blocks lie for the device.
  uint64_t tensors_at = 0, page_ids_at = 0, blocks_at = 0;
};
// Ids outside the range of tokens are not looked at. A scatter names no page twice.
absl::StatusOr<Launch> PlanGather(const KvView& view, const BlockLayout& layout,
                                  const MoveRequest& request);
absl::StatusOr<Launch> PlanScatter(const KvView& view, const BlockLayout& layout,
                                   const MoveRequest& request);

// The part of a gather or scatter that is of tensors [first, first + count) of MoveTensors().
Launch OfTensors(Launch launch, uint32_t first, uint32_t count);

// Copies as PagePool::TakeCopies gives them: no page is the end of one and in another.
// `pairs_at`: int64[2] each, from and to, for the device.
absl::StatusOr<Launch> PlanCopyPages(const KvView& view, std::span<const PageCopy> copies,
                                     uint64_t tensors_at, uint64_t pairs_at);

// New rows of one layer: [token][head] at strides, for K and for V.
struct NewRows {
  uint64_t k = 0, v = 0;  // v 0 when the view has no V
  int64_t k_token_stride = 0, k_head_stride = 0;
  int64_t v_token_stride = 0, v_head_stride = 0;
};
// `slots`: page × page_tokens + place of each token, no slot twice; −1: not kept.
absl::StatusOr<Launch> PlanReshapeAndCache(const KvView& view, uint32_t layer, const NewRows& rows,
                                           std::span<const int64_t> slots, uint64_t slots_at);

// `done_at`: 0, or a uint64 that gets `done_value` after the last byte, and then `counter_at` is a
// uint32 that is 0. Jobs are not checked against one another: they must not overlap.
absl::StatusOr<Launch> PlanBatchCopy(std::span<const CopyJob> jobs, uint64_t jobs_at,
                                     uint64_t done_at = 0, uint64_t done_value = 0,
                                     uint64_t counter_at = 0);

// Packed blocks. fp8: kv_heads × layers × (K, V) float scales a block lie at `scales_at`.
struct PackRequest {
  MoveRequest move;
  NumberType type = kBf16;
  uint64_t scales_at = 0;  // fp8
  uint32_t group = 0;      // int4: elements, even, divides k_dim and v_dim
};
// The packed block's layout: row_bytes and block_offset are of packed rows.
absl::StatusOr<std::vector<MoveTensor>> Fp8Tensors(const KvView& view, const BlockLayout& layout);
absl::StatusOr<std::vector<MoveTensor>> Int4Tensors(const KvView& view, const BlockLayout& layout,
                                                    uint32_t group);
// Bytes of a packed block: its rows end there.
uint64_t PackedBlockBytes(std::span<const MoveTensor> tensors, const BlockLayout& layout);
// fp8 takes whole blocks: a scale belongs to all of a head's tokens.
absl::StatusOr<Launch> PlanPack(KernelFamily family, const KvView& view, const BlockLayout& layout,
                                const PackRequest& request);

}  // namespace kvarve

#endif  // KVARVE_GPU_KERNELS_PLAN_H_
