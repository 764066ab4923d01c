// kvarve._native.attend and key_diff: attention over blocks where they lie, and which of their keys
// are like the others.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/python/native/casts.h"
#include "gpu/attention/attend.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/key_diff.h"
#include "gpu/device/cpu_device.h"

namespace kvarve::python {
namespace {

constexpr uint32_t kSplitTokens = 512;

void CheckBytes(uint64_t got, uint64_t bytes, const char* what) {
  if (got == bytes) return;
  Raise(absl::InvalidArgumentError(
      absl::StrFormat("attend: %s has %d bytes, not %d", what, got, bytes)));
}

namespace py = pybind11;

struct Shape {
  uint32_t layer, layers, kv_heads, block_tokens, k_dim, v_dim;
};

BlockLayout LayoutOf(const Shape& shape, ElementType type) {
  if (shape.layer >= shape.layers) {
    Raise(absl::InvalidArgumentError(
        absl::StrFormat("attend: layer %d of %d", shape.layer, shape.layers)));
  }
  return {shape.layers, shape.kv_heads, shape.block_tokens,
          shape.k_dim,  shape.v_dim,    ElementBytes(type)};
}

// Blocks by their first bytes. They stay exported while this lives, and a View's lease with them.
struct TakenBlocks {
  TakenBlocks(const py::sequence& blocks, uint64_t bytes) {
    for (const py::handle& block : blocks) {
      kept.emplace_back(block);
      CheckBytes(kept.back().size(), bytes, "a block");
      at.push_back(kept.back().data());
    }
  }
  std::vector<ReadBuffer> kept;
  std::vector<const std::byte*> at;
};

// A whole buffer that is written to.
std::span<float> Output(const py::buffer_info& info, uint64_t numbers, const char* what) {
  CheckBytes(static_cast<uint64_t>(info.size * info.itemsize), numbers * sizeof(float), what);
  return {static_cast<float*>(info.ptr), numbers};
}

void Attend(const py::handle& q, const py::sequence& blocks, const py::buffer& out,
            const py::buffer& lse, const Shape& shape, ElementType type,
            const AttentionOptions& options, AttentionSequence sequence, uint32_t threads) {
  const BlockLayout layout = LayoutOf(shape, type);
  const AttentionPages pages = BlockPages(layout, shape.layer, type);
  const uint64_t rows = uint64_t{sequence.q_tokens} * options.q_heads;
  const ReadBuffer queries(q);
  CheckBytes(queries.size(), rows * shape.k_dim * sizeof(float), "q");
  const py::buffer_info outputs = out.request(true), sums = lse.request(true);
  AttendRequest request;
  request.pages = pages;
  request.options = options;
  request.q = {reinterpret_cast<const float*>(queries.data()), rows * shape.k_dim};
  request.out = Output(outputs, rows * pages.v_dim, "out");
  request.lse = Output(sums, rows, "lse");
  request.threads = threads;
  const TakenBlocks taken(blocks, layout.BlockBytes());
  sequence.blocks = taken.at;
  request.sequences = std::span(&sequence, 1);
  const std::unique_ptr<Attender> attender = ValueOrRaise(Attender::Create(NewCpuDevice(), 0));
  OkOrRaise(WithoutGil([&] { return attender->Run(request); }));
}

// Scores [kv_heads][tokens], and of each block's tokens their mean.
void ScoreKeys(const py::sequence& blocks, const py::buffer& scores, const py::buffer& of_blocks,
               const Shape& shape, ElementType type, int64_t tokens) {
  const BlockLayout layout = LayoutOf(shape, type);
  const TakenBlocks taken(blocks, layout.BlockBytes());
  const KeyDiffSequence sequence{.blocks = taken.at, .tokens = tokens};
  const py::buffer_info each = scores.request(true), means = of_blocks.request(true);
  const auto count = static_cast<uint64_t>(tokens);
  const uint64_t per_block = std::max(1u, shape.block_tokens);
  const std::span<float> each_out = Output(each, shape.kv_heads * count, "scores");
  const std::span<float> means_out =
      Output(means, (count + per_block - 1) / per_block, "of_blocks");
  OkOrRaise(WithoutGil([&] {
    return KeyDiff(BlockPages(layout, shape.layer, type), sequence, shape.block_tokens, each_out,
                   means_out);
  }));
}

// `base_two`: of each part, whether its log-sum-exps are of base 2. `sinks`: none, or one a head.
void Merge(const py::sequence& outs, const py::sequence& lses, const py::sequence& base_two,
           const py::object& sinks, const py::buffer& out, const py::buffer& lse, uint64_t tokens,
           uint64_t heads, uint64_t dim) {
  if (py::len(outs) != py::len(lses) || py::len(outs) != py::len(base_two)) {
    Raise(absl::InvalidArgumentError("merge_states: as many outputs as log-sum-exps and bases"));
  }
  const uint64_t rows = tokens * heads;
  std::vector<ReadBuffer> kept;
  std::vector<std::vector<float>> natural(py::len(outs));
  std::vector<AttentionState> states;
  for (size_t i = 0; i < py::len(outs); ++i) {
    const ReadBuffer& part = kept.emplace_back(outs[i]);
    CheckBytes(part.size(), rows * dim * sizeof(float), "an output");
    const auto* const values = reinterpret_cast<const float*>(part.data());
    const ReadBuffer& sum = kept.emplace_back(lses[i]);
    CheckBytes(sum.size(), rows * sizeof(float), "a log-sum-exp");
    const auto* const begin = reinterpret_cast<const float*>(sum.data());
    const LseBase base = base_two[i].cast<bool>() ? LseBase::kTwo : LseBase::kNatural;
    for (uint64_t row = 0; row < rows; ++row) natural[i].push_back(NaturalLse(begin[row], base));
    states.push_back({values, natural[i].data()});
  }
  std::vector<float> row_sinks;
  if (!sinks.is_none()) {
    const ReadBuffer& given = kept.emplace_back(sinks);
    CheckBytes(given.size(), heads * sizeof(float), "sinks");
    const auto* const begin = reinterpret_cast<const float*>(given.data());
    for (uint64_t row = 0; row < rows; ++row) row_sinks.push_back(begin[row % heads]);
  }
  const py::buffer_info outputs = out.request(true), sums = lse.request(true);
  MergeStates(states, rows, dim, row_sinks, Output(outputs, rows * dim, "out").data(),
              Output(sums, rows, "lse").data());
}

}  // namespace

void BindAttention(py::module_& module) {
  module.def(
      "attend",
      [](const py::object& q, const py::sequence& blocks, const py::buffer& out,
         const py::buffer& lse, uint32_t q_tokens, uint32_t q_heads, uint32_t layer,
         uint32_t layers, uint32_t kv_heads, uint32_t block_tokens, uint32_t k_dim, uint32_t v_dim,
         ElementType element_type, int64_t kv_tokens, int64_t kv_position, int64_t q_position,
         float scale, float soft_cap, int64_t window, uint32_t threads) {
        const uint32_t split =
            block_tokens == 0 ? 0 : (kSplitTokens + block_tokens - 1) / block_tokens * block_tokens;
        Attend(q, blocks, out, lse, {layer, layers, kv_heads, block_tokens, k_dim, v_dim},
               element_type,
               {.q_heads = q_heads,
                .scale = scale,
                .soft_cap = soft_cap,
                .window = window,
                .split_tokens = split},
               {.kv_tokens = kv_tokens,
                .kv_position = kv_position,
                .q_position = q_position,
                .q_tokens = q_tokens},
               threads);
      },
      py::arg("q"), py::arg("blocks"), py::arg("out"), py::arg("lse"), py::kw_only(),
      py::arg("q_tokens"), py::arg("q_heads"), py::arg("layer"), py::arg("layers"),
      py::arg("kv_heads"), py::arg("block_tokens"), py::arg("k_dim"), py::arg("v_dim"),
      py::arg("element_type"), py::arg("kv_tokens"), py::arg("kv_position"), py::arg("q_position"),
      py::arg("scale"), py::arg("soft_cap"), py::arg("window"), py::arg("threads"));
  module.def(
      "key_diff",
      [](const py::sequence& blocks, const py::buffer& scores, const py::buffer& of_blocks,
         uint32_t layer, uint32_t layers, uint32_t kv_heads, uint32_t block_tokens, uint32_t k_dim,
         uint32_t v_dim, ElementType element_type, uint32_t tokens) {
        ScoreKeys(blocks, scores, of_blocks, {layer, layers, kv_heads, block_tokens, k_dim, v_dim},
                  element_type, tokens);
      },
      py::arg("blocks"), py::arg("scores"), py::arg("of_blocks"), py::kw_only(), py::arg("layer"),
      py::arg("layers"), py::arg("kv_heads"), py::arg("block_tokens"), py::arg("k_dim"),
      py::arg("v_dim"), py::arg("element_type"), py::arg("tokens"));
  module.def("merge_states", &Merge, py::arg("outs"), py::arg("lses"), py::arg("base_two"),
             py::arg("sinks"), py::arg("out"), py::arg("lse"), py::arg("tokens"), py::arg("heads"),
             py::arg("dim"));
}

}  // namespace kvarve::python
