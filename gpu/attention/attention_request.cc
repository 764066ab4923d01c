#include "gpu/attention/attention_request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

absl::Status CheckOptions(const AttentionPages& pages, const AttentionOptions& options) {
  if (options.q_heads == 0 || options.q_heads % pages.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d query heads over %d KV heads: must be a multiple", options.q_heads, pages.kv_heads));
  }
  if (options.split_tokens % pages.page_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("a split of %d tokens over pages of %d",
                                                      options.split_tokens, pages.page_tokens));
  }
  if (options.window < 0 || options.soft_cap < 0 || !std::isfinite(options.scale)) {
    return absl::InvalidArgumentError(
        "window and soft cap must not be negative, the scale not infinite");
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const AttentionPages& pages, const AttentionOptions& options,
                           const AttentionSequence& sequence, size_t index) {
  if (sequence.q_tokens > kAttentionQueryTokensMax) {
    return absl::UnimplementedError(absl::StrFormat(
        "sequence %d has %d query tokens, of at most %d: more is prefill, which is the engine's",
        index, sequence.q_tokens, kAttentionQueryTokensMax));
  }
  const size_t table = pages.is_blocks ? sequence.blocks.size() : sequence.table.size();
  if (sequence.q_tokens == 0 || sequence.kv_tokens < 0 ||
      sequence.kv_tokens > static_cast<int64_t>(table) * pages.page_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence %d: %d query tokens, %d KV tokens over a table of %d pages",
                        index, sequence.q_tokens, sequence.kv_tokens, table));
  }
  const auto [begin, end] = AttendedByAny(options, sequence, 0, sequence.q_tokens);
  for (int64_t page = begin / pages.page_tokens; page * pages.page_tokens < end; ++page) {
    if (pages.is_blocks) {
      if (sequence.blocks[page] != nullptr) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("sequence %d: its block %d is null", index, page));
    }
    if (sequence.table[page] < 0 || sequence.table[page] >= pages.pages) {
      return absl::InvalidArgumentError(
          absl::StrFormat("sequence %d: page %d of its table is %d, of %d", index, page,
                          sequence.table[page], pages.pages));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAttentionPages(const AttentionPages& pages) {
  const bool is_mla = pages.k_dim == kMlaDim;
  if (std::ranges::find(kAttentionDims, pages.k_dim) == std::end(kAttentionDims) ||
      pages.v_dim != (is_mla ? kMlaLatent : pages.k_dim)) {
    return absl::UnimplementedError(
        absl::StrFormat("attention with K of %d and V of %d elements: there is 64, 80, 96, 128, "
                        "192 and 256 for both, and 576 with 512 (MLA)",
                        pages.k_dim, pages.v_dim));
  }
  switch (pages.type) {
    case ElementType::kFp32:
    case ElementType::kFp16:
    case ElementType::kBf16:
    case ElementType::kFp8E4m3:
      break;
    default:
      return absl::UnimplementedError(
          "attention over elements that are not fp32, fp16, bf16 or fp8 e4m3");
  }
  if (pages.page_tokens == 0 || pages.kv_heads == 0) {
    return absl::InvalidArgumentError("pages of no tokens or no heads");
  }
  if (pages.is_blocks) return absl::OkStatus();
  if (is_mla && pages.v.base != pages.k.base) {
    return absl::InvalidArgumentError("MLA: V is the first 512 elements of K's row, in place");
  }
  // A view of each tensor by itself, so that they may share memory.
  KvView view{.layers = {{pages.k, {}}},
              .pages = pages.pages,
              .page_tokens = pages.page_tokens,
              .kv_heads = pages.kv_heads,
              .k_dim = pages.k_dim,
              .v_dim = 0,
              .element_bytes = ElementBytes(pages.type)};
  KV_RETURN_IF_ERROR(ValidateView(view));
  if (is_mla) return absl::OkStatus();
  view.layers[0].k = pages.v;
  return ValidateView(view);
}

KvRange Attended(const AttentionOptions& options, const AttentionSequence& sequence,
                 uint32_t token) {
  const int64_t position = sequence.q_position + token - sequence.kv_position;
  const int64_t end = std::clamp<int64_t>(position + 1, 0, sequence.kv_tokens);
  const int64_t begin =
      options.window == 0 ? 0 : std::clamp<int64_t>(position + 1 - options.window, 0, end);
  return {begin, end};
}

KvRange AttendedByAny(const AttentionOptions& options, const AttentionSequence& sequence,
                      uint32_t first, uint32_t count) {
  return {Attended(options, sequence, first).begin,
          Attended(options, sequence, first + count - 1).end};
}

std::vector<KvRange> SplitsOf(const AttentionOptions& options, const AttentionSequence& sequence) {
  const auto [begin, end] = AttendedByAny(options, sequence, 0, sequence.q_tokens);
  const int64_t split =
      options.split_tokens == 0 ? std::max<int64_t>(end, 1) : int64_t{options.split_tokens};
  std::vector<KvRange> splits;
  for (int64_t at = begin / split * split; at < end; at += split)
    splits.push_back({std::max(at, begin), std::min(at + split, end)});
  return splits;
}

absl::Status CheckAttention(const AttentionPages& pages, const AttentionOptions& options,
                            std::span<const AttentionSequence> sequences) {
  KV_RETURN_IF_ERROR(CheckAttentionPages(pages));
  KV_RETURN_IF_ERROR(CheckOptions(pages, options));
  for (size_t i = 0; i < sequences.size(); ++i)
    KV_RETURN_IF_ERROR(CheckSequence(pages, options, sequences[i], i));
  return absl::OkStatus();
}

}  // namespace kvarve
