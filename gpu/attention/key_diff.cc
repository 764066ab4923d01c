#include "gpu/attention/key_diff.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_request.h"
#include "gpu/attention/cpu_kernel.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint32_t kChunkTokens = 1024;  // that a device's block sums

absl::Status Bad(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s", why));
}

int64_t BlockCount(int64_t tokens, uint32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

absl::Status CheckSequence(const AttentionPages& pages, const KeyDiffSequence& sequence,
                           uint32_t block_tokens) {
  if (block_tokens == 0) return Bad("blocks of no tokens");
  const size_t table = pages.is_blocks ? sequence.blocks.size() : sequence.table.size();
  if (sequence.tokens < 0 || sequence.tokens > static_cast<int64_t>(table) * pages.page_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens over a table of %d pages", sequence.tokens, table));
  }
  for (int64_t page = 0; page * pages.page_tokens < sequence.tokens; ++page) {
    if (pages.is_blocks) {
      if (sequence.blocks[page] == nullptr)
        return absl::InvalidArgumentError(absl::StrFormat("block %d is null", page));
    } else if (sequence.table[page] < 0 || sequence.table[page] >= pages.pages) {
      return absl::InvalidArgumentError(absl::StrFormat("page %d of the table is %d, of %d", page,
                                                        sequence.table[page], pages.pages));
    }
  }
  return absl::OkStatus();
}

template <typename Params>
Launch Make(KernelFamily family, uint32_t vector_bytes, size_t blocks, const Params& params) {
  static_assert(sizeof(Params) <= sizeof(Launch::params));
  Launch launch;
  launch.kernel = *FindKernelRow(family, vector_bytes);
  launch.grid = static_cast<uint32_t>(blocks);
  std::memcpy(launch.params.data(), &params, sizeof params);
  return launch;
}

}  // namespace

absl::Status KeyDiff(const AttentionPages& pages, const KeyDiffSequence& sequence,
                     uint32_t block_tokens, std::span<float> scores, std::span<float> of_blocks) {
  KV_RETURN_IF_ERROR(CheckAttentionPages(pages));
  KV_RETURN_IF_ERROR(CheckSequence(pages, sequence, block_tokens));
  if (scores.size() != pages.kv_heads * static_cast<size_t>(sequence.tokens) ||
      of_blocks.size() != static_cast<size_t>(BlockCount(sequence.tokens, block_tokens)))
    return Bad("scores are [kv_heads][tokens], and one a block");
  std::vector<float> anchor(pages.k_dim);
  AttentionWork work{};
  work.pages = &pages;
  work.table = sequence.table.data();
  work.blocks = sequence.blocks.data();
  work.end = sequence.tokens;
  for (uint32_t head = 0; head < pages.kv_heads; ++head) {
    work.head = head;
    std::ranges::fill(anchor, 0.0f);
    KeyDiffPass(work, nullptr, anchor.data());
    float squares = 0;
    for (const float value : anchor) squares += value * value;
    const float factor = InverseLength(squares);
    for (float& value : anchor) value *= factor;
    KeyDiffPass(work, anchor.data(), scores.data() + head * sequence.tokens);
  }
  for (size_t block = 0; block < of_blocks.size(); ++block) {
    const int64_t begin = static_cast<int64_t>(block) * block_tokens;
    const int64_t end = std::min<int64_t>(begin + block_tokens, sequence.tokens);
    float sum = 0;
    for (uint32_t head = 0; head < pages.kv_heads; ++head) {
      for (int64_t token = begin; token < end; ++token)
        sum += scores[head * sequence.tokens + token];
    }
    of_blocks[block] = sum / static_cast<float>(pages.kv_heads * (end - begin));
  }
  return absl::OkStatus();
}

void KeyDiffPlan::AddSequence(const KeyDiffSequence& sequence, uint32_t block_tokens) {
  const auto tokens = static_cast<uint32_t>(sequence.tokens);
  const auto chunks = static_cast<uint32_t>(BlockCount(tokens, kChunkTokens));
  for (uint32_t block = 0; block < BlockCount(tokens, block_tokens); ++block) {
    const uint32_t begin = block * block_tokens;
    blocks_.push_back({scores_, tokens, begin, begin + std::min(block_tokens, tokens - begin), 0});
  }
  for (uint32_t head = 0; head < pages_.kv_heads; ++head) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t begin = chunk * kChunkTokens;
      items_.push_back({page_ids_.size(), sums_, scores_, head, begin,
                        std::min(begin + kChunkTokens, tokens), chunk, chunks, 0});
    }
    sums_ += chunks;
    scores_ += tokens;
  }
  page_ids_.insert(page_ids_.end(), sequence.table.begin(), sequence.table.end());
}

absl::StatusOr<KeyDiffPlan> KeyDiffPlan::Create(const AttentionPages& pages,
                                                std::span<const KeyDiffSequence> sequences,
                                                uint32_t block_tokens) {
  KV_RETURN_IF_ERROR(CheckAttentionPages(pages));
  if (pages.is_blocks)
    return absl::UnimplementedError("blocks of the host tier are scored on the CPU");
  const uint64_t bits = reinterpret_cast<uint64_t>(pages.k.base) | pages.k.page_stride |
                        pages.k.head_stride | pages.k.token_stride;
  if (bits % ElementBytes(pages.type) != 0)
    return Bad("pages whose elements are not aligned to their size");
  KeyDiffPlan plan;
  plan.pages_ = pages;
  for (const KeyDiffSequence& sequence : sequences) {
    KV_RETURN_IF_ERROR(CheckSequence(pages, sequence, block_tokens));
    if (sequence.tokens > std::numeric_limits<int32_t>::max())
      return Bad("a sequence of 2^31 tokens or more");
    plan.AddSequence(sequence, block_tokens);
  }
  if (plan.items_.empty()) return Bad("no tokens");
  if (plan.items_.size() > kMaxPieces || plan.blocks_.size() > kMaxPieces)
    return absl::InvalidArgumentError(
        absl::StrFormat("more than %d pieces in one launch", kMaxPieces));
  return plan;
}

absl::StatusOr<std::vector<Launch>> KeyDiffPlan::Launches(const KeyDiffPlaces& places) const {
  for (const uint64_t place : {places.page_ids, places.items, places.blocks, places.sums,
                               places.scores, places.of_blocks}) {
    if (place == 0) return Bad("a place without an address");
    if (place % sizeof(float) != 0) return Bad("a misaligned place");
  }
  if ((places.items | places.blocks) % sizeof(uint64_t) != 0) return Bad("a misaligned place");
  KeyDiffParams p{};
  p.k = {reinterpret_cast<uint64_t>(pages_.k.base), pages_.k.page_stride, pages_.k.head_stride,
         pages_.k.token_stride};
  p.page_ids = places.page_ids;
  p.items = places.items;
  p.sums = places.sums;
  p.scores = places.scores;
  p.item_count = static_cast<uint32_t>(items_.size());
  p.page_tokens = pages_.page_tokens;
  p.dim = pages_.k_dim;
  p.element_bytes = ElementBytes(pages_.type);
  p.type = pages_.type == ElementType::kFp32   ? kF32
           : pages_.type == ElementType::kFp16 ? kF16
                                               : kBf16;
  KeyDiffBlockParams b{};
  b.blocks = places.blocks;
  b.scores = places.scores;
  b.out = places.of_blocks;
  b.block_count = static_cast<uint32_t>(blocks_.size());
  b.heads = pages_.kv_heads;
  constexpr size_t kWarps = kKernelThreads / 32;
  return std::vector<Launch>{
      Make(KernelFamily::kKeyDiffSum, 1, items_.size(), p),
      Make(KernelFamily::kKeyDiffScore, 1, items_.size(), p),
      Make(KernelFamily::kKeyDiffBlocks, 4, (blocks_.size() + kWarps - 1) / kWarps, b)};
}

}  // namespace kvarve
