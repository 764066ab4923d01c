#include "gpu/bench/bench_pages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "gpu/attention/attention_launch.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {

KvView DeviceView(uint64_t base, const BlockLayout& layout, int64_t pages, uint32_t page_tokens,
                  bool nhd) {
  KvView view;
  view.pages = pages, view.page_tokens = page_tokens, view.kv_heads = layout.kv_heads;
  view.k_dim = layout.k_dim, view.v_dim = layout.v_dim, view.element_bytes = layout.element_bytes;
  const auto row = static_cast<int64_t>(layout.KRowBytes());
  PagedTensor tensor;
  tensor.token_stride = nhd ? row * layout.kv_heads : row;
  tensor.head_stride = nhd ? row : row * page_tokens;
  tensor.page_stride = row * layout.kv_heads * page_tokens;
  tensor.bytes = tensor.page_stride * pages;
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    LayerView both;
    tensor.base = reinterpret_cast<std::byte*>(base);
    both.k = tensor;
    tensor.base += tensor.bytes;
    both.v = tensor;
    view.layers.push_back(both);
    base += 2 * static_cast<uint64_t>(tensor.bytes);
  }
  return view;
}

uint64_t ViewBytes(const BlockLayout& layout, int64_t pages, uint32_t page_tokens) {
  return layout.BlockBytes() / layout.tokens * page_tokens * static_cast<uint64_t>(pages);
}

absl::StatusOr<std::unique_ptr<AttentionLoop>> AttentionLoop::Create(
    const std::shared_ptr<ComputeDevice>& device, uint32_t sequences, uint32_t tokens, bool tiny) {
  const BlockLayout layout =
      tiny ? BlockLayout{1, 1, 16, 64, 64, 2} : BlockLayout{1, 8, 16, 128, 128, 2};
  const uint32_t q_heads = layout.kv_heads * 4, pages = tokens / layout.tokens;
  std::unique_ptr<AttentionLoop> loop(new AttentionLoop);
  const int64_t all = int64_t{pages} * sequences;
  KV_ASSIGN_OR_RETURN(loop->memory_, device->Allocate(ViewBytes(layout, all, layout.tokens)));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> numbers,
                      HostBuffer::Create(device, tiny ? 64 * kKiB : 16 * kMiB));
  KV_RETURN_IF_ERROR(FillNumbers(*device, loop->memory_, *numbers));
  const KvView view = DeviceView(loop->memory_.address(), layout, all, layout.tokens, false);
  AttentionPages paged;
  paged.k = view.layers[0].k, paged.v = view.layers[0].v;
  paged.pages = all, paged.page_tokens = layout.tokens, paged.kv_heads = layout.kv_heads;
  paged.k_dim = layout.k_dim, paged.v_dim = layout.v_dim;
  std::vector<int32_t> ids(static_cast<size_t>(all));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(1));
  std::vector<AttentionSequence> batch;
  for (uint32_t i = 0; i < sequences; ++i) {
    batch.push_back({.table = std::span(ids).subspan(size_t{i} * pages, pages),
                     .kv_tokens = tokens,
                     .q_position = tokens - 1});
  }
  KV_ASSIGN_OR_RETURN(
      const AttentionPlan plan,
      AttentionPlan::Create(paged,
                            {.q_heads = q_heads,
                             .scale = 1 / std::sqrt(static_cast<float>(layout.k_dim)),
                             .split_tokens = tiny ? 32u : 512u},
                            batch, false));
  // One piece of memory: [queries][tables][outputs][log-sum-exps][workspace].
  const uint64_t rows = uint64_t{sequences} * q_heads, row = layout.KRowBytes();
  uint64_t end = 0;
  const auto place = [&](uint64_t bytes) { return std::exchange(end, RoundUp(end + bytes, 256)); };
  const uint64_t q = place(rows * row), page_ids = place(plan.page_ids().size_bytes());
  const uint64_t items = place(plan.items().size_bytes()), parts = place(plan.parts().size_bytes());
  const uint64_t merges = place(plan.merges().size_bytes()), tables_end = end;
  const uint64_t out = place(rows * row), lse = place(rows * sizeof(float));
  const uint64_t workspace = place(plan.workspace_bytes());
  KV_ASSIGN_OR_RETURN(loop->tables_, device->Allocate(end));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> host,
                      HostBuffer::Create(device, RoundUp(tables_end, 4096)));
  std::byte* const to = host->bytes().data();
  std::memcpy(to + q, numbers->bytes().data(), std::min(rows * row, numbers->bytes().size()));
  const auto put = [&](uint64_t at, const auto& table) {
    if (!table.empty()) std::memcpy(to + at, table.data(), table.size_bytes());
  };
  put(page_ids, plan.page_ids()), put(items, plan.items());
  put(parts, plan.parts()), put(merges, plan.merges());
  const uint64_t base = loop->tables_.address();
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device->NewStream());
  const CopyJob job{host->address(), base, tables_end};
  KV_RETURN_IF_ERROR(stream->Copy({&job, 1}, CopyOrder::kAny));
  KV_RETURN_IF_ERROR(Finish(*stream));
  AttentionPlaces places;
  places.q = base + q, places.q_head_stride = static_cast<int64_t>(row);
  places.q_token_stride = places.q_head_stride * q_heads;
  places.out = base + out, places.lse = base + lse;
  places.page_ids = base + page_ids, places.items = base + items;
  places.parts = base + parts, places.merges = base + merges, places.workspace = base + workspace;
  KV_ASSIGN_OR_RETURN(loop->launches_, plan.Launches(places));
  return loop;
}

absl::Status AttentionLoop::Run(DeviceStream& stream) const {
  for (const Launch& launch : launches_) KV_RETURN_IF_ERROR(stream.Run(launch));
  return absl::OkStatus();
}

}  // namespace kvarve::gpu_bench
