// An engine's paged KV, described by strides and not by a list of formats: where the row (page, KV
// head, token) of each layer's K and of its V lies. A row is one token's elements of one head,
// contiguous. K and V may share a tensor: vLLM's CPU layout [pages, heads, tokens, K dim + V dim]
// has V's base k_dim elements behind K's.
//
// A value: THREADS: any. Strides and sizes are bytes.
#ifndef KVARVE_GPU_PAGED_KV_VIEW_H_
#define KVARVE_GPU_PAGED_KV_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "storage/block/layout.h"

namespace kvarve {

struct PagedTensor {
  std::byte* base = nullptr;  // row (0, 0, 0)
  int64_t bytes = 0;          // of the tensor's memory from `base` on; nothing beyond is touched
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;

  std::byte* Row(int64_t page, int64_t head, int64_t token) const {
    return base + page * page_stride + head * head_stride + token * token_stride;
  }
};

struct LayerView {
  PagedTensor k;
  PagedTensor v;  // base null when v_dim is 0
};

// Formats that strides cannot say; ValidateView refuses them by name.
enum class RowPacking {
  kRows,          // a row is contiguous
  kXPacked,       // a row is cut into pieces of 16 bytes, the tokens of a page between them
  kBlockedScales  // a page's scales lie behind all of its rows
};

struct KvView {
  std::vector<LayerView> layers;
  int64_t pages = 0;         // ids 0 .. pages - 1
  uint32_t page_tokens = 0;  // tokens a page
  uint32_t kv_heads = 0;
  uint32_t k_dim = 0;  // elements a row
  uint32_t v_dim = 0;  // 0 for MLA
  uint32_t element_bytes = 0;
  RowPacking packing = RowPacking::kRows;

  uint64_t KRowBytes() const { return uint64_t{k_dim} * element_bytes; }
  uint64_t VRowBytes() const { return uint64_t{v_dim} * element_bytes; }
};

// Every row of every page lies inside its tensor's bytes, no two rows of one tensor overlap, no
// stride is negative. InvalidArgument names the layer, the tensor and what is wrong.
absl::Status ValidateView(const KvView& view);
// The view holds what a block holds: layers, heads, dimensions, element size; a block's tokens are
// a multiple of a page's. InvalidArgument names what differs.
absl::Status ValidateViewFor(const KvView& view, const BlockLayout& layout);

}  // namespace kvarve

#endif  // KVARVE_GPU_PAGED_KV_VIEW_H_
