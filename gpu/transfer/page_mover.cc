#include "gpu/transfer/page_mover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "gpu/transfer/row_copy.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// Where K and V rows lie side by side, so many tokens of one are followed by the same of the other:
// then the memory is read and written in its own order.
constexpr uint32_t kTokensTogether = 4;

// Rows that lie at a stride in a page and one after the other in the block.
struct RowsInPage {
  std::byte* page = nullptr;
  int64_t stride = 0;
  uint64_t offset = 0;  // in the block
  uint64_t row_bytes = 0;
  uint32_t rows = 0;
};

// A token's V row lies right behind its K row.
bool SideBySide(const KvView& view, uint32_t layer) {
  const PagedTensor &k = view.layers[layer].k, &v = view.layers[layer].v;
  return view.v_dim > 0 && k.base + view.KRowBytes() == v.base &&
         k.token_stride == v.token_stride && k.head_stride == v.head_stride &&
         k.page_stride == v.page_stride;
}

// Joins what is contiguous on both sides.
template <typename Copy>
class RowJoiner {
 public:
  explicit RowJoiner(Copy copy) : copy_(copy) {}
  ~RowJoiner() { Flush(); }
  void Add(const RowsInPage& next) {
    if (last_.rows == 1 && next.rows == 1 && next.page == last_.page + last_.row_bytes &&
        next.offset == last_.offset + last_.row_bytes) {
      last_.row_bytes += next.row_bytes;
      return;
    }
    Flush();
    last_ = next;
  }

 private:
  void Flush() {
    if (last_.rows > 0) copy_(last_);
  }
  Copy copy_;
  RowsInPage last_;
};

}  // namespace

PageMover::PageMover(KvView view, const BlockLayout& layout)
    : view_(std::move(view)), layout_(layout) {}

absl::StatusOr<PageMover> PageMover::Create(KvView view, const BlockLayout& layout) {
  KV_RETURN_IF_ERROR(ValidateViewFor(view, layout));
  return PageMover(std::move(view), layout);
}

absl::Status PageMover::CheckBlock(size_t bytes) const {
  if (bytes == layout_.BlockBytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("a block of %d bytes where the layout has %d", bytes, layout_.BlockBytes()));
}

absl::Status PageMover::CheckPages(std::span<const int64_t> page_ids, uint32_t token_begin,
                                   uint32_t token_end) const {
  if (page_ids.size() != pages_per_block()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d page ids for a block of %d pages", page_ids.size(), pages_per_block()));
  }
  if (token_begin > token_end || token_end > layout_.tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("tokens [%d, %d) of a block of %d",
                                                      token_begin, token_end, layout_.tokens));
  }
  if (token_begin == token_end) return absl::OkStatus();
  const size_t first = token_begin / view_.page_tokens, last = (token_end - 1) / view_.page_tokens;
  for (size_t i = first; i <= last; ++i) {
    if (page_ids[i] < 0 || page_ids[i] >= view_.pages) {
      return absl::InvalidArgumentError(
          absl::StrFormat("page %d of the block: id %d of %d pages", i, page_ids[i], view_.pages));
    }
    if (std::find(page_ids.begin() + first, page_ids.begin() + i, page_ids[i]) !=
        page_ids.begin() + i) {
      return absl::InvalidArgumentError(
          absl::StrFormat("page id %d stands twice in one block", page_ids[i]));
    }
  }
  return absl::OkStatus();
}

template <typename Copy>
void PageMover::ForEachRows(std::span<const int64_t> page_ids, uint32_t token_begin,
                            uint32_t token_end, Copy copy) const {
  RowJoiner<Copy> joiner(copy);
  // Rows of one head: tokens [begin, end) of one page.
  auto add = [&](const PagedTensor& tensor, uint64_t row_bytes, uint64_t head_offset, uint32_t head,
                 uint32_t begin, uint32_t end) {
    const bool dense = static_cast<uint64_t>(tensor.token_stride) == row_bytes;
    RowsInPage rows;
    rows.page = tensor.Row(page_ids[begin / view_.page_tokens], head, begin % view_.page_tokens);
    rows.stride = tensor.token_stride;
    rows.offset = head_offset + begin * row_bytes;
    rows.row_bytes = dense ? (end - begin) * row_bytes : row_bytes;
    rows.rows = dense ? 1 : end - begin;
    joiner.Add(rows);
  };
  // Calls visit(begin, end) for the pieces of the range, none across a page's end.
  auto for_each_piece = [&](uint32_t max_tokens, auto visit) {
    for (uint32_t begin = token_begin, end; begin < token_end; begin = end) {
      const uint32_t page_left = view_.page_tokens - begin % view_.page_tokens;
      end = begin + std::min({token_end - begin, page_left, max_tokens});
      visit(begin, end);
    }
  };
  for (uint32_t layer = 0; layer < layout_.layers; ++layer) {
    const PagedTensor &k = view_.layers[layer].k, &v = view_.layers[layer].v;
    auto add_k = [&](uint32_t head, uint32_t begin, uint32_t end) {
      add(k, layout_.KRowBytes(), layout_.KOffset(layer, head, 0), head, begin, end);
    };
    auto add_v = [&](uint32_t head, uint32_t begin, uint32_t end) {
      add(v, layout_.VRowBytes(), layout_.VOffset(layer, head, 0), head, begin, end);
    };
    if (SideBySide(view_, layer)) {
      for (uint32_t head = 0; head < layout_.kv_heads; ++head) {
        for_each_piece(kTokensTogether, [&](uint32_t begin, uint32_t end) {
          add_k(head, begin, end);
          add_v(head, begin, end);
        });
      }
      continue;
    }
    for (uint32_t head = 0; head < layout_.kv_heads; ++head) {
      for_each_piece(layout_.tokens,
                     [&](uint32_t begin, uint32_t end) { add_k(head, begin, end); });
    }
    for (uint32_t head = 0; layout_.v_dim > 0 && head < layout_.kv_heads; ++head) {
      for_each_piece(layout_.tokens,
                     [&](uint32_t begin, uint32_t end) { add_v(head, begin, end); });
    }
  }
}

absl::Status PageMover::Gather(std::span<const int64_t> page_ids, uint32_t token_begin,
                               uint32_t token_end, std::span<std::byte> block) const {
  KV_RETURN_IF_ERROR(CheckBlock(block.size()));
  KV_RETURN_IF_ERROR(CheckPages(page_ids, token_begin, token_end));
  ForEachRows(page_ids, token_begin, token_end, [&](const RowsInPage& rows) {
    const int64_t dense = static_cast<int64_t>(rows.row_bytes);
    StreamRows(
        {block.data() + rows.offset, dense, rows.page, rows.stride, rows.row_bytes, rows.rows});
  });
  StreamFence();
  return absl::OkStatus();
}

absl::Status PageMover::Scatter(std::span<const std::byte> block, std::span<const int64_t> page_ids,
                                uint32_t token_begin, uint32_t token_end) const {
  KV_RETURN_IF_ERROR(CheckBlock(block.size()));
  KV_RETURN_IF_ERROR(CheckPages(page_ids, token_begin, token_end));
  ForEachRows(page_ids, token_begin, token_end, [&](const RowsInPage& rows) {
    const int64_t dense = static_cast<int64_t>(rows.row_bytes);
    StreamRows(
        {rows.page, rows.stride, block.data() + rows.offset, dense, rows.row_bytes, rows.rows});
  });
  StreamFence();
  return absl::OkStatus();
}

}  // namespace kvarve
