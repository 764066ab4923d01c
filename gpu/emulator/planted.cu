// Small kernels, each right without its bug and wrong with it: what the checkers are checked by.
#include "gpu/emulator/planted.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {
namespace {

constexpr uint32_t kThreads = 64;

}  // namespace

// Every thread sums what all have written.
KV_KERNEL(kv_planted_missing_barrier, PlantedParams) {
  KV_SHARED_ARRAY(float, values, kThreads);
  values[threadIdx.x] = At<const float>(p.in)[threadIdx.x];
  if (!p.bug) __syncthreads();
  float sum = 0;
  for (uint32_t i = 0; i < kThreads; ++i) sum += values[i];
  At<float>(p.out)[threadIdx.x] = sum;
}

KV_KERNEL(kv_planted_divergent_barrier, PlantedParams) {
  if (p.bug && threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  At<float>(p.out)[threadIdx.x] = 1;
}

KV_KERNEL(kv_planted_shared_overrun, PlantedParams) {
  KV_SHARED_ARRAY(float, values, kThreads);
  values[threadIdx.x + p.bug] = 1;
  At<float>(p.out)[threadIdx.x] = values[threadIdx.x + p.bug];
}

KV_KERNEL(kv_planted_wrong_mask, PlantedParams) {
  const unsigned mask = p.bug ? 0xffffu : kWholeWarp;
  At<float>(p.out)[threadIdx.x] = __shfl_xor_sync(mask, At<const float>(p.in)[threadIdx.x], 1);
}

// Half of a warp waits for the other half, which has gone on to the block's barrier.
KV_KERNEL(kv_planted_lost_lanes, PlantedParams) {
  if (!p.bug || threadIdx.x % 32 < 16) __syncwarp();
  __syncthreads();
  At<float>(p.out)[threadIdx.x] = 1;
}

KV_KERNEL(kv_planted_global_overrun, PlantedParams) {
  At<float>(p.out)[threadIdx.x] = At<const float>(p.in)[threadIdx.x + p.bug];
}

// Shared memory used a second time while others still read the first use.
KV_KERNEL(kv_planted_write_after_read, PlantedParams) {
  KV_SHARED_ARRAY(float, scratch, 1);
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) scratch[0] = At<const float>(p.in)[round];
    __syncthreads();
    sum += scratch[0];
    if (!p.bug) __syncthreads();
  }
  At<float>(p.out)[threadIdx.x] = sum;
}

KV_KERNEL(kv_planted_race_between_blocks, PlantedParams) {
  if (threadIdx.x == 0) At<float>(p.out)[p.bug ? 0 : blockIdx.x] = 1;
}

KV_KERNEL(kv_planted_race_in_a_block, PlantedParams) {
  float* const out = At<float>(p.out);
  out[threadIdx.x] = 1;
  if (!p.bug) __syncthreads();
  const float other = out[threadIdx.x ^ 1];
  __syncthreads();
  out[threadIdx.x] = other;
}

KV_KERNEL(kv_planted_misaligned, PlantedParams) {
  if (threadIdx.x != 0) return;
  *At<Word16>(p.out) = *At<const Word16>(p.in, p.bug ? 4 : 0);
}

KV_KERNEL(kv_planted_index_overflow, PlantedParams) {
  const int page = static_cast<int>(p.bug * 70000u);
  const int stride = 70000 + static_cast<int>(threadIdx.x);
  At<float>(p.out)[threadIdx.x] = page * stride > 0 ? 1 : 0;
}

}  // namespace kvarve
