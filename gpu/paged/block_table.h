// One sequence's tokens -> pages. Grows by whole pages as tokens come; pages are shared with forks
// and with other sequences of the same prefix until somebody writes.
//
// Nobody writes a page that another table holds or that has a key: PrepareWrite and Append first
// give the table a page of its own and queue a copy of the old one (PagePool::TakeCopies). Fork and
// PublishPrefix speak of bytes, so they come when the copies and writes of what was appended are on
// the stream; tokens that are truncated before that are not written.
//
// THREADS: that of its pool, which must outlive it.  BLOCKS: never, but an eviction hook may.
#ifndef KVARVE_GPU_PAGED_BLOCK_TABLE_H_
#define KVARVE_GPU_PAGED_BLOCK_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/paged/page_pool.h"

namespace kvarve {

class BlockTable {
 public:
  static constexpr int64_t kMaxTokens = 1 << 24;

  explicit BlockTable(PagePool* pool) : pool_(pool) {}
  BlockTable(BlockTable&& other) noexcept { *this = std::move(other); }
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Truncate(0); }

  int64_t tokens() const { return tokens_; }
  std::span<const PageId> pages() const { return pages_; }
  // Where a token's row lies: page id × tokens a page + place in the page, as engines number slots.
  int64_t Slot(int64_t token) const {
    return pages_[token / PageTokens()] * PageTokens() + token % PageTokens();
  }

  // Takes over the leading pages that the pool has for `keys`, one key a full page; returns how
  // many tokens they hold. REQUIRES: an empty table.
  int64_t AdoptPrefix(std::span<const BlockKey> keys);
  // Names the table's leading full pages, one key each, so that others can adopt them. A page
  // whose key somebody else published first stays this table's own. Returns how many were named.
  int64_t PublishPrefix(std::span<const BlockKey> keys);

  // Room for `count` more tokens; their slots are Slot(tokens()) … before the call. All or nothing:
  // ResourceExhausted; FailedPrecondition: a page to be copied awaits a copy itself (TakeCopies
  // first); InvalidArgument: beyond kMaxTokens.
  absl::Status Append(int64_t count);
  // Makes the tokens [begin, end) writable. REQUIRES: within tokens(). Errors as Append's.
  absl::Status PrepareWrite(int64_t begin, int64_t end);

  // A second table with the same tokens and the same pages.
  BlockTable Fork() const;
  // Forgets the tokens from `tokens` on. REQUIRES: at most tokens().
  void Truncate(int64_t tokens);

 private:
  int64_t PageTokens() const { return pool_->page_tokens(); }
  bool Own(PageId page) const { return pool_->references(page) == 1 && !pool_->published(page); }
  // `count` new pages. All or nothing.
  absl::StatusOr<std::vector<PageId>> Take(int64_t count);

  PagePool* pool_ = nullptr;
  int64_t tokens_ = 0;
  std::vector<PageId> pages_;
};

// How much of the held memory carries tokens, over the tables that hold it.
struct Fragmentation {
  int64_t tokens = 0;         // of all tables: what they could read
  int64_t stored_tokens = 0;  // a token in a shared page counts once
  int64_t held_slots = 0;     // token places of the tables' pages, each page once
  // Share of held token places that carry no token; 0 when nothing is held.
  double Waste() const {
    return held_slots == 0 ? 0 : 1 - static_cast<double>(stored_tokens) / held_slots;
  }
};
// REQUIRES: tables of one pool.
Fragmentation MeasureFragmentation(const PagePool& pool, std::span<const BlockTable* const> tables);

}  // namespace kvarve

#endif  // KVARVE_GPU_PAGED_BLOCK_TABLE_H_
