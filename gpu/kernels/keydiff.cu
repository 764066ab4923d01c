// KeyDiff (arXiv 2504.15364): how alike a key is to all others of its head: its cosine to the sum
// of the head's unit keys, which ranks keys as the sum of their cosines to each other does. Without
// atomics: a chunk's sums are written, then added in their order, so that equal keys get equal
// scores on every run.
#include "gpu/kernels/numbers.cuh"
#include "gpu/kernels/params.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {
namespace {

constexpr uint32_t kWarps = kBlockThreads / 32;
constexpr uint32_t kPerLane = kKeyDiffDimMax / 32;  // elements of a key that a lane has

struct Key {
  float of[kPerLane];  // element lane + 32 i; 0 beyond the key's end
};

KV_DEVICE Key LoadKey(const KeyDiffParams& p, const KeyDiffItem& item, uint32_t token) {
  const int64_t page = At<const int32_t>(p.page_ids)[item.pages + token / p.page_tokens];
  const uint64_t row = p.k.base + page * p.k.page_stride + item.head * p.k.head_stride +
                       int64_t{token % p.page_tokens} * p.k.token_stride;
  Key key;
#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) {
    const uint32_t d = threadIdx.x % 32 + 32 * i;
    key.of[i] = 0;
    if (d >= p.dim) continue;
    const uint64_t at = row + uint64_t{d} * p.element_bytes;
    key.of[i] = p.element_bytes == 1 ? FromFp8(*At<const uint8_t>(at)) : LoadElement(at, p.type);
  }
  return key;
}

// What a vector is multiplied by to be of length 1; 0 for zeros.
KV_DEVICE float InverseLength(float squares) {
  return squares > 0 ? 1.0f / sqrtf(squares) : squares == 0 ? 0.0f : squares;
}

KV_DEVICE float Dot(const Key& a, const Key& b) {
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) sum = Fma(a.of[i], b.of[i], sum);
  return WarpSum(sum);
}

}  // namespace

// A block a chunk of a head: the sum of its unit keys.
KV_KERNEL_OF(kv_keydiff_sum, KeyDiffParams, 2) {
  KV_SHARED_ARRAY(float, of_warp, kWarps* kKeyDiffDimMax);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (uint32_t n = blockIdx.x; n < p.item_count; n += gridDim.x) {
    const KeyDiffItem& item = At<const KeyDiffItem>(p.items)[n];
    Key sum{};
    for (uint32_t token = item.begin + warp; token < item.end; token += kWarps) {
      const Key key = LoadKey(p, item, token);
      const float factor = InverseLength(Dot(key, key));
#pragma unroll
      for (uint32_t i = 0; i < kPerLane; ++i) sum.of[i] = Fma(key.of[i], factor, sum.of[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i)
      of_warp[warp * kKeyDiffDimMax + lane + 32 * i] = sum.of[i];
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < p.dim; d += kBlockThreads) {
      float total = 0;
      for (uint32_t w = 0; w < kWarps; ++w) total += of_warp[w * kKeyDiffDimMax + d];
      At<float>(p.sums)[(item.first_sum + item.chunk) * p.dim + d] = total;
    }
    __syncthreads();  // before the next chunk's
  }
}

// After all sums: a chunk's cosines to the sum of all of its head's chunks.
KV_KERNEL_OF(kv_keydiff_score, KeyDiffParams, 2) {
  for (uint32_t n = blockIdx.x; n < p.item_count; n += gridDim.x) {
    const KeyDiffItem& item = At<const KeyDiffItem>(p.items)[n];
    Key anchor{};
    for (uint32_t chunk = 0; chunk < item.chunks; ++chunk) {
      const float* const sum = At<const float>(p.sums) + (item.first_sum + chunk) * p.dim;
#pragma unroll
      for (uint32_t i = 0; i < kPerLane; ++i) {
        const uint32_t d = threadIdx.x % 32 + 32 * i;
        if (d < p.dim) anchor.of[i] += sum[d];
      }
    }
    const float of_anchor = InverseLength(Dot(anchor, anchor));
    for (uint32_t token = item.begin + threadIdx.x / 32; token < item.end; token += kWarps) {
      const Key key = LoadKey(p, item, token);
      const float score = Dot(key, anchor) * of_anchor * InverseLength(Dot(key, key));
      if (threadIdx.x % 32 == 0) At<float>(p.scores)[item.first_score + token] = score;
    }
  }
}

// After all scores: a warp a block of tokens, their mean over heads and tokens.
KV_KERNEL(kv_keydiff_blocks, KeyDiffBlockParams) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t n = blockIdx.x * kWarps + threadIdx.x / 32; n < p.block_count;
       n += gridDim.x * kWarps) {
    const KeyDiffBlock& block = At<const KeyDiffBlock>(p.blocks)[n];
    float sum = 0;
    for (uint32_t head = 0; head < p.heads; ++head) {
      const float* const scores =
          At<const float>(p.scores) + block.first_score + uint64_t{head} * block.tokens;
      for (uint32_t token = block.begin + lane; token < block.end; token += 32)
        sum += scores[token];
    }
    sum = WarpSum(sum);
    if (lane == 0)
      At<float>(p.out)[n] = sum / static_cast<float>(p.heads * (block.end - block.begin));
  }
}

}  // namespace kvarve
