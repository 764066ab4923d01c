#include "gpu/paged/kv_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// What vLLM 0.32 registers on CPU for SmolLM2-135M in bf16: [364, 3, 128, 128], strides [49152,
// 16384, 128, 1]. Only addresses are computed, so that the memory need not exist.
KvView SmolLm2() {
  KvView view;
  view.pages = 364;
  view.page_tokens = 128;
  view.kv_heads = 3;
  view.k_dim = view.v_dim = 64;
  view.element_bytes = 2;
  const int64_t tensor_bytes = 364ll * 49152 * 2;
  for (int layer = 0; layer < 30; ++layer) {
    auto* base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40) + layer * tensor_bytes;
    PagedTensor k = {base, tensor_bytes, 49152 * 2, 16384 * 2, 128 * 2};
    PagedTensor v = {base + 128, tensor_bytes - 128, 49152 * 2, 16384 * 2, 128 * 2};
    view.layers.push_back({k, v});
  }
  return view;
}

BlockLayout SmolLm2Block() { return {30, 3, 128, 64, 64, 2}; }

TEST(KvViewTest, ARealLayoutIsAccepted) {
  EXPECT_TRUE(ValidateViewFor(SmolLm2(), SmolLm2Block()).ok())
      << ValidateViewFor(SmolLm2(), SmolLm2Block());
  KvView view = SmolLm2();
  view.layers[29].v.bytes -= 1;  // the last row ends on the tensor's last byte
  EXPECT_THAT(ToStd(ValidateView(view).message()), HasSubstr("layer 29, V: 364 pages do not fit"));
}

TEST(KvViewTest, SaysWhatIsWrong) {
  const std::pair<const char*, std::function<void(KvView&)>> cases[] = {
      {"without layers", [](KvView& v) { v.layers.clear(); }},
      {"without pages", [](KvView& v) { v.pages = 0; }},
      {"without pages", [](KvView& v) { v.pages = -1; }},
      {"no tokens", [](KvView& v) { v.page_tokens = 0; }},
      {"without KV heads", [](KvView& v) { v.kv_heads = 0; }},
      {"no bytes", [](KvView& v) { v.k_dim = 0; }},
      {"no bytes", [](KvView& v) { v.element_bytes = 0; }},
      {"layer 3, K: no memory", [](KvView& v) { v.layers[3].k.base = nullptr; }},
      {"layer 3, V: no memory", [](KvView& v) { v.layers[3].v.base = nullptr; }},
      {"layer 0, K: a size of -5 bytes", [](KvView& v) { v.layers[0].k.bytes = -5; }},
      {"layer 0, K: 365 pages do not fit", [](KvView& v) { v.pages = 365; }},
      {"layer 1, K: a negative page stride", [](KvView& v) { v.layers[1].k.page_stride = -1; }},
      {"layer 1, V: a negative token stride", [](KvView& v) { v.layers[1].v.token_stride = -256; }},
      {"layer 2, K: a negative head stride", [](KvView& v) { v.layers[2].k.head_stride = -256; }},
      {"layer 2, K: rows overlap: a token stride of 127",
       [](KvView& v) { v.layers[2].k.token_stride = 127; }},
      {"layer 2, K: rows overlap: a token stride of 0",
       [](KvView& v) { v.layers[2].k.token_stride = 0; }},
      {"layer 2, K: rows overlap: a head stride",
       [](KvView& v) { v.layers[2].k.head_stride = 512; }},
      {"layer 2, K: rows overlap: a page stride",
       [](KvView& v) { v.layers[2].k.page_stride = 49152; }},
      {"layer 2, K: 364 pages do not fit", [](KvView& v) { v.layers[2].k.page_stride = kMax; }},
      {"layer 0, K: 364 pages do not fit",
       [](KvView& v) {  // with one head and one token a page, their strides do not matter
         v.layers[0].k.page_stride = v.layers[0].k.head_stride = v.layers[0].k.token_stride = kMax;
         v.page_tokens = v.kv_heads = 1;
       }},
      {"though v_dim is 0", [](KvView& v) { v.v_dim = 0; }},
  };
  for (const auto& [text, change] : cases) {
    KvView view = SmolLm2();
    change(view);
    const absl::Status status = ValidateView(view);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(ToStd(status.message()), HasSubstr(text));
  }
}

TEST(KvViewTest, SaysHowABlockDiffers) {
  const std::pair<const char*, std::function<void(BlockLayout&)>> cases[] = {
      {"layers: 30 in the KV view, 31 in a block", [](BlockLayout& b) { b.layers = 31; }},
      {"KV heads: 3 in the KV view, 9 in a block", [](BlockLayout& b) { b.kv_heads = 9; }},
      {"k_dim", [](BlockLayout& b) { b.k_dim = 65; }},
      {"v_dim", [](BlockLayout& b) { b.v_dim = 0; }},
      {"bytes an element", [](BlockLayout& b) { b.element_bytes = 4; }},
      {"a block's 192 tokens are no multiple of a page's 128",
       [](BlockLayout& b) { b.tokens = 192; }},
      {"no multiple", [](BlockLayout& b) { b.tokens = 0; }},
      {"blocks of more than 16777216 bytes", [](BlockLayout& b) { b.tokens = 1u << 31; }},
  };
  for (const auto& [text, change] : cases) {
    BlockLayout block = SmolLm2Block();
    change(block);
    EXPECT_THAT(ToStd(ValidateViewFor(SmolLm2(), block).message()), HasSubstr(text));
  }
}

}  // namespace
}  // namespace kvarve
