// Suite "gpu": the CPU device's movers. Pages of an engine in three layouts, gathered into blocks
// in the canonical layout and scattered back, beside a copy of as many bytes in their own order,
// block by block and past the caches too (a plain memcpy of a block also reads what it overwrites).
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/device/cpu_device.h"
#include "gpu/device/row_copy.h"
#include "gpu/transfer/transfer.h"
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
  explicit Pages(PageOrder order, bool huge = true)
      : memory_(size_t{kPages} * kLayers * 2 * kTensorPage, 1, huge),
        layout_{kLayers, kHeads, kBlockTokens, kDim, kDim, kElementBytes},
        blocks_(size_t{kPages} * kPageTokens / kBlockTokens * layout_.BlockBytes(), 2, huge) {
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
    std::shared_ptr<ComputeDevice> cpu = NewCpuDevice();
    transfer_ =
        Transfer::Create(cpu, std::make_shared<HostRegistry>(cpu), std::move(view), layout_, {})
            .value();
    ids_.resize(kPages);
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::mt19937_64(1));
  }

  enum class What {
    kGather,
    kScatter,
    kCopyOut,
    kCopyIn,
    kPiecesOut,
    kPiecesIn,
    kLanesOut,
    kLanesIn
  };
  // All pages once; GB/s of what was moved.
  double Run(What what) {
    const double start = NowMicros();
    const size_t bytes = layout_.BlockBytes(), per_block = transfer_->pages_per_block();
    for (size_t block = 0; block < blocks_.size() / bytes; ++block) {
      const std::span<std::byte> at = std::span(blocks_.data() + block * bytes, bytes);
      const auto ids = std::span<const int64_t>(ids_).subspan(block * per_block, per_block);
      const BlockMove move{at, ids};
      auto start = [&](MoveDirection direction) {
        KV_CHECK(transfer_->Start(direction, {&move, 1}, 0, kBlockTokens).ok());
      };
      if (what == What::kGather) start(MoveDirection::kGather);
      if (what == What::kScatter) start(MoveDirection::kScatter);
      const auto row = static_cast<int64_t>(bytes);
      std::byte* const same = memory_.data() + block * bytes;
      if (what == What::kPiecesOut || what == What::kPiecesIn) Pieces(what, ids, at.data());
      if (what == What::kCopyOut) StreamRows({at.data(), row, same, row, bytes, 1});
      if (what == What::kCopyIn) StreamRows({same, row, at.data(), row, bytes, 1});
      if (what == What::kLanesOut) Lanes(at.data(), same, bytes);
      if (what == What::kLanesIn) Lanes(same, at.data(), bytes);
    }
    return static_cast<double>(blocks_.size()) / (NowMicros() - start) / 1000;
  }

 private:
  static void Lanes(std::byte* to, const std::byte* from, size_t bytes) {
    std::array<RowCopy, kMaxLanes> lanes;
    const size_t part = bytes / kMaxLanes;
    for (size_t i = 0; i < kMaxLanes; ++i)
      lanes[i] = {to + i * part, 0, from + i * part, 0, part, 1};
    StreamLanes(lanes);
  }
  // HND: the same pieces (16 tokens of one head) in the same order, and nothing besides.
  void Pieces(What what, std::span<const int64_t> ids, std::byte* block) {
    constexpr int64_t kPiece = kPageTokens * kRow;
    for (int64_t tensor = 0; tensor < 2 * kLayers; ++tensor) {
      for (int64_t head = 0; head < kHeads; ++head) {
        for (const int64_t id : ids) {
          std::byte* const page =
              memory_.data() + (tensor * kPages + id) * kTensorPage + head * kPiece;
          std::byte* const to = what == What::kPiecesOut ? block : page;
          StreamRows({to, kPiece, to == block ? page : block, kPiece, kPiece, 1});
          block += kPiece;
        }
      }
    }
  }

  HugeMemory memory_;
  BlockLayout layout_;
  HugeMemory blocks_;
  std::unique_ptr<Transfer> transfer_;
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

// On pages of 4 KiB: the movers, and what the same pieces cost without them.
void SmallPageRows(BenchTable* table) {
  using What = Pages::What;
  const struct {
    const char* name;
    What mine, bare;
    std::optional<double> gate;
  } rows[] = {{"gather_of_same_pieces", What::kGather, What::kPiecesOut, 0.95},
              {"scatter_of_same_pieces", What::kScatter, What::kPiecesIn, 0.95},
              {"gather_of_plain_copy", What::kGather, What::kCopyOut, {}},
              {"pieces_of_plain_copy", What::kPiecesOut, What::kCopyOut, {}}};
  std::optional<Pages> pages;
  for (const auto& row : rows) {
    const std::string name = std::string("gpu/small_pages/") + row.name;
    if (!table->Wants(name)) continue;
    if (!pages) pages.emplace(PageOrder::kHnd, /*huge=*/false);
    table->Compare({.name = name,
                    .unit = "GB/s",
                    .better = Better::kHigher,
                    .gate = row.gate,
                    .mine = [&] { return pages->Run(row.mine); },
                    .bare = [&] { return pages->Run(row.bare); }});
  }
}

// How much more a plain copy gets in four streams, as the gather has them.
void StreamRowsOfCopies(BenchTable* table) {
  using What = Pages::What;
  std::optional<Pages> pages;
  for (const auto& [name, mine, bare] : {std::tuple("out", What::kLanesOut, What::kCopyOut),
                                         std::tuple("in", What::kLanesIn, What::kCopyIn)}) {
    const std::string row = std::string("gpu/four_streams_of_plain_copy/") + name;
    if (!table->Wants(row)) continue;
    if (!pages) pages.emplace(PageOrder::kHnd);
    table->Compare({.name = row,
                    .unit = "GB/s",
                    .better = Better::kHigher,
                    .mine = [&, what = mine] { return pages->Run(what); },
                    .bare = [&, what = bare] { return pages->Run(what); }});
  }
}

void RunGpuSuite(BenchTable* table) {
  SmallPageRows(table);
  StreamRowsOfCopies(table);
  Rows(table, PageOrder::kHnd, "hnd", 0.9);
  Rows(table, PageOrder::kCrossLayer, "cross_layer", 0.9);
  Rows(table, PageOrder::kNhd, "nhd", 0.7);
}

KVARVE_BENCH_SUITE(gpu, "an engine's pages to blocks and back on the CPU, beside a plain copy",
                   RunGpuSuite);

}  // namespace
}  // namespace kvarve::perf
