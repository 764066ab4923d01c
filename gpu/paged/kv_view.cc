#include "gpu/paged/kv_view.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

absl::Status Bad(size_t layer, std::string_view name, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("layer %d, %s: %s", layer, name, why));
}

struct Dimension {
  std::string_view name;
  int64_t stride;
  int64_t count;
};

absl::Status CheckTensor(const PagedTensor& tensor, uint64_t row_bytes, const KvView& view,
                         size_t layer, std::string_view name) {
  if (tensor.base == nullptr) return Bad(layer, name, "no memory");
  if (tensor.bytes <= 0)
    return Bad(layer, name, absl::StrFormat("a size of %d bytes", tensor.bytes));
  std::array<Dimension, 3> dimensions = {{{"page", tensor.page_stride, view.pages},
                                          {"head", tensor.head_stride, view.kv_heads},
                                          {"token", tensor.token_stride, view.page_tokens}}};
  for (const Dimension& dimension : dimensions) {
    if (dimension.stride < 0)
      return Bad(layer, name, absl::StrFormat("a negative %s stride", dimension.name));
  }
  // From the innermost dimension outwards each step must clear all that lies inside it.
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  __int128 extent = row_bytes;
  for (const Dimension& dimension : dimensions) {
    if (dimension.count <= 1) continue;
    if (dimension.stride < extent) {
      return Bad(layer, name,
                 absl::StrFormat("rows overlap: a %s stride of %d bytes", dimension.name,
                                 dimension.stride));
    }
    extent += static_cast<__int128>(dimension.stride) * (dimension.count - 1);
  }
  if (extent > tensor.bytes) {
    return Bad(layer, name,
               absl::StrFormat("%d pages do not fit into its %d bytes", view.pages, tensor.bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateView(const KvView& view) {
  if (view.packing == RowPacking::kXPacked)
    return absl::InvalidArgumentError("x-packed rows: a row must be contiguous");
  if (view.packing == RowPacking::kBlockedScales)
    return absl::InvalidArgumentError("blocked scales: a row must carry its own");
  if (view.layers.empty()) return absl::InvalidArgumentError("a KV view without layers");
  if (view.pages <= 0) return absl::InvalidArgumentError("a KV view without pages");
  if (view.page_tokens == 0)
    return absl::InvalidArgumentError("a KV view whose pages have no tokens");
  if (view.kv_heads == 0) return absl::InvalidArgumentError("a KV view without KV heads");
  if (view.KRowBytes() == 0)
    return absl::InvalidArgumentError("a KV view whose K rows have no bytes");
  for (size_t layer = 0; layer < view.layers.size(); ++layer) {
    KV_RETURN_IF_ERROR(CheckTensor(view.layers[layer].k, view.KRowBytes(), view, layer, "K"));
    if (view.v_dim > 0) {
      KV_RETURN_IF_ERROR(CheckTensor(view.layers[layer].v, view.VRowBytes(), view, layer, "V"));
    } else if (view.layers[layer].v.base != nullptr) {
      return Bad(layer, "V", "memory, though v_dim is 0");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateViewFor(const KvView& view, const BlockLayout& layout) {
  KV_RETURN_IF_ERROR(ValidateView(view));
  struct {
    std::string_view name;
    uint64_t of_view, of_block;
  } const pairs[] = {{"layers", view.layers.size(), layout.layers},
                     {"KV heads", view.kv_heads, layout.kv_heads},
                     {"k_dim", view.k_dim, layout.k_dim},
                     {"v_dim", view.v_dim, layout.v_dim},
                     {"bytes an element", view.element_bytes, layout.element_bytes}};
  for (const auto& pair : pairs) {
    if (pair.of_view != pair.of_block) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %d in the KV view, %d in a block",
                                                        pair.name, pair.of_view, pair.of_block));
    }
  }
  if (layout.tokens == 0 || layout.tokens % view.page_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a block's %d tokens are no multiple of a page's %d", layout.tokens, view.page_tokens));
  }
  if (layout.CappedBlockBytes() > kMaxBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("blocks of more than %d bytes", kMaxBlockBytes));
  }
  return absl::OkStatus();
}

}  // namespace kvarve
