// Suite "gpu": the CPU device's movers. Pages of an engine in three layouts, gathered into blocks
// in the canonical layout and scattered back, beside a copy of as many bytes in their own order,
// block by block and past the caches too (a plain memcpy of a block also reads what it overwrites).
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpu/transfer/page_mover.h"
#include "gpu/transfer/row_copy.h"
#include "storage/base/status_macros.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/huge_memory.h"

namespace kvarve::perf {
namespace {

// Llama-3.1-8B in bf16: 128 KiB a token. Larger than any cache, in both directions.
constexpr uint32_t kLayers = 32, kHeads = 8, kDim = 128, kElementBytes = 2, kPageTokens = 16;
constexpr uint32_t kBlockTokens = 64, kPages = 128;
constexpr int64_t kRow = kDim * kElementBytes;
constexpr int64_t kTensorPage = kRow * kHeads * kPageTokens;  // one layer's K, or its V

enum class PageOrder { kHnd, kNhd, kCrossLayer };

class Pages {
 public:
  explicit Pages(PageOrder order)
      : memory_(size_t{kPages} * kLayers * 2 * kTensorPage, 1),
        layout_{kLayers, kHeads, kBlockTokens, kDim, kDim, kElementBytes},
        blocks_(size_t{kPages} * kPageTokens / kBlockTokens * layout_.BlockBytes(), 2) {
    KvView view;
    view.pages = kPages, view.page_tokens = kPageTokens, view.kv_heads = kHeads;
    view.k_dim = view.v_dim = kDim, view.element_bytes = kElementBytes;
    const bool cross = order == PageOrder::kCrossLayer;
    const int64_t tensor_bytes = kTensorPage * kPages;
    for (uint32_t i = 0; i < 2 * kLayers; ++i) {
      PagedTensor tensor;
      tensor.base = memory_.data() + (cross ? i * kTensorPage : i * tensor_bytes);
      tensor.bytes = memory_.data() + memory_.size() - tensor.base;
      tensor.page_stride = cross ? 2 * kLayers * kTensorPage : kTensorPage;
      tensor.token_stride = order == PageOrder::kNhd ? kHeads * kRow : kRow;
      tensor.head_stride = order == PageOrder::kNhd ? kRow : kPageTokens * kRow;
      if (i % 2 == 0) view.layers.push_back({tensor, {}});
      if (i % 2 == 1) view.layers.back().v = tensor;
    }
    absl::StatusOr<PageMover> mover = PageMover::Create(std::move(view), layout_);
    KV_CHECK(mover.ok());
    movers_.push_back(*std::move(mover));
    ids_.resize(kPages);
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::mt19937_64(1));
  }

  enum class What { kGather, kScatter, kCopyOut, kCopyIn };
  // All pages once; GB/s of what was moved.
  double Run(What what) {
    const double start = NowMicros();
    const size_t bytes = layout_.BlockBytes(), per_block = movers_[0].pages_per_block();
    for (size_t block = 0; block < blocks_.size() / bytes; ++block) {
      const std::span<std::byte> at = std::span(blocks_.data() + block * bytes, bytes);
      const auto ids = std::span<const int64_t>(ids_).subspan(block * per_block, per_block);
      if (what == What::kGather) KV_CHECK(movers_[0].Gather(ids, 0, kBlockTokens, at).ok());
      if (what == What::kScatter) KV_CHECK(movers_[0].Scatter(at, ids, 0, kBlockTokens).ok());
      const auto row = static_cast<int64_t>(bytes);
      std::byte* const same = memory_.data() + block * bytes;
      if (what == What::kCopyOut) StreamRows({at.data(), row, same, row, bytes, 1});
      if (what == What::kCopyIn) StreamRows({same, row, at.data(), row, bytes, 1});
    }
    return static_cast<double>(blocks_.size()) / (NowMicros() - start) / 1000;
  }

 private:
  HugeMemory memory_;
  BlockLayout layout_;
  HugeMemory blocks_;
  std::vector<PageMover> movers_;  // one
  std::vector<int64_t> ids_;
};

void Rows(BenchTable* table, PageOrder order, const std::string& name, double gate) {
  const std::string gather = "gpu/cpu_gather/" + name, scatter = "gpu/cpu_scatter/" + name;
  if (!table->Wants(gather) && !table->Wants(scatter)) return;
  Pages pages(order);
  table->Compare({.name = gather,
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = gate,
                  .mine = [&] { return pages.Run(Pages::What::kGather); },
                  .bare = [&] { return pages.Run(Pages::What::kCopyOut); }});
  table->Compare({.name = scatter,
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = gate,
                  .mine = [&] { return pages.Run(Pages::What::kScatter); },
                  .bare = [&] { return pages.Run(Pages::What::kCopyIn); }});
}

void RunGpuSuite(BenchTable* table) {
  Rows(table, PageOrder::kHnd, "hnd", 0.9);
  Rows(table, PageOrder::kCrossLayer, "cross_layer", 0.9);
  Rows(table, PageOrder::kNhd, "nhd", 0.7);
}

KVARVE_BENCH_SUITE(gpu, "an engine's pages to blocks and back on the CPU, beside a plain copy",
                   RunGpuSuite);

}  // namespace
}  // namespace kvarve::perf
