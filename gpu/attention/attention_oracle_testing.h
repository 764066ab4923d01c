// Attention by its definition, in double: softmax over all logits at once, nothing tiled, merged or
// vectorised. And pages to try it on.
//
// THREADS: any.
#ifndef KVARVE_GPU_ATTENTION_ATTENTION_ORACLE_TESTING_H_
#define KVARVE_GPU_ATTENTION_ATTENTION_ORACLE_TESTING_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gpu/attention/attention.h"

namespace kvarve::testing {

enum class AttentionLayout { kHnd, kNhd, kInterleaved, kWithGaps };
inline constexpr AttentionLayout kAttentionLayouts[] = {
    AttentionLayout::kHnd, AttentionLayout::kNhd, AttentionLayout::kInterleaved,
    AttentionLayout::kWithGaps};

struct PageShape {
  ElementType type = ElementType::kBf16;
  AttentionLayout layout = AttentionLayout::kHnd;
  int64_t pages = 8;
  uint32_t page_tokens = 16, kv_heads = 2, k_dim = 64;
};

// Pages of random numbers in [-1, 1]; fp8 ones with scales.
class TestPages {
 public:
  TestPages(const PageShape& shape, uint64_t seed);

  const AttentionPages& pages() const { return pages_; }
  AttentionPages& pages() { return pages_; }
  std::span<const std::byte> memory() const { return memory_; }
  float K(int64_t page, uint32_t head, uint32_t token, uint32_t d) const;
  float V(int64_t page, uint32_t head, uint32_t token, uint32_t d) const;
  // All elements of a row of K or V become the number's nearest code.
  void SetRow(bool is_v, int64_t page, uint32_t head, uint32_t token, float value);
  // Every element of the page is NaN (fp8: its NaN).
  void Poison(int64_t page);

 private:
  float Number(const PagedTensor& tensor, int64_t page, uint32_t head, uint32_t token,
               uint32_t d) const;
  void SetNumber(std::byte* at, float value);
  AttentionPages pages_;
  std::vector<std::byte> memory_;
};

struct AttentionAnswer {
  std::vector<double> out;  // [tokens][q_heads][v_dim]
  std::vector<double> lse;  // [tokens][q_heads]
  double largest_v = 0;     // of what was attended, dequantised
};
AttentionAnswer Attention(const TestPages& pages, const AttentionOptions& options,
                          std::span<const AttentionSequence> sequences,
                          std::span<const float> sinks, const std::vector<float>& q);

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_ATTENTION_ATTENTION_ORACLE_TESTING_H_
