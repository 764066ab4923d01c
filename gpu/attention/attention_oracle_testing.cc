#include "gpu/attention/attention_oracle_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu/kernels/packers_oracle_testing.h"

namespace kvarve::testing {
namespace {

NumberType NumberOf(ElementType type) {
  return type == ElementType::kFp32 ? kF32 : type == ElementType::kFp16 ? kF16 : kBf16;
}

}  // namespace

TestPages::TestPages(const PageShape& shape, uint64_t seed) {
  const bool is_mla = shape.k_dim == kMlaDim;
  pages_.type = shape.type, pages_.pages = shape.pages;
  pages_.page_tokens = shape.page_tokens, pages_.kv_heads = shape.kv_heads;
  pages_.k_dim = shape.k_dim, pages_.v_dim = is_mla ? kMlaLatent : shape.k_dim;
  if (shape.type == ElementType::kFp8E4m3) pages_.k_scale = 0.75f, pages_.v_scale = 1.5f;
  const int64_t element = ElementBytes(shape.type), heads = shape.kv_heads;
  const int64_t tokens = shape.page_tokens;
  int64_t row = shape.k_dim * element;
  const bool interleaved = shape.layout == AttentionLayout::kInterleaved && !is_mla;
  if (interleaved) row *= 2;
  if (shape.layout == AttentionLayout::kWithGaps) row += 3 * element;  // rows at odd places
  const bool nhd = shape.layout == AttentionLayout::kNhd;
  PagedTensor tensor;
  tensor.token_stride = nhd ? heads * row : row;
  tensor.head_stride = nhd ? row : tokens * row;
  tensor.page_stride = heads * tokens * row + (shape.layout == AttentionLayout::kWithGaps ? 52 : 0);
  tensor.bytes = tensor.page_stride * shape.pages;
  const bool two = !is_mla && !interleaved;
  memory_.resize((two ? 2 : 1) * tensor.bytes);
  tensor.base = memory_.data();
  pages_.k = pages_.v = tensor;
  if (interleaved) {
    pages_.v.base += row / 2;
    pages_.v.bytes -= row / 2;
  }
  if (two) pages_.v.base += tensor.bytes;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> number(-1, 1);
  for (int64_t page = 0; page < shape.pages; ++page) {
    for (uint32_t head = 0; head < heads; ++head) {
      for (uint32_t token = 0; token < tokens; ++token) {
        for (uint32_t d = 0; d < pages_.k_dim; ++d) {
          SetNumber(pages_.k.Row(page, head, token) + d * element, number(random));
          if (!is_mla) SetNumber(pages_.v.Row(page, head, token) + d * element, number(random));
        }
      }
    }
  }
}

void TestPages::SetNumber(std::byte* at, float value) {
  if (pages_.type == ElementType::kFp8E4m3) {
    *at = static_cast<std::byte>(std::isnan(value) ? 0x7f : NearestFp8(value));
  } else {
    StoreNumber(at, NumberOf(pages_.type), value);
  }
}

float TestPages::Number(const PagedTensor& tensor, int64_t page, uint32_t head, uint32_t token,
                        uint32_t d) const {
  const std::byte* at = tensor.Row(page, head, token) + d * ElementBytes(pages_.type);
  if (pages_.type == ElementType::kFp8E4m3) return Fp8Value(static_cast<uint8_t>(*at));
  return LoadNumber(at, NumberOf(pages_.type));
}

float TestPages::K(int64_t page, uint32_t head, uint32_t token, uint32_t d) const {
  return Number(pages_.k, page, head, token, d);
}
float TestPages::V(int64_t page, uint32_t head, uint32_t token, uint32_t d) const {
  return Number(pages_.v, page, head, token, d);
}

void TestPages::SetRow(bool is_v, int64_t page, uint32_t head, uint32_t token, float value) {
  std::byte* const row = (is_v ? pages_.v : pages_.k).Row(page, head, token);
  for (uint32_t d = 0; d < (is_v ? pages_.v_dim : pages_.k_dim); ++d) {
    SetNumber(row + d * ElementBytes(pages_.type), value);
  }
}

void TestPages::Poison(int64_t page) {
  for (uint32_t head = 0; head < pages_.kv_heads; ++head) {
    for (uint32_t token = 0; token < pages_.page_tokens; ++token) {
      SetRow(false, page, head, token, std::nanf(""));
      SetRow(true, page, head, token, std::nanf(""));
    }
  }
}

AttentionAnswer Attention(const TestPages& pages, const AttentionOptions& options,
                          std::span<const AttentionSequence> sequences,
                          std::span<const float> sinks, const std::vector<float>& q) {
  const AttentionPages& shape = pages.pages();
  const uint32_t group = options.q_heads / shape.kv_heads;
  AttentionAnswer answer;
  size_t row = 0;
  for (const AttentionSequence& sequence : sequences) {
    for (uint32_t token = 0; token < sequence.q_tokens; ++token) {
      for (uint32_t q_head = 0; q_head < options.q_heads; ++q_head, ++row) {
        const uint32_t head = q_head / group;
        const int64_t position = sequence.q_position + token;
        std::vector<std::pair<double, int64_t>> attended;  // logit, KV token
        for (int64_t kv = 0; kv < sequence.kv_tokens; ++kv) {
          const int64_t at = sequence.kv_position + kv;
          if (at > position || (options.window > 0 && at <= position - options.window)) continue;
          const int64_t page = sequence.table[kv / shape.page_tokens];
          double dot = 0;
          for (uint32_t d = 0; d < shape.k_dim; ++d) {
            dot += double{q[row * shape.k_dim + d]} * shape.k_scale *
                   pages.K(page, head, kv % shape.page_tokens, d);
          }
          double logit = dot * options.scale;
          if (options.soft_cap > 0) logit = options.soft_cap * std::tanh(logit / options.soft_cap);
          attended.emplace_back(logit, kv);
        }
        double largest = sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[q_head];
        for (const auto& [logit, kv] : attended) largest = std::max(largest, logit);
        double total = sinks.empty() ? 0 : std::exp(sinks[q_head] - largest);
        std::vector<double> out(shape.v_dim, 0.0);
        for (const auto& [logit, kv] : attended) {
          const double weight = std::exp(logit - largest);
          total += weight;
          const int64_t page = sequence.table[kv / shape.page_tokens];
          for (uint32_t d = 0; d < shape.v_dim; ++d) {
            const double v = double{shape.v_scale} * pages.V(page, head, kv % shape.page_tokens, d);
            out[d] += weight * v;
            answer.largest_v = std::max(answer.largest_v, std::fabs(v));
          }
        }
        for (double& value : out) value = total == 0 ? 0 : value / total;
        answer.out.insert(answer.out.end(), out.begin(), out.end());
        answer.lse.push_back(largest + (total == 0 ? 0 : std::log(total)));
      }
    }
  }
  return answer;
}

}  // namespace kvarve::testing
