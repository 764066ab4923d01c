#include "gpu/kernels/paged_memory_testing.h"

#include <algorithm>

namespace kvarve::testing {
namespace {

constexpr int64_t kSlack = 64;  // before and behind all pages; must stay as it is

}  // namespace

const char* NameOf(PageLayout layout) {
  constexpr const char* kNames[] = {"NHD", "HND", "interleaved", "cross-layer", "MLA"};
  return kNames[static_cast<int>(layout)];
}

PagedMemory::PagedMemory(PageLayout layout, uint32_t page_tokens, uint32_t align,
                         uint32_t element_bytes, SeededRandom* random) {
  const uint32_t layers = 2, pages = 7;
  const bool mla = layout == PageLayout::kMla;
  view.pages = pages;
  view.page_tokens = page_tokens;
  view.kv_heads = mla ? 1 : 1 + random->Below(3);
  view.element_bytes = element_bytes != 0 ? element_bytes : std::min(align, 1u << random->Below(3));
  // Rows of a multiple of `align` bytes; of an odd multiple where K and V may differ.
  const uint32_t unit = std::max(align, view.element_bytes) / view.element_bytes * 4;
  view.k_dim = unit * (1 + random->Below(mla ? 9 : 3));
  view.v_dim = mla ? 0 : random->OneIn(3) ? unit * (1 + random->Below(3)) : view.k_dim;
  block = {layers,     view.kv_heads, page_tokens * (2 + static_cast<uint32_t>(random->Below(2))),
           view.k_dim, view.v_dim,    view.element_bytes};
  const int64_t k_row = view.KRowBytes(), v_row = view.VRowBytes(), n = page_tokens,
                h = view.kv_heads;
  const int64_t gap = random->OneIn(2) ? 0 : align;  // between pages
  const int64_t k_page = n * h * k_row + gap, v_page = n * h * v_row + gap;
  int64_t at = kSlack + align % 16;
  for (uint32_t i = 0; i < layers; ++i) {
    int64_t k_at = at, v_at = at + pages * k_page;
    PagedTensor k, v;
    k.page_stride = k_page, v.page_stride = v_page;
    k.token_stride = h * k_row, k.head_stride = k_row;
    v.token_stride = h * v_row, v.head_stride = v_row;
    int64_t next = v_at + pages * v_page;
    if (layout == PageLayout::kHnd) {
      k.token_stride = k_row, k.head_stride = n * k_row;
      v.token_stride = v_row, v.head_stride = n * v_row;
    } else if (layout == PageLayout::kInterleaved) {  // [page][head][token][K dim + V dim]
      k.token_stride = v.token_stride = k_row + v_row;
      k.head_stride = v.head_stride = n * (k_row + v_row);
      k.page_stride = v.page_stride = h * n * (k_row + v_row) + gap;
      v_at = k_at + k_row;
      next = k_at + pages * k.page_stride;
    } else if (layout == PageLayout::kCrossLayer) {  // [page][layer][K, V][head][token][dim]
      k.token_stride = k_row, k.head_stride = n * k_row;
      v.token_stride = v_row, v.head_stride = n * v_row;
      k.page_stride = v.page_stride = layers * (n * h * (k_row + v_row) + gap);
      v_at = k_at + n * h * k_row;
      next = i + 1 < layers ? k_at + n * h * (k_row + v_row) + gap : k_at + pages * k.page_stride;
    } else if (mla) {
      next = k_at + pages * k_page;
    }
    k.bytes =
        (pages - 1) * k.page_stride + (h - 1) * k.head_stride + (n - 1) * k.token_stride + k_row;
    v.bytes =
        (pages - 1) * v.page_stride + (h - 1) * v.head_stride + (n - 1) * v.token_stride + v_row;
    k.base = reinterpret_cast<std::byte*>(k_at);
    v.base = reinterpret_cast<std::byte*>(v_at);
    view.layers.push_back({k, mla ? PagedTensor{} : v});
    at = next;
  }
  bytes.resize(at + kSlack);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random->Next());
  for (LayerView& layer : view.layers) {
    layer.k.base = bytes.data() + reinterpret_cast<intptr_t>(layer.k.base);
    if (!mla) layer.v.base = bytes.data() + reinterpret_cast<intptr_t>(layer.v.base);
  }
}

}  // namespace kvarve::testing
