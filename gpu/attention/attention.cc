#include "gpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/attention/attention_request.h"
#include "gpu/attention/cpu_kernel.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// With the head's and the token's strides of a layer's K, or V, in a block.
PagedTensor InBlock(const BlockLayout& layout, uint64_t row_bytes) {
  PagedTensor tensor;
  tensor.token_stride = static_cast<int64_t>(row_bytes);
  tensor.head_stride = static_cast<int64_t>(layout.tokens * row_bytes);
  return tensor;
}

}  // namespace

AttentionPages BlockPages(const BlockLayout& layout, uint32_t layer, ElementType type) {
  const bool is_mla = layout.v_dim == 0;
  AttentionPages pages{.k = InBlock(layout, layout.KRowBytes()),
                       .type = type,
                       .page_tokens = layout.tokens,
                       .kv_heads = layout.kv_heads,
                       .k_dim = layout.k_dim,
                       .is_blocks = true,
                       .k_offset = static_cast<int64_t>(layout.KOffset(layer, 0, 0))};
  pages.v = is_mla ? pages.k : InBlock(layout, layout.VRowBytes());
  pages.v_dim = is_mla ? kMlaLatent : layout.v_dim;
  pages.v_offset = is_mla ? pages.k_offset : static_cast<int64_t>(layout.VOffset(layer, 0, 0));
  return pages;
}

absl::StatusOr<PagedAttention> PagedAttention::Create(
    const AttentionPages& pages, const AttentionOptions& options,
    std::span<const AttentionSequence> sequences) {
  KV_RETURN_IF_ERROR(CheckAttention(pages, options, sequences));
  PagedAttention result;
  result.pages_ = pages;
  result.options_ = options;
  result.sequences_.assign(sequences.begin(), sequences.end());
  size_t rows = 0, states = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const AttentionSequence& sequence = sequences[s];
    uint32_t splits = 0;
    for (const KvRange& split : SplitsOf(options, sequence)) {
      for (uint32_t head = 0; head < pages.kv_heads; ++head)
        result.items_.push_back({static_cast<uint32_t>(s), head, splits, split.begin, split.end});
      ++splits;
    }
    result.first_row_.push_back(rows);
    result.first_state_.push_back(states);
    result.splits_.push_back(splits);
    rows += sequence.q_tokens * options.q_heads;
    states += splits * sequence.q_tokens * options.q_heads;
  }
  result.outs_.resize(states * pages.v_dim);
  result.lses_.resize(states);
  return result;
}

void PagedAttention::Run(size_t index, const float* q) {
  const Item& item = items_[index];
  const AttentionSequence& sequence = sequences_[item.sequence];
  const uint32_t group = options_.q_heads / pages_.kv_heads;
  const uint32_t rows = sequence.q_tokens * group;
  const uint32_t k_dim = pages_.k_dim, v_dim = pages_.v_dim;
  const float scale = options_.scale * pages_.k_scale;
  std::vector<float> scaled(rows * size_t{k_dim}), out(rows * size_t{v_dim}), lse(rows);
  std::vector<int64_t> first(rows), last(rows);
  // Of the sequence's rows [token][query head], those of this KV head.
  const auto row_of = [&](uint32_t row) {
    return row / group * size_t{options_.q_heads} + item.head * group + row % group;
  };
  for (uint32_t row = 0; row < rows; ++row) {
    const float* const from = q + (first_row_[item.sequence] + row_of(row)) * k_dim;
    for (uint32_t d = 0; d < k_dim; ++d) scaled[row * size_t{k_dim} + d] = from[d] * scale;
    const KvRange attended = Attended(options_, sequence, row / group);
    first[row] = attended.begin, last[row] = attended.end;
  }
  Attend({.pages = &pages_,
          .table = sequence.table.data(),
          .blocks = sequence.blocks.data(),
          .head = item.head,
          .begin = item.begin,
          .end = item.end,
          .rows = rows,
          .q = scaled.data(),
          .first = first.data(),
          .last = last.data(),
          .soft_cap = options_.soft_cap,
          .out = out.data(),
          .lse = lse.data()});
  const size_t split_rows = sequence.q_tokens * size_t{options_.q_heads};
  const size_t state = first_state_[item.sequence] + item.split * split_rows;
  for (uint32_t row = 0; row < rows; ++row) {
    lses_[state + row_of(row)] = lse[row];
    std::copy_n(&out[row * size_t{v_dim}], v_dim, &outs_[(state + row_of(row)) * v_dim]);
  }
}

void PagedAttention::Finish(std::span<const float> sinks, float* out, float* lse) const {
  KV_CHECK(sinks.empty() || sinks.size() == options_.q_heads);
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const size_t rows = sequences_[s].q_tokens * size_t{options_.q_heads};
    std::vector<AttentionState> states;
    for (uint32_t split = 0; split < splits_[s]; ++split) {
      const size_t at = first_state_[s] + split * rows;
      states.push_back({&outs_[at * pages_.v_dim], &lses_[at]});
    }
    std::vector<float> sink_of_row;
    for (size_t row = 0; row < rows && !sinks.empty(); ++row) {
      sink_of_row.push_back(sinks[row % options_.q_heads]);
    }
    MergeStates(states, rows, pages_.v_dim, sink_of_row, out + first_row_[s] * pages_.v_dim,
                lse + first_row_[s]);
  }
}

void MergeStates(std::span<const AttentionState> states, size_t rows, size_t dim,
                 std::span<const float> sinks, float* out, float* lse) {
  std::vector<double> weights(states.size()), sums(dim);
  for (size_t row = 0; row < rows; ++row) {
    float largest = sinks.empty() ? kNothing : sinks[row];
    bool is_nan = false;
    for (const AttentionState& state : states) {
      largest = std::max(largest, state.lse[row]);
      is_nan |= std::isnan(state.lse[row]);
    }
    if (is_nan) largest = std::numeric_limits<float>::quiet_NaN();
    double total =
        sinks.empty() || largest == kNothing ? 0 : std::exp(double{sinks[row]} - largest);
    for (size_t i = 0; i < states.size(); ++i) {
      const float part = states[i].lse[row];
      weights[i] = part == kNothing ? 0 : std::exp(double{part} - largest);
      total += weights[i];
    }
    // In double a product of two floats is exact, so that the order of two parts cannot matter.
    std::ranges::fill(sums, 0.0);
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].lse[row] == kNothing) continue;  // 0 is no shield from what is not finite
      const float weight = static_cast<float>(weights[i] / total);
      const float* const part = states[i].out + row * dim;
      for (size_t d = 0; d < dim; ++d) sums[d] += double{weight} * part[d];
    }
    for (size_t d = 0; d < dim; ++d) out[row * dim + d] = static_cast<float>(sums[d]);
    lse[row] = total == 0 ? kNothing : static_cast<float>(largest + std::log(total));
  }
}

float NaturalLse(float lse, LseBase base) {
  return base == LseBase::kTwo ? static_cast<float>(lse * 0.69314718055994531) : lse;
}

}  // namespace kvarve
