// Paged attention by online softmax (arXiv 1805.02867) over the pages of a block table (arXiv
// 2309.06180), one block a KV head of a split of a sequence; and the merging of splits, or of
// tiers, by their log-sum-exps (arXiv 2311.01282).
//
// A block goes through its KV tokens tile by tile. The rows of the next tile are on their way to
// shared memory (cp.async) while this one is computed: (1) `kLanes` threads compute a token's
// logits of all query rows, having copied its K row themselves; (2) a warp a query row turns them
// into weights against the largest logit so far; (3) each thread adds four elements of some tokens'
// V to all query rows' sums. Sums of one row over the tokens' groups of threads meet at the end.
#include "gpu/kernels/numbers.cuh"
#include "gpu/kernels/params.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {
namespace {

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.69314718055994531f;
constexpr float kUnattended = -1;  // in a weight's place: 0 is no shield from a NaN
static_assert(kAttentionRows == kBlockThreads / 32, "a warp a query row");

struct alignas(16) Floats4 {
  float of[4];
};

// An element of the cache.
struct Fp32 {
  using Bits = uint32_t;
  KV_DEVICE static float Value(Bits bits) { return BitsToFloat(bits); }
};
struct Fp16 {
  using Bits = uint16_t;
  KV_DEVICE static float Value(Bits bits) { return FromF16(bits); }
};
struct Bf16 {
  using Bits = uint16_t;
  KV_DEVICE static float Value(Bits bits) { return FromBf16(bits); }
};
struct Fp8 {
  using Bits = uint8_t;
  KV_DEVICE static float Value(Bits bits) { return FromFp8(bits); }
};

// Four elements at once.
template <typename Cache>
KV_DEVICE void LoadQuad(const void* at, float (&values)[4]) {
  using Bits = typename Cache::Bits;
  struct alignas(sizeof(Bits) * 4) Quad {
    Bits of[4];
  };
  const Quad quad = *static_cast<const Quad*>(at);
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) values[i] = Cache::Value(quad.of[i]);
}

// How a block shares a tile; `k_dim` and `v_dim` are what it has room for.
template <typename CacheType, uint32_t k_dim, uint32_t v_dim>
struct Tile {
  using Cache = CacheType;
  static constexpr uint32_t kElement = sizeof(typename Cache::Bits);
  static constexpr bool kIsMla = v_dim < k_dim;
  static constexpr uint32_t kDim = k_dim;
  static constexpr uint32_t kWords = k_dim * kElement / 16;  // of 16 bytes, as they are copied
  // Threads a token: two words of K each, as far as that is possible.
  static constexpr uint32_t kLanes = kWords <= 8 ? 4 : kWords <= 16 ? 8 : kWords <= 32 ? 16 : 32;
  static constexpr uint32_t kTokens = kBlockThreads / kLanes;
  // The threads of neighbouring tokens read from other banks.
  static constexpr uint32_t kRead = kLanes * 4 * kElement;  // bytes at once of a token
  static constexpr uint32_t kKeyPitch = k_dim * kElement + (kRead < 128 ? kRead : 0);
  static constexpr uint32_t kValuePitch = kIsMla ? kKeyPitch : v_dim * kElement;
  static constexpr uint32_t kValuesAt = kIsMla ? 0 : kTokens * kKeyPitch;
  static constexpr uint32_t kBytes = kTokens * kKeyPitch + (kIsMla ? 0 : kTokens * kValuePitch);
  static constexpr uint32_t kQuads = v_dim / 4;  // threads a V row, four elements each
  static constexpr uint32_t kGroups = kBlockThreads / kQuads;
};

// KV tokens that a query row attends, of an item's.
struct Range {
  uint32_t first, last;
};

// What a block has in shared memory.
struct Shared {
  Floats4* q;         // [row][Tile::kDim], scaled
  unsigned char* kv;  // [2][Tile::kBytes]
  Floats4* weights;   // [token][row]: logits first
  Floats4* of_row;    // [row]: a factor
  Range* ranges;      // [row]; of rows that the item lacks the last one's
  KV_DEVICE float* Weights(uint32_t token) const { return weights[2 * token].of; }
};

KV_DEVICE Range Attended(const AttentionParams& p, const AttentionItem& item, uint32_t row) {
  const int64_t end = item.position + (item.row + row) / p.group + 1;
  const int64_t begin = end - p.window;
  Range range{item.begin, item.end};
  if (end < int64_t{item.end}) range.last = end > int64_t{item.begin} ? end : item.begin;
  if (p.window > 0 && begin > int64_t{item.begin})
    range.first = begin < int64_t{range.last} ? begin : range.last;
  return range;
}

template <typename T>
KV_DEVICE void LoadQueries(const AttentionParams& p, const AttentionItem& item,
                           const Shared& shared) {
  for (uint32_t i = threadIdx.x; i < kAttentionRows * p.k_dim; i += kBlockThreads) {
    const uint32_t row = i / p.k_dim, d = i % p.k_dim;
    float value = 0;
    if (row < item.rows) {
      const uint32_t token = (item.row + row) / p.group, q_head = (item.row + row) % p.group;
      const uint64_t at = p.q + (item.q_token + token) * p.q_token_stride +
                          (item.head * p.group + q_head) * p.q_head_stride;
      value = LoadElement(at + d * NumberBytes(p.q_type), p.q_type) * p.scale;
    }
    shared.q[row * (T::kDim / 4) + d / 4].of[d % 4] = value;
  }
}

// 16 bytes of a row; at any address element by element.
template <typename Bits>
KV_DEVICE void CopyWord(unsigned char* to, uint64_t from, bool wide) {
  if (wide) {
    CopyAsync<16>(to, At<const void>(from));
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 16 / sizeof(Bits); ++i)
    reinterpret_cast<Bits*>(to)[i] = At<const Bits>(from)[i];
}

// This thread's share of the rows of the tile at KV token `begin`: of its own token.
template <typename T>
KV_DEVICE void CopyTile(const AttentionParams& p, const AttentionItem& item, uint32_t begin,
                        unsigned char* to) {
  using Bits = typename T::Cache::Bits;
  const uint32_t slot = threadIdx.x / T::kLanes, lane = threadIdx.x % T::kLanes;
  const uint32_t token = begin + slot;
  if (token < item.end) {
    const int64_t page = At<const int32_t>(p.page_ids)[item.pages + token / p.page_tokens];
    const int64_t within = token % p.page_tokens;
    const uint64_t k =
        p.k.base + page * p.k.page_stride + item.head * p.k.head_stride + within * p.k.token_stride;
    for (uint32_t word = lane; word < p.k_dim * T::kElement / 16; word += T::kLanes)
      CopyWord<Bits>(to + slot * T::kKeyPitch + word * 16, k + word * 16, p.wide != 0);
    if constexpr (!T::kIsMla) {
      const uint64_t v = p.v.base + page * p.v.page_stride + item.head * p.v.head_stride +
                         within * p.v.token_stride;
      unsigned char* const values = to + T::kValuesAt + slot * T::kValuePitch;
      for (uint32_t word = lane; word < p.v_dim * T::kElement / 16; word += T::kLanes)
        CopyWord<Bits>(values + word * 16, v + word * 16, p.wide != 0);
    }
  }
  CopyAsyncCommit();
}

// Sums each query row's value over the threads of a token: of so many each thread keeps fewer.
template <uint32_t lanes, uint32_t count>
KV_DEVICE void SumOverLanes(float (&values)[kAttentionRows]) {
  if constexpr (lanes > 1) {
    constexpr uint32_t kStep = lanes / 2, kKept = count > 1 ? count / 2 : 1;
    const bool upper = (threadIdx.x & kStep) != 0;
#pragma unroll
    for (uint32_t i = 0; i < kKept; ++i) {
      const float kept = upper ? values[i + count - kKept] : values[i];
      const float sent = upper ? values[i] : values[i + count - kKept];
      values[i] = kept + __shfl_xor_sync(kWholeWarp, sent, kStep);
    }
    SumOverLanes<kStep, kKept>(values);
  }
}

// (1) The logits of this thread's token, of all query rows.
template <typename T>
KV_DEVICE void Logits(const AttentionParams& p, const Shared& shared, const unsigned char* tile,
                      uint32_t tokens) {
  const uint32_t slot = threadIdx.x / T::kLanes, lane = threadIdx.x % T::kLanes;
  float sums[kAttentionRows] = {};
  if (slot < tokens) {
    const unsigned char* const row_of_k = tile + slot * T::kKeyPitch;
#pragma unroll 2
    for (uint32_t quad = lane; quad < p.k_dim / 4; quad += T::kLanes) {
      float key[4];
      LoadQuad<typename T::Cache>(row_of_k + quad * 4 * T::kElement, key);
#pragma unroll
      for (uint32_t row = 0; row < kAttentionRows; ++row) {
        const Floats4 q = shared.q[row * (T::kDim / 4) + quad];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) sums[row] = Fma(key[i], q.of[i], sums[row]);
      }
    }
  }
  SumOverLanes<T::kLanes, kAttentionRows>(sums);
  constexpr uint32_t kHeld = T::kLanes < kAttentionRows ? kAttentionRows / T::kLanes : 1;
  constexpr uint32_t kAlike = T::kLanes > kAttentionRows ? T::kLanes / kAttentionRows : 1;
  if (slot >= tokens || lane % kAlike != 0) return;
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) shared.Weights(slot)[lane / kAlike * kHeld + i] = sums[i];
}

KV_DEVICE float Exp(float x) { return Exp2(x * kLog2E); }

KV_DEVICE float Capped(float logit, float cap) {
  if (cap == 0) return logit;
  const float e = Exp(fabsf(logit) / cap * -2.0f);
  const float size = (1.0f - e) / (1.0f + e) * cap;
  return logit < 0 ? -size : size;
}

// The softmax of this warp's query row so far.
struct RowState {
  float largest = -kInfinity;
  float sum = 0;
};

// (2) Weights in the logits' place, and by what the sums so far shrink.
template <typename T>
KV_DEVICE void Weigh(const AttentionParams& p, const Shared& shared, uint32_t begin,
                     uint32_t tokens, RowState* state) {
  const uint32_t row = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Range range = shared.ranges[row];
  constexpr uint32_t kTimes = (T::kTokens + 31) / 32;
  float logits[kTimes], largest = state->largest, sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kTimes; ++i) {
    const uint32_t slot = lane + 32 * i, token = begin + slot;
    logits[i] = -kInfinity;
    if (slot < tokens && token >= range.first && token < range.last)
      logits[i] = Capped(shared.Weights(slot)[row], p.soft_cap);
    largest = fmaxf(largest, logits[i]);  // which leaves NaN out: it comes in by its weight
  }
  largest = WarpMax(largest);
  const float base = largest == -kInfinity ? 0 : largest;
#pragma unroll
  for (uint32_t i = 0; i < kTimes; ++i) {
    const uint32_t slot = lane + 32 * i, token = begin + slot;
    if (slot >= tokens) continue;
    const bool attended = token >= range.first && token < range.last;
    const float weight = attended ? Exp(logits[i] - base) : kUnattended;
    shared.Weights(slot)[row] = weight;
    if (attended) sum += weight;
  }
  const float factor = Exp(state->largest - base);
  state->sum = state->sum * factor + WarpSum(sum);
  state->largest = largest;
  if (lane == 0) shared.of_row[row / 4].of[row % 4] = factor;
}

// This thread's four elements of V's weighted sums, of all query rows.
struct Sums {
  float of[kAttentionRows][4] = {};
};

// (3) `all`: every query row attends every token of the tile.
template <typename T, bool all>
KV_DEVICE void AddValues(const Shared& shared, const unsigned char* values, uint32_t tokens,
                         Sums* sums) {
  const uint32_t quad = threadIdx.x % T::kQuads;
#pragma unroll 1
  for (uint32_t slot = threadIdx.x / T::kQuads; slot < tokens; slot += T::kGroups) {
    float value[4];
    LoadQuad<typename T::Cache>(values + slot * T::kValuePitch + quad * 4 * T::kElement, value);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const Floats4 weights = shared.weights[2 * slot + half];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        if (!all && weights.of[i] < 0) continue;
#pragma unroll
        for (uint32_t d = 0; d < 4; ++d)
          sums->of[4 * half + i][d] = Fma(weights.of[i], value[d], sums->of[4 * half + i][d]);
      }
    }
  }
}

KV_DEVICE void Shrink(const Shared& shared, Sums* sums) {
#pragma unroll
  for (uint32_t row = 0; row < kAttentionRows; ++row) {
    const float factor = shared.of_row[row / 4].of[row % 4];
#pragma unroll
    for (uint32_t d = 0; d < 4; ++d) sums->of[row][d] *= factor;
  }
}

// The sums of all groups of threads, in the first one. In pairs, through the tiles' memory.
template <typename T>
KV_DEVICE void SumOverGroups(const Shared& shared, Sums* sums) {
  const uint32_t group = threadIdx.x / T::kQuads, quad = threadIdx.x % T::kQuads;
  auto* const there = reinterpret_cast<Floats4*>(shared.kv);
#pragma unroll 1
  for (uint32_t half = T::kGroups / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group >= half && group < 2 * half) {
#pragma unroll
      for (uint32_t row = 0; row < kAttentionRows; ++row) {
        Floats4 part;
#pragma unroll
        for (uint32_t d = 0; d < 4; ++d) part.of[d] = sums->of[row][d];
        there[((group - half) * kAttentionRows + row) * T::kQuads + quad] = part;
      }
    }
    __syncthreads();
    if (group < half) {
#pragma unroll
      for (uint32_t row = 0; row < kAttentionRows; ++row) {
        const Floats4 part = there[(group * kAttentionRows + row) * T::kQuads + quad];
#pragma unroll
        for (uint32_t d = 0; d < 4; ++d) sums->of[row][d] += part.of[d];
      }
    }
  }
}

KV_DEVICE uint64_t OutRow(const AttentionParams& p, const AttentionItem& item, uint32_t row) {
  const uint32_t token = (item.row + row) / p.group, q_head = (item.row + row) % p.group;
  return item.out_row + uint64_t{token} * p.q_heads + item.head * p.group + q_head;
}

KV_DEVICE void StoreQuad(uint64_t at, uint32_t type, const float (&values)[4]) {
  if (type == kF32) {
    *At<Floats4>(at) = {values[0], values[1], values[2], values[3]};
    return;
  }
  struct alignas(8) Halves {
    uint16_t of[4];
  } halves;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    halves.of[i] = type == kBf16 ? ToBf16(values[i]) : ToF16(values[i]);
  *At<Halves>(at) = halves;
}

template <typename T>
KV_DEVICE void WriteItem(const AttentionParams& p, const AttentionItem& item, const Shared& shared,
                         const RowState& state, Sums* sums) {
  const uint32_t row_of_warp = threadIdx.x / 32;
  SumOverGroups<T>(shared, sums);
  if (threadIdx.x % 32 == 0) {
    const bool nothing = state.sum == 0;
    shared.of_row[row_of_warp / 4].of[row_of_warp % 4] = nothing ? 0 : p.v_scale / state.sum;
    if (row_of_warp < item.rows) {
      At<float>(p.lse)[OutRow(p, item, row_of_warp)] =
          nothing ? -kInfinity : state.largest + Log2(state.sum) * kLn2;
    }
  }
  __syncthreads();
  Shrink(shared, sums);
  const uint32_t quad = threadIdx.x;  // of the first group
  if (quad >= p.v_dim / 4) return;
  const uint32_t bytes = NumberBytes(p.out_type);
#pragma unroll
  for (uint32_t row = 0; row < kAttentionRows; ++row) {
    if (row >= item.rows) continue;
    StoreQuad(p.out + (OutRow(p, item, row) * p.v_dim + quad * 4) * bytes, p.out_type,
              sums->of[row]);
  }
}

template <typename T>
KV_DEVICE void AttendItem(const AttentionParams& p, const AttentionItem& item,
                          const Shared& shared) {
  // Rows that the item lacks have a zero for q and are written nowhere.
  if (threadIdx.x < kAttentionRows) {
    const uint32_t row = threadIdx.x < item.rows ? threadIdx.x : item.rows - 1;
    shared.ranges[threadIdx.x] = Attended(p, item, row);
  }
  RowState state;
  Sums sums;
  LoadQueries<T>(p, item, shared);
  CopyTile<T>(p, item, item.begin, shared.kv);
  uint32_t stage = 0;
  for (uint32_t begin = item.begin; begin < item.end; begin += T::kTokens, stage ^= 1) {
    const uint32_t tokens = item.end - begin < T::kTokens ? item.end - begin : T::kTokens;
    const unsigned char* const tile = shared.kv + stage * T::kBytes;
    __syncthreads();  // q and ranges are there, and nobody reads the other stage or weights any
                      // more
    CopyTile<T>(p, item, begin + tokens, shared.kv + (stage ^ 1) * T::kBytes);
    CopyAsyncWait<1>();
    __syncwarp();  // K rows are copied by threads of the warp that reads them
    Logits<T>(p, shared, tile, tokens);
    __syncthreads();
    Weigh<T>(p, shared, begin, tokens, &state);
    __syncthreads();
    Shrink(shared, &sums);
    if (threadIdx.x % T::kQuads >= p.v_dim / 4) continue;
    const unsigned char* const values = tile + T::kValuesAt;
    // The last query token's window begins last, the first one's KV ends first.
    if (begin >= shared.ranges[kAttentionRows - 1].first &&
        begin + tokens <= shared.ranges[0].last) {
      AddValues<T, true>(shared, values, tokens, &sums);
    } else {
      AddValues<T, false>(shared, values, tokens, &sums);
    }
  }
  CopyAsyncWait<0>();
  WriteItem<T>(p, item, shared, state, &sums);
}

template <typename T>
KV_DEVICE void Attend(const AttentionParams& p) {
  KV_SHARED_ARRAY(Floats4, q, kAttentionRows * T::kDim / 4);
  KV_SHARED_ARRAY(Floats4, kv, 2 * T::kBytes / 16);
  KV_SHARED_ARRAY(Floats4, weights, T::kTokens * kAttentionRows / 4);
  KV_SHARED_ARRAY(Floats4, of_row, kAttentionRows / 4);
  KV_SHARED_ARRAY(Range, ranges, kAttentionRows);
  KV_SHARED_ARRAY(AttentionItem, item, 1);
  const Shared shared{q, reinterpret_cast<unsigned char*>(kv), weights, of_row, ranges};
  for (uint32_t i = blockIdx.x; i < p.item_count; i += gridDim.x) {
    if (threadIdx.x == 0) *item = At<const AttentionItem>(p.items)[i];
    __syncthreads();
    AttendItem<T>(p, *item, shared);
    __syncthreads();  // before the next item, its queries and rows
  }
}

}  // namespace

#define KV_ATTENTION(name, Cache, k_dim, v_dim) \
  KV_KERNEL_OF(name, AttentionParams, 2) { Attend<Tile<Cache, k_dim, v_dim>>(p); }
KV_ATTENTION(kv_attention_fp32_64, Fp32, 64, 64)
KV_ATTENTION(kv_attention_fp32_128, Fp32, 128, 128)
KV_ATTENTION(kv_attention_fp32_256, Fp32, 256, 256)
KV_ATTENTION(kv_attention_fp16_64, Fp16, 64, 64)
KV_ATTENTION(kv_attention_fp16_128, Fp16, 128, 128)
KV_ATTENTION(kv_attention_fp16_256, Fp16, 256, 256)
KV_ATTENTION(kv_attention_bf16_64, Bf16, 64, 64)
KV_ATTENTION(kv_attention_bf16_128, Bf16, 128, 128)
KV_ATTENTION(kv_attention_bf16_256, Bf16, 256, 256)
KV_ATTENTION(kv_attention_fp8_64, Fp8, 64, 64)
KV_ATTENTION(kv_attention_fp8_128, Fp8, 128, 128)
KV_ATTENTION(kv_attention_fp8_256, Fp8, 256, 256)
KV_ATTENTION(kv_attention_bf16_mla, Bf16, 576, 512)

// A warp a row. Products are rounded before they are added, so that the order of two parts does not
// matter.
KV_KERNEL(kv_merge_states, MergeParams) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t i = blockIdx.x; i < p.item_count; i += gridDim.x) {
    const MergeItem& item = At<const MergeItem>(p.items)[i];
    if (warp >= item.rows) continue;
    const MergePart* const parts = At<const MergePart>(p.parts) + item.first_part;
    const uint32_t row = item.row + warp;
    const float sink = p.sinks == 0 ? -kInfinity : At<const float>(p.sinks)[row % p.q_heads];
    float largest = sink, total = 0;
    for (uint32_t k = lane; k < item.part_count; k += 32)
      largest = fmaxf(largest, At<const float>(p.base + parts[k].lse)[row]);
    largest = WarpMax(largest);
    for (uint32_t k = lane; k < item.part_count; k += 32) {
      const float lse = At<const float>(p.base + parts[k].lse)[row];
      if (lse != -kInfinity) total += Exp(lse - largest);
    }
    total = WarpSum(total);
    if (sink != -kInfinity) total += Exp(sink - largest);
    const uint32_t bytes = NumberBytes(p.out_type);
    const uint64_t out = p.out + (item.out_row + warp) * p.dim * bytes;
    for (uint32_t d = lane; d < p.dim; d += 32) {
      float sum = 0;
      for (uint32_t k = 0; k < item.part_count; ++k) {
        const float lse = At<const float>(p.base + parts[k].lse)[row];
        if (lse == -kInfinity) continue;  // of nothing, whatever its output
        sum += Exp(lse - largest) / total *
               At<const float>(p.base + parts[k].out)[uint64_t{row} * p.dim + d];
      }
      StoreElement(out + d * bytes, p.out_type, sum);
    }
    __syncwarp();  // the answer may take the first part's place
    if (lane == 0) {
      At<float>(p.lse)[item.out_row + warp] =
          total == 0 ? -kInfinity : largest + Log2(total) * kLn2;
    }
  }
}

}  // namespace kvarve
