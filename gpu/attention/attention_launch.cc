#include "gpu/attention/attention_launch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_request.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint32_t kWideBytes = 16;  // of an access, where all rows allow it

absl::Status Bad(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s", why));
}

KernelFamily FamilyOf(ElementType type) {
  switch (type) {
    case ElementType::kFp32:
      return KernelFamily::kAttentionFp32;
    case ElementType::kFp16:
      return KernelFamily::kAttentionFp16;
    case ElementType::kFp8E4m3:
      return KernelFamily::kAttentionFp8;
    default:
      return KernelFamily::kAttentionBf16;
  }
}

uint32_t NumberBytesOf(NumberType type) { return type == kF32 ? 4 : 2; }

// The common power of two of the rows' addresses is that of these bits.
uint64_t AddressBits(const PagedTensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.base) | tensor.page_stride | tensor.head_stride |
         tensor.token_stride;
}

PagedRows RowsOf(const PagedTensor& tensor) {
  return {reinterpret_cast<uint64_t>(tensor.base), tensor.page_stride, tensor.head_stride,
          tensor.token_stride};
}

template <typename Params>
Launch Make(uint32_t kernel, size_t blocks, const Params& params) {
  static_assert(sizeof(Params) <= sizeof(Launch::params));
  Launch launch;
  launch.kernel = kernel;
  launch.grid = static_cast<uint32_t>(blocks);
  std::memcpy(launch.params.data(), &params, sizeof params);
  return launch;
}

absl::Status CheckForDevice(const AttentionPages& pages,
                            std::span<const AttentionSequence> sequences) {
  if (pages.is_blocks)
    return absl::UnimplementedError("blocks of the host tier are attended on the CPU");
  if (pages.k_dim == kMlaDim && pages.type != ElementType::kBf16)
    return absl::UnimplementedError("MLA on a CUDA device: pages of bf16 alone");
  if ((AddressBits(pages.k) | AddressBits(pages.v)) % ElementBytes(pages.type) != 0)
    return Bad("pages whose elements are not aligned to their size");
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].kv_tokens > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "sequence %d has %d KV tokens: a device counts to 2^31", i, sequences[i].kv_tokens));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddMergeItems(uint64_t first_part, uint32_t parts, uint64_t first_row, uint32_t rows,
                   std::vector<MergeItem>* items) {
  for (uint32_t row = 0; row < rows; row += kAttentionRows) {
    items->push_back(
        {first_part, first_row + row, parts, row, std::min(kAttentionRows, rows - row), 0});
  }
}

// Items of one split; all KV heads, and as many rows each as a block takes.
void AttentionPlan::AddItems(const AttentionSequence& sequence, uint32_t first_token, int64_t begin,
                             int64_t end, uint64_t out_row) {
  const uint32_t group = options_.q_heads / pages_.kv_heads;
  const uint32_t rows = sequence.q_tokens * group;
  for (uint32_t row = 0; row < rows; row += kAttentionRows) {
    AttentionItem item{};
    item.position = sequence.q_position - sequence.kv_position;
    item.pages = page_ids_.size();
    item.q_token = first_token;
    item.out_row = out_row;
    item.row = row;
    item.rows = std::min(kAttentionRows, rows - row);
    // Only what these rows attend: of the rest nothing may be read.
    const uint32_t token = row / group, last = (row + item.rows - 1) / group;
    const KvRange attended = AttendedByAny(options_, sequence, token, last - token + 1);
    item.begin = static_cast<uint32_t>(std::clamp(attended.begin, begin, end));
    item.end = static_cast<uint32_t>(std::clamp(attended.end, int64_t{item.begin}, end));
    for (item.head = 0; item.head < pages_.kv_heads; ++item.head) items_.push_back(item);
  }
}

void AttentionPlan::AddSequence(const AttentionSequence& sequence) {
  const auto first_token = static_cast<uint32_t>(q_tokens_);
  const uint32_t rows = sequence.q_tokens * options_.q_heads;
  const std::vector<KvRange> splits = SplitsOf(options_, sequence);
  if (!merged_) {  // an item also where nothing is attended: somebody must write that
    const KvRange all = splits.empty() ? KvRange{0, 0} : splits.front();
    AddItems(sequence, first_token, all.begin, all.end, q_tokens_ * options_.q_heads);
  } else {
    AddMergeItems(parts_.size(), static_cast<uint32_t>(splits.size()), q_tokens_ * options_.q_heads,
                  rows, &merges_);
    for (const KvRange& split : splits) {
      AddItems(sequence, first_token, split.begin, split.end, states_);
      parts_.push_back({states_, states_});  // rows yet: how many there are shows at the end
      states_ += rows;
    }
  }
  page_ids_.insert(page_ids_.end(), sequence.table.begin(), sequence.table.end());
  q_tokens_ += sequence.q_tokens;
}

absl::StatusOr<AttentionPlan> AttentionPlan::Create(const AttentionPages& pages,
                                                    const AttentionOptions& options,
                                                    std::span<const AttentionSequence> sequences,
                                                    bool with_sinks) {
  KV_RETURN_IF_ERROR(CheckAttention(pages, options, sequences));
  KV_RETURN_IF_ERROR(CheckForDevice(pages, sequences));
  if (sequences.empty()) return Bad("no sequences");
  AttentionPlan plan;
  plan.pages_ = pages;
  plan.options_ = options;
  plan.with_sinks_ = with_sinks;
  plan.merged_ = with_sinks || std::ranges::any_of(sequences, [&](const AttentionSequence& s) {
                   return SplitsOf(options, s).size() > 1;
                 });
  for (const AttentionSequence& sequence : sequences) plan.AddSequence(sequence);
  if (plan.items_.size() > kMaxPieces)
    return absl::InvalidArgumentError(
        absl::StrFormat("more than %d pieces in one launch", kMaxPieces));
  // The workspace: all outputs, then all log-sum-exps.
  const uint64_t row_bytes = pages.v_dim * sizeof(float);
  for (MergePart& part : plan.parts_) {
    part.out *= row_bytes;
    part.lse = plan.states_ * row_bytes + part.lse * sizeof(float);
  }
  plan.workspace_bytes_ = plan.states_ * (row_bytes + sizeof(float));
  return plan;
}

absl::Status AttentionPlan::CheckPlaces(const AttentionPlaces& places) const {
  const uint32_t q_bytes = NumberBytesOf(places.q_type);
  if (places.q == 0 || places.out == 0 || places.lse == 0) return Bad("no q, out or lse");
  if (places.q_type > kF32 || places.out_type > kF32) return Bad("not a type of numbers");
  if (places.q_token_stride < 0 || places.q_head_stride < 0)
    return Bad("queries with a negative stride");
  if ((places.q | places.q_token_stride | places.q_head_stride) % q_bytes != 0)
    return Bad("queries whose elements are not aligned to their size");
  if (places.out % kWideBytes != 0 || (places.lse | places.sinks) % sizeof(float) != 0)
    return Bad("out must lie at a multiple of 16 bytes, lse and sinks of 4");
  if (!items_.empty() && places.items == 0) return Bad("no items");
  if (places.page_ids == 0 && !page_ids_.empty()) return Bad("no page ids");
  if ((places.sinks != 0) != with_sinks_)
    return Bad(with_sinks_ ? "no sinks, though they were planned" : "sinks that were not planned");
  if (places.page_ids % sizeof(int32_t) != 0 ||
      (places.items | places.parts | places.merges) % sizeof(uint64_t) != 0)
    return Bad("a misaligned table");
  if (!merged_) return absl::OkStatus();
  if (places.merges == 0 || (!parts_.empty() && places.parts == 0)) return Bad("no merge tables");
  if (workspace_bytes_ > 0 && (places.workspace == 0 || places.workspace % kWideBytes != 0))
    return Bad("a workspace must lie at a multiple of 16 bytes");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Launch>> AttentionPlan::Launches(const AttentionPlaces& places) const {
  KV_RETURN_IF_ERROR(CheckPlaces(places));
  AttentionParams p{};
  p.k = RowsOf(pages_.k);
  p.v = RowsOf(pages_.v);
  p.page_ids = places.page_ids;
  p.items = places.items;
  p.q = places.q;
  p.q_token_stride = places.q_token_stride, p.q_head_stride = places.q_head_stride;
  p.window = options_.window;
  p.item_count = static_cast<uint32_t>(items_.size());
  p.page_tokens = pages_.page_tokens;
  p.q_heads = options_.q_heads;
  p.group = options_.q_heads / pages_.kv_heads;
  p.k_dim = pages_.k_dim, p.v_dim = pages_.v_dim;
  p.q_type = places.q_type;
  p.scale = options_.scale * pages_.k_scale;
  p.v_scale = pages_.v_scale;
  p.soft_cap = options_.soft_cap;
  p.wide = (AddressBits(pages_.k) | AddressBits(pages_.v)) % kWideBytes == 0 ? 1 : 0;
  p.out = merged_ ? places.workspace : places.out;
  p.lse = merged_ ? places.workspace + states_ * pages_.v_dim * sizeof(float) : places.lse;
  p.out_type = merged_ ? kF32 : places.out_type;
  std::vector<Launch> launches;
  if (!items_.empty()) {
    launches.push_back(
        Make(*FindKernelRow(FamilyOf(pages_.type), kWideBytes, pages_.k_dim), items_.size(), p));
  }
  if (!merged_) return launches;
  MergeParams m{};
  m.items = places.merges;
  m.parts = places.parts;
  m.base = places.workspace;
  m.out = places.out;
  m.lse = places.lse;
  m.sinks = places.sinks;
  m.item_count = static_cast<uint32_t>(merges_.size());
  m.q_heads = options_.q_heads;
  m.dim = pages_.v_dim;
  m.out_type = places.out_type;
  launches.push_back(
      Make(*FindKernelRow(KernelFamily::kMergeStates, sizeof(float)), merges_.size(), m));
  return launches;
}

absl::StatusOr<Launch> PlanMergeStates(const MergeRequest& request) {
  if (request.items.empty() || request.items_at == 0 || request.dim == 0 || request.q_heads == 0)
    return Bad("nothing to merge");
  if (request.out == 0 || request.lse == 0) return Bad("no out or lse");
  if (!request.parts.empty() && request.parts_at == 0) return Bad("a table without an address");
  if (request.out_type > kF32) return Bad("not a type of numbers");
  if ((request.items_at | request.parts_at) % sizeof(uint64_t) != 0)
    return Bad("a misaligned table");
  if (request.out % NumberBytesOf(request.out_type) != 0 ||
      (request.lse | request.sinks) % sizeof(float) != 0)
    return Bad("out, lse or sinks that are not aligned to their size");
  for (const MergePart& part : request.parts) {
    if (part.out == 0 || part.lse == 0 || (part.out | part.lse) % sizeof(float) != 0)
      return Bad("a part without an address, or misaligned");
  }
  for (const MergeItem& item : request.items) {
    if (item.rows == 0 || item.rows > kAttentionRows || item.first_part > request.parts.size() ||
        item.part_count > request.parts.size() - item.first_part) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a merge of %d rows of parts %d to %d, of %d", item.rows, item.first_part,
                          item.first_part + item.part_count, request.parts.size()));
    }
  }
  MergeParams m{};
  m.items = request.items_at;
  m.parts = request.parts_at;
  m.out = request.out;
  m.lse = request.lse;
  m.sinks = request.sinks;
  m.item_count = static_cast<uint32_t>(request.items.size());
  m.q_heads = request.q_heads;
  m.dim = request.dim;
  m.out_type = request.out_type;
  return Make(*FindKernelRow(KernelFamily::kMergeStates, sizeof(float)), request.items.size(), m);
}

}  // namespace kvarve
