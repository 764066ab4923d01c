// Gather and scatter that change the representation on the way: fp8 with a scale a head, int4 with
// a scale and a zero a group. The arithmetic is IEEE's, one operation at a time (no contraction),
// so that every device and the CPU get the same bits.
#include "gpu/kernels/numbers.cuh"
#include "gpu/kernels/params.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {
namespace {

// One head of one tensor of one block.
struct Head {
  const MoveTensor* tensor;
  const int64_t* page_ids;
  uint64_t block;  // of this head's first row in the packed block
  uint32_t head;
  KV_DEVICE Head(const MoveParams& p, uint32_t number) {
    head = number % p.heads;
    const uint32_t rest = number / p.heads;
    tensor = At<const MoveTensor>(p.tensors) + rest % p.tensor_count;
    const uint32_t its_block = rest / p.tensor_count;
    page_ids =
        At<const int64_t>(p.page_ids) + int64_t{its_block} * (p.block_tokens / p.page_tokens);
    block = At<const uint64_t>(p.blocks)[its_block] + tensor->block_offset +
            int64_t{head} * p.block_tokens * tensor->row_bytes;
  }
  // The row of a token in its page; 0 where there is no page.
  KV_DEVICE uint64_t Row(const MoveParams& p, uint32_t token) const {
    const int64_t page = page_ids[token / p.page_tokens];
    if (page < 0) return 0;
    return tensor->base + page * tensor->page_stride + int64_t{head} * tensor->head_stride +
           int64_t{token % p.page_tokens} * tensor->token_stride;
  }
};

// The largest finite magnitude of the block's threads, in all of them.
KV_DEVICE float BlockMax(float value) {
  KV_SHARED_ARRAY(float, of_warp, kBlockThreads / 32);
  for (uint32_t lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, value, lanes);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  for (uint32_t warp = 0; warp < kBlockThreads / 32; ++warp)
    value = of_warp[warp] > value ? of_warp[warp] : value;
  __syncthreads();  // before somebody writes of_warp for the next head
  return value;
}

// Calls visit(address in a page, its element's number in the head) for this thread's elements.
template <typename Visit>
KV_DEVICE void ForEachElement(const PackParams& p, const Head& head, Visit visit) {
  const uint32_t dim = static_cast<uint32_t>(head.tensor->row_bytes);  // fp8: a byte each
  for (uint32_t token = p.move.token_begin + threadIdx.x / 32; token < p.move.token_end;
       token += blockDim.x / 32) {
    const uint64_t row = head.Row(p.move, token);
    for (uint32_t i = row == 0 ? dim : threadIdx.x % 32; i < dim; i += 32)
      visit(row + int64_t{i} * p.element_bytes, int64_t{token} * dim + i);
  }
}

// The biased exponent of the least power of two that brings `most` to 448 or less: multiplying by
// it and its inverse is exact, and e4m3's own exponent makes up for what a finer scale would gain.
// 1 for zeros.
KV_DEVICE uint32_t ScaleExponent(float most) {
  const uint32_t bits = FloatToBits(most);
  if (bits == 0) return 127;
  const uint32_t exponent =
      (bits >> 23) + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);  // 448 = 1.75 × 2^8
  return exponent > 9 ? exponent - 8 : 1;
}

KV_DEVICE uint32_t HeadCount(const MoveParams& p) {
  return p.block_count * p.tensor_count * p.heads;
}

}  // namespace

KV_KERNEL(kv_gather_fp8, PackParams) {
  for (uint32_t number = blockIdx.x; number < HeadCount(p.move); number += gridDim.x) {
    const Head head(p.move, number);
    float most = 0;
    ForEachElement(p, head, [&](uint64_t at, int64_t) {
      const float value = LoadElement(at, p.type);
      const float magnitude = value < 0 ? -value : value;
      if (IsFinite(value) && magnitude > most) most = magnitude;
    });
    most = BlockMax(most);
    const uint32_t exponent = ScaleExponent(most);
    const float inverse = BitsToFloat((254 - exponent) << 23);
    ForEachElement(p, head, [&](uint64_t at, int64_t i) {
      *At<uint8_t>(head.block, i) = ToFp8(LoadElement(at, p.type) * inverse);
    });
    if (threadIdx.x == 0) At<float>(p.scales)[number] = BitsToFloat(exponent << 23);
  }
}

KV_KERNEL(kv_scatter_fp8, PackParams) {
  for (uint32_t number = blockIdx.x; number < HeadCount(p.move); number += gridDim.x) {
    const Head head(p.move, number);
    const float scale = At<const float>(p.scales)[number];
    ForEachElement(p, head, [&](uint64_t at, int64_t i) {
      StoreElement(at, p.type, FromFp8(*At<const uint8_t>(head.block, i)) * scale);
    });
  }
}

namespace {

// int4: a warp takes a group of a row.
struct Group {
  uint64_t row, codes, meta;  // 0 in `row`: no page
  KV_DEVICE Group(const PackParams& p, uint32_t number, uint32_t groups, uint32_t dim,
                  const Head& head, uint32_t token) {
    const uint32_t group = number % groups;
    row = head.Row(p.move, token);
    if (row != 0) row += int64_t{group} * p.group * p.element_bytes;
    const uint64_t packed = head.block + int64_t{token} * head.tensor->row_bytes;
    codes = packed + group * (p.group / 2);
    meta = packed + dim / 2 + int64_t{group} * 4;
  }
};

// Calls visit(Group) for the groups that this thread's warp takes. A packed row has dim / 2 bytes
// and 4 for each group.
template <typename Visit>
KV_DEVICE void ForEachGroup(const PackParams& p, Visit visit) {
  const uint32_t tokens = p.move.token_end - p.move.token_begin;
  for (uint32_t number = blockIdx.x; number < HeadCount(p.move); number += gridDim.x) {
    const Head head(p.move, number);
    const uint32_t groups = static_cast<uint32_t>(head.tensor->row_bytes) / (p.group / 2 + 4);
    for (uint32_t i = threadIdx.x / 32; i < tokens * groups; i += blockDim.x / 32) {
      visit(Group(p, i, groups, groups * p.group, head, p.move.token_begin + i / groups));
    }
  }
}

}  // namespace

KV_KERNEL(kv_gather_int4, PackParams) {
  ForEachGroup(p, [&](const Group& group) {
    if (group.row == 0) return;
    const uint32_t lane = threadIdx.x % 32;
    float low = kInfinity, high = -kInfinity;
    for (uint32_t i = lane; i < p.group; i += 32) {
      const float value = LoadElement(group.row + i * p.element_bytes, p.type);
      if (!IsFinite(value)) continue;
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    for (uint32_t lanes = 16; lanes > 0; lanes /= 2) {
      const float other_low = __shfl_xor_sync(kWholeWarp, low, lanes);
      const float other_high = __shfl_xor_sync(kWholeWarp, high, lanes);
      low = other_low < low ? other_low : low;
      high = other_high > high ? other_high : high;
    }
    if (low > high) low = high = 0;  // nothing finite
    low += 0.0f;                     // no negative zero: which of two zeros is least is chance
    high += 0.0f;
    const uint16_t zero_bits = ToBf16(low);
    const float zero = FromBf16(zero_bits);
    const uint16_t scale_bits = ToBf16((high - zero) / 15.0f);
    const float scale = FromBf16(scale_bits);
    for (uint32_t i = lane; i < p.group / 2; i += 32) {
      uint32_t codes = 0;
      for (uint32_t half = 0; half < 2; ++half) {
        const float value = LoadElement(group.row + (2 * i + half) * p.element_bytes, p.type);
        float code = scale > 0 ? (value - zero) / scale : 0.0f;
        code = code > 0 ? code : 0.0f;  // NaN too
        code = code < 15.0f ? code : 15.0f;
        // To nearest, ties to even: at 2^23 a float has no fraction.
        const uint32_t rounded = FloatToBits(code + 8388608.0f) & 15;
        codes |= rounded << (4 * half);
      }
      *At<uint8_t>(group.codes, i) = static_cast<uint8_t>(codes);
    }
    if (lane == 0) {
      // The packed row has any alignment: bytes.
      const uint32_t both = uint32_t{scale_bits} | uint32_t{zero_bits} << 16;
      for (uint32_t i = 0; i < 4; ++i)
        *At<uint8_t>(group.meta, i) = static_cast<uint8_t>(both >> (8 * i));
    }
  });
}

KV_KERNEL(kv_scatter_int4, PackParams) {
  ForEachGroup(p, [&](const Group& group) {
    if (group.row == 0) return;
    uint32_t both = 0;
    for (uint32_t i = 0; i < 4; ++i) both |= uint32_t{*At<const uint8_t>(group.meta, i)} << (8 * i);
    const float scale = FromBf16(static_cast<uint16_t>(both));
    const float zero = FromBf16(static_cast<uint16_t>(both >> 16));
    for (uint32_t i = threadIdx.x % 32; i < p.group / 2; i += 32) {
      const uint32_t codes = *At<const uint8_t>(group.codes, i);
      for (uint32_t half = 0; half < 2; ++half) {
        const float code = static_cast<float>(codes >> (4 * half) & 15);
        StoreElement(group.row + (2 * i + half) * p.element_bytes, p.type, zero + code * scale);
      }
    }
  });
}

}  // namespace kvarve
