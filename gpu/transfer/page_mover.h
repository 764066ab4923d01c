// Moves KV between an engine's pages and blocks in the canonical layout, on the CPU.
//
// A block spans layout.tokens / view.page_tokens pages, named by their ids in the order of the
// tokens. Both ways take a range of the block's tokens, [token_begin, token_end): only its rows are
// read and written, only the ids of pages that it touches are looked at (others may be -1), no
// other byte of a page or of the block changes.
//
// Bytes go around the cache: others read them later. Everything is checked before a byte moves;
// InvalidArgument says what is wrong, and nothing has moved.
//
// THREADS: any; two calls at once must not write the same rows.  BLOCKS: never.
#ifndef KVARVE_GPU_TRANSFER_PAGE_MOVER_H_
#define KVARVE_GPU_TRANSFER_PAGE_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/paged/kv_view.h"
#include "storage/block/layout.h"

namespace kvarve {

class PageMover {
 public:
  // InvalidArgument: ValidateViewFor. The view's memory must outlive the mover.
  static absl::StatusOr<PageMover> Create(KvView view, const BlockLayout& layout);

  const BlockLayout& layout() const { return layout_; }
  uint32_t pages_per_block() const { return layout_.tokens / view_.page_tokens; }

  // What Gather and Scatter would answer to these ids and tokens.
  absl::Status CheckPages(std::span<const int64_t> page_ids, uint32_t token_begin,
                          uint32_t token_end) const;
  // Pages to block. `block` has BlockBytes().
  absl::Status Gather(std::span<const int64_t> page_ids, uint32_t token_begin, uint32_t token_end,
                      std::span<std::byte> block) const;
  // Block to pages.
  absl::Status Scatter(std::span<const std::byte> block, std::span<const int64_t> page_ids,
                       uint32_t token_begin, uint32_t token_end) const;

 private:
  PageMover(KvView view, const BlockLayout& layout);
  absl::Status CheckBlock(size_t bytes) const;
  // Calls copy(RowsInPage) for all rows of the range; what is contiguous on both sides comes as one
  // row.
  template <typename Copy>
  void ForEachRows(std::span<const int64_t> page_ids, uint32_t token_begin, uint32_t token_end,
                   Copy copy) const;

  KvView view_;
  BlockLayout layout_;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_TRANSFER_PAGE_MOVER_H_
