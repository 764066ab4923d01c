#include "gpu/kernels/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint32_t kWidest = 16;

absl::Status Bad(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s", why));
}

// Collects addresses, strides and sizes; their common power of two is the width of an access.
class Width {
 public:
  Width& With(uint64_t value) {
    all_ |= value;
    return *this;
  }
  Width& With(const MoveTensor& t) {
    return With(t.base)
        .With(t.page_stride)
        .With(t.head_stride)
        .With(t.token_stride)
        .With(t.row_bytes);
  }
  uint32_t bytes() const {
    return all_ == 0 ? kWidest
                     : std::min<uint32_t>(kWidest, 1u << std::min(std::countr_zero(all_), 4));
  }

 private:
  uint64_t all_ = 0;
};

// Rows of a page that follow each other without a gap in every tensor.
bool Dense(std::span<const MoveTensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const MoveTensor& t) { return t.token_stride == t.row_bytes; });
}

// Threads for one piece: as many as have a word to move.
uint32_t Lanes(int64_t piece_bytes, uint32_t width) {
  const uint64_t words = std::max<uint64_t>(1, static_cast<uint64_t>(piece_bytes) / width);
  return static_cast<uint32_t>(std::min<uint64_t>(32, std::bit_ceil(words)));
}

template <typename Params>
Launch Make(uint32_t kernel, uint64_t threads, const Params& params) {
  static_assert(sizeof(Params) <= sizeof(Launch::params));
  Launch launch;
  launch.kernel = kernel;
  const uint64_t blocks = (threads + kKernelThreads - 1) / kKernelThreads;
  launch.grid = static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, kMaxGrid));
  std::memcpy(launch.params.data(), &params, sizeof params);
  return launch;
}

absl::Status CheckPieces(uint64_t blocks, uint64_t tensors, uint64_t heads, uint64_t per_head) {
  const unsigned __int128 pieces =
      static_cast<unsigned __int128>(blocks) * tensors * heads * per_head;
  if (pieces <= kMaxPieces) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("more than %d pieces in one launch", kMaxPieces));
}

absl::Status CheckRequest(const KvView& view, const BlockLayout& layout, const MoveRequest& request,
                          bool scatter) {
  KV_RETURN_IF_ERROR(ValidateViewFor(view, layout));
  if (request.blocks.empty()) return Bad("no blocks");
  if (request.token_begin >= request.token_end || request.token_end > layout.tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokens [%d, %d) of a block of %d", request.token_begin, request.token_end, layout.tokens));
  }
  if (std::find(request.blocks.begin(), request.blocks.end(), 0) != request.blocks.end())
    return Bad("a block without an address");
  if (request.tensors_at == 0 || request.page_ids_at == 0 || request.blocks_at == 0)
    return Bad("a table without an address");
  const size_t per_block = layout.tokens / view.page_tokens;
  if (request.page_ids.size() / per_block != request.blocks.size() ||
      request.page_ids.size() % per_block != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%d page ids for %d blocks of %d pages",
                                                      request.page_ids.size(),
                                                      request.blocks.size(), per_block));
  }
  const size_t first = request.token_begin / view.page_tokens;
  const size_t last = (request.token_end - 1) / view.page_tokens;
  std::unordered_set<int64_t> written;
  for (size_t block = 0; block < request.blocks.size(); ++block) {
    for (size_t i = first; i <= last; ++i) {
      const int64_t id = request.page_ids[block * per_block + i];
      if (id < -1 || id >= view.pages) {
        return absl::InvalidArgumentError(
            absl::StrFormat("page %d of block %d: id %d of %d pages", i, block, id, view.pages));
      }
      if (scatter && id >= 0 && !written.insert(id).second) {
        return absl::InvalidArgumentError(
            absl::StrFormat("page id %d stands twice in one scatter", id));
      }
    }
  }
  return absl::OkStatus();
}

MoveParams ParamsOf(const KvView& view, const BlockLayout& layout, const MoveRequest& request,
                    size_t tensors) {
  MoveParams p{};
  p.tensors = request.tensors_at;
  p.page_ids = request.page_ids_at;
  p.blocks = request.blocks_at;
  p.tensor_count = static_cast<uint32_t>(tensors);
  p.heads = view.kv_heads;
  p.block_count = static_cast<uint32_t>(request.blocks.size());
  p.page_tokens = view.page_tokens;
  p.block_tokens = layout.tokens;
  p.token_begin = request.token_begin;
  p.token_end = request.token_end;
  p.piece_tokens = 1;
  p.lanes = 32;
  return p;
}

absl::StatusOr<Launch> PlanMove(KernelFamily family, const KvView& view, const BlockLayout& layout,
                                const MoveRequest& request) {
  KV_RETURN_IF_ERROR(CheckRequest(view, layout, request, family == KernelFamily::kScatter));
  const std::vector<MoveTensor> tensors = MoveTensors(view, layout);
  MoveParams p = ParamsOf(view, layout, request, tensors.size());
  if (Dense(tensors)) p.piece_tokens = view.page_tokens;
  const uint32_t per_head = (layout.tokens + p.piece_tokens - 1) / p.piece_tokens;
  KV_RETURN_IF_ERROR(CheckPieces(request.blocks.size(), tensors.size(), p.heads, per_head));
  Width width;
  int64_t largest = 0;
  for (const MoveTensor& t : tensors) {
    width.With(t).With(t.block_offset);
    largest = std::max(largest, t.row_bytes * p.piece_tokens);
  }
  for (const uint64_t block : request.blocks) width.With(block);
  p.lanes = Lanes(largest, width.bytes());
  const uint64_t pieces = uint64_t{p.block_count} * p.tensor_count * p.heads * per_head;
  return Make(*FindKernelRow(family, width.bytes()), pieces * p.lanes, p);
}

std::vector<MoveTensor> TensorsOf(const KvView& view) {
  std::vector<MoveTensor> tensors;
  for (const LayerView& layer : view.layers) {
    auto add = [&](const PagedTensor& t, uint64_t row_bytes) {
      tensors.push_back({reinterpret_cast<uint64_t>(t.base), t.page_stride, t.head_stride,
                         t.token_stride, static_cast<int64_t>(row_bytes), 0});
    };
    add(layer.k, view.KRowBytes());
    if (view.v_dim > 0) add(layer.v, view.VRowBytes());
  }
  return tensors;
}

// Packed rows of so many bytes for K and for V, in the canonical order.
std::vector<MoveTensor> PackedTensors(const KvView& view, const BlockLayout& layout,
                                      int64_t k_row_bytes, int64_t v_row_bytes) {
  std::vector<MoveTensor> tensors = TensorsOf(view);
  int64_t offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_v = view.v_dim > 0 && i % 2 == 1;
    tensors[i].row_bytes = is_v ? v_row_bytes : k_row_bytes;
    tensors[i].block_offset = offset;
    offset += tensors[i].row_bytes * layout.kv_heads * layout.tokens;
  }
  return tensors;
}

}  // namespace

std::vector<MoveTensor> MoveTensors(const KvView& view, const BlockLayout& layout) {
  std::vector<MoveTensor> tensors = TensorsOf(view);
  const size_t per_layer = view.v_dim > 0 ? 2 : 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto layer = static_cast<uint32_t>(i / per_layer);
    tensors[i].block_offset = static_cast<int64_t>(
        i % per_layer == 0 ? layout.KOffset(layer, 0, 0) : layout.VOffset(layer, 0, 0));
  }
  return tensors;
}

absl::StatusOr<Launch> PlanGather(const KvView& view, const BlockLayout& layout,
                                  const MoveRequest& request) {
  return PlanMove(KernelFamily::kGather, view, layout, request);
}

absl::StatusOr<Launch> PlanScatter(const KvView& view, const BlockLayout& layout,
                                   const MoveRequest& request) {
  return PlanMove(KernelFamily::kScatter, view, layout, request);
}

Launch OfTensors(Launch launch, uint32_t first, uint32_t count) {
  MoveParams p;
  std::memcpy(&p, launch.params.data(), sizeof p);
  KV_CHECK(first + count <= p.tensor_count);
  p.tensors += uint64_t{first} * sizeof(MoveTensor);
  p.tensor_count = count;
  std::memcpy(launch.params.data(), &p, sizeof p);
  return launch;
}

absl::StatusOr<Launch> PlanCopyPages(const KvView& view, std::span<const PageCopy> copies,
                                     uint64_t tensors_at, uint64_t pairs_at) {
  KV_RETURN_IF_ERROR(ValidateView(view));
  if (copies.empty()) return Bad("no copies");
  if (tensors_at == 0 || pairs_at == 0) return Bad("a table without an address");
  std::unordered_set<int64_t> read, written;
  for (const PageCopy& copy : copies) {
    for (const int64_t id : {copy.from, copy.to}) {
      if (id < 0 || id >= view.pages)
        return absl::InvalidArgumentError(
            absl::StrFormat("a copy of page id %d of %d pages", id, view.pages));
    }
    read.insert(copy.from);
    if (!written.insert(copy.to).second)
      return absl::InvalidArgumentError(absl::StrFormat("two copies to page id %d", copy.to));
  }
  for (const int64_t id : written) {
    if (read.contains(id))
      return absl::InvalidArgumentError(
          absl::StrFormat("page id %d is copied to and from in one launch", id));
  }
  const std::vector<MoveTensor> tensors = TensorsOf(view);
  CopyPagesParams p{};
  p.tensors = tensors_at;
  p.pairs = pairs_at;
  p.tensor_count = static_cast<uint32_t>(tensors.size());
  p.heads = view.kv_heads;
  p.pair_count = static_cast<uint32_t>(copies.size());
  p.page_tokens = view.page_tokens;
  p.piece_tokens = Dense(tensors) ? view.page_tokens : 1;
  const uint32_t per_head = p.page_tokens / p.piece_tokens;
  KV_RETURN_IF_ERROR(CheckPieces(copies.size(), tensors.size(), p.heads, per_head));
  Width width;
  int64_t largest = 0;
  for (const MoveTensor& t : tensors) {
    width.With(t);
    largest = std::max(largest, t.row_bytes * p.piece_tokens);
  }
  p.lanes = Lanes(largest, width.bytes());
  const uint64_t pieces = uint64_t{p.pair_count} * p.tensor_count * p.heads * per_head;
  return Make(*FindKernelRow(KernelFamily::kCopyPages, width.bytes()), pieces * p.lanes, p);
}

absl::StatusOr<Launch> PlanReshapeAndCache(const KvView& view, uint32_t layer, const NewRows& rows,
                                           std::span<const int64_t> slots, uint64_t slots_at) {
  KV_RETURN_IF_ERROR(ValidateView(view));
  if (layer >= view.layers.size())
    return absl::InvalidArgumentError(absl::StrFormat("layer %d of %d", layer, view.layers.size()));
  if (slots.empty() || slots_at == 0) return Bad("no slots");
  const bool has_v = view.v_dim > 0;
  if (rows.k == 0 || (rows.v != 0) != has_v)
    return Bad("new rows must be of K, and of V if there is one");
  if (rows.k_token_stride < 0 || rows.k_head_stride < 0 || rows.v_token_stride < 0 ||
      rows.v_head_stride < 0)
    return Bad("new rows with a negative stride");
  std::unordered_set<int64_t> written;
  for (const int64_t slot : slots) {
    if (slot < -1 || slot / view.page_tokens >= view.pages)
      return absl::InvalidArgumentError(
          absl::StrFormat("slot %d of %d pages of %d tokens", slot, view.pages, view.page_tokens));
    if (slot >= 0 && !written.insert(slot).second)
      return absl::InvalidArgumentError(absl::StrFormat("slot %d stands twice", slot));
  }
  const size_t per_layer = has_v ? 2 : 1;
  const std::vector<MoveTensor> tensors = TensorsOf(view);
  ReshapeParams p{};
  p.tensor_count = static_cast<uint32_t>(per_layer);
  for (size_t i = 0; i < per_layer; ++i) p.cache[i] = tensors[layer * per_layer + i];
  p.rows[0] = rows.k, p.rows[1] = rows.v;
  p.rows_token_stride[0] = rows.k_token_stride, p.rows_head_stride[0] = rows.k_head_stride;
  p.rows_token_stride[1] = rows.v_token_stride, p.rows_head_stride[1] = rows.v_head_stride;
  p.slots = slots_at;
  p.heads = view.kv_heads;
  p.token_count = static_cast<uint32_t>(slots.size());
  p.page_tokens = view.page_tokens;
  KV_RETURN_IF_ERROR(CheckPieces(slots.size(), per_layer, p.heads, 1));
  Width width;
  int64_t largest = 0;
  for (size_t i = 0; i < per_layer; ++i) {
    width.With(p.cache[i]).With(p.rows[i]).With(p.rows_token_stride[i]).With(p.rows_head_stride[i]);
    largest = std::max(largest, p.cache[i].row_bytes);
  }
  p.lanes = Lanes(largest, width.bytes());
  const uint64_t pieces = uint64_t{p.token_count} * per_layer * p.heads;
  return Make(*FindKernelRow(KernelFamily::kReshapeAndCache, width.bytes()), pieces * p.lanes, p);
}

absl::StatusOr<Launch> PlanBatchCopy(std::span<const CopyJob> jobs, uint64_t jobs_at,
                                     uint64_t done_at, uint64_t done_value, uint64_t counter_at) {
  if (jobs.empty() || jobs_at == 0) return Bad("no copies");
  if (done_at % sizeof(uint64_t) != 0 || counter_at % sizeof(uint32_t) != 0)
    return Bad("a misaligned word of completion");
  if ((done_at != 0) != (counter_at != 0))
    return Bad("a completion needs its word and its counter");
  Width width;
  for (const CopyJob& job : jobs) {
    if (job.bytes > 0 && (job.from == 0 || job.to == 0)) return Bad("a copy without an address");
    width.With(job.from).With(job.to);
  }
  KV_RETURN_IF_ERROR(CheckPieces(jobs.size(), 1, 1, 1));
  BatchCopyParams p{};
  p.jobs = jobs_at;
  p.done = done_at;
  p.done_value = done_value;
  p.counter = counter_at;
  p.job_count = static_cast<uint32_t>(jobs.size());
  return Make(*FindKernelRow(KernelFamily::kBatchCopy, width.bytes()), jobs.size() * 32, p);
}

absl::StatusOr<std::vector<MoveTensor>> Fp8Tensors(const KvView& view, const BlockLayout& layout) {
  KV_RETURN_IF_ERROR(ValidateViewFor(view, layout));
  return PackedTensors(view, layout, view.k_dim, view.v_dim);
}

absl::StatusOr<std::vector<MoveTensor>> Int4Tensors(const KvView& view, const BlockLayout& layout,
                                                    uint32_t group) {
  KV_RETURN_IF_ERROR(ValidateViewFor(view, layout));
  if (group < 2 || group % 2 != 0 || view.k_dim % group != 0 || view.v_dim % group != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "int4 groups of %d elements in rows of %d and %d", group, view.k_dim, view.v_dim));
  }
  auto bytes = [&](uint32_t dim) { return int64_t{dim} / 2 + int64_t{dim} / group * 4; };
  return PackedTensors(view, layout, bytes(view.k_dim), bytes(view.v_dim));
}

uint64_t PackedBlockBytes(std::span<const MoveTensor> tensors, const BlockLayout& layout) {
  const MoveTensor& last = tensors.back();
  return last.block_offset + last.row_bytes * layout.kv_heads * layout.tokens;
}

absl::StatusOr<Launch> PlanPack(KernelFamily family, const KvView& view, const BlockLayout& layout,
                                const PackRequest& request) {
  const bool fp8 = family == KernelFamily::kGatherFp8 || family == KernelFamily::kScatterFp8;
  const bool int4 = family == KernelFamily::kGatherInt4 || family == KernelFamily::kScatterInt4;
  if (!fp8 && !int4) return Bad("not a packing kernel");
  const bool scatter = family == KernelFamily::kScatterFp8 || family == KernelFamily::kScatterInt4;
  KV_RETURN_IF_ERROR(CheckRequest(view, layout, request.move, scatter));
  if (request.type > kF32 || view.element_bytes != (request.type == kF32 ? 4u : 2u))
    return absl::InvalidArgumentError(absl::StrFormat("elements of %d bytes are not of type %d",
                                                      view.element_bytes, request.type));
  if (fp8 && (request.move.token_begin != 0 || request.move.token_end != layout.tokens))
    return Bad("fp8 packs whole blocks");
  if (fp8 && request.scales_at % sizeof(float) != 0) return Bad("misaligned scales");
  if (fp8 && request.scales_at == 0) return Bad("a table without an address");
  KV_ASSIGN_OR_RETURN(const std::vector<MoveTensor> tensors,
                      fp8 ? Fp8Tensors(view, layout) : Int4Tensors(view, layout, request.group));
  for (const MoveTensor& t : tensors) {
    if ((t.base | t.page_stride | t.head_stride | t.token_stride) % view.element_bytes != 0)
      return Bad("pages whose elements are not aligned to their size");
  }
  PackParams p{};
  p.move = ParamsOf(view, layout, request.move, tensors.size());
  p.scales = request.scales_at;
  p.type = request.type;
  p.element_bytes = view.element_bytes;
  p.group = request.group;
  KV_RETURN_IF_ERROR(CheckPieces(request.move.blocks.size(), tensors.size(), p.move.heads,
                                 layout.tokens * uint64_t{std::max(view.k_dim, view.v_dim)}));
  const uint64_t heads = uint64_t{p.move.block_count} * p.move.tensor_count * p.move.heads;
  return Make(*FindKernelRow(family, 1), heads * kKernelThreads, p);
}

}  // namespace kvarve
