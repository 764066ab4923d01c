#include "gpu/paged/block_table.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

int64_t PagesFor(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

}  // namespace

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Truncate(0);
  pool_ = other.pool_;
  tokens_ = std::exchange(other.tokens_, 0);
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

int64_t BlockTable::AdoptPrefix(std::span<const BlockKey> keys) {
  KV_CHECK(tokens_ == 0);
  for (const BlockKey& key : keys) {
    if (tokens_ + PageTokens() > kMaxTokens) break;
    const std::optional<PageId> page = pool_->FindAndHold(key);
    if (!page) break;
    pages_.push_back(*page);
    tokens_ += PageTokens();
  }
  return tokens_;
}

int64_t BlockTable::PublishPrefix(std::span<const BlockKey> keys) {
  const int64_t full = std::min<int64_t>(keys.size(), tokens_ / PageTokens());
  int64_t named = 0;
  for (int64_t i = 0; i < full; ++i) named += pool_->Publish(pages_[i], keys[i]);
  return named;
}

absl::StatusOr<std::vector<PageId>> BlockTable::Take(int64_t count) {
  // Asked for first: an allocation that is given back would have evicted for nothing.
  if (count > pool_->available()) {
    return absl::ResourceExhaustedError(absl::StrFormat("%d pages wanted, %d to be had of %d",
                                                        count, pool_->available(), pool_->pages()));
  }
  std::vector<PageId> taken(count);
  for (PageId& page : taken) {
    const absl::StatusOr<PageId> given = pool_->Allocate();
    KV_CHECK(given.ok());
    page = *given;
  }
  return taken;
}

absl::Status BlockTable::Append(int64_t count) {
  if (count < 0 || count > kMaxTokens - tokens_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d tokens behind %d; a sequence has at most %d", count, tokens_, kMaxTokens));
  }
  if (count == 0) return absl::OkStatus();
  const int64_t grown =
      PagesFor(tokens_ + count, PageTokens()) - static_cast<int64_t>(pages_.size());
  const int64_t open = tokens_ % PageTokens();
  const int64_t copies = open > 0 && !Own(pages_.back()) ? 1 : 0;
  if (grown + copies > pool_->available()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d pages wanted, %d to be had of %d", grown + copies, pool_->available(), pool_->pages()));
  }
  if (copies > 0) KV_RETURN_IF_ERROR(PrepareWrite(tokens_ - open, tokens_));
  KV_ASSIGN_OR_RETURN(const std::vector<PageId> taken, Take(grown));
  pages_.insert(pages_.end(), taken.begin(), taken.end());
  tokens_ += count;
  return absl::OkStatus();
}

absl::Status BlockTable::PrepareWrite(int64_t begin, int64_t end) {
  KV_CHECK(begin >= 0 && begin <= end && end <= tokens_);
  if (begin == end) return absl::OkStatus();
  std::vector<int64_t> shared;
  for (int64_t i = begin / PageTokens(); i <= (end - 1) / PageTokens(); ++i) {
    if (Own(pages_[i])) continue;
    if (pool_->AwaitsCopy(pages_[i])) {
      return absl::FailedPreconditionError("the page is itself the end of a copy not yet taken");
    }
    shared.push_back(i);
  }
  KV_ASSIGN_OR_RETURN(const std::vector<PageId> taken, Take(static_cast<int64_t>(shared.size())));
  for (size_t k = 0; k < shared.size(); ++k) {
    PageId& page = pages_[shared[k]];
    pool_->QueueCopy({page, taken[k]});
    pool_->Release(std::exchange(page, taken[k]));
  }
  return absl::OkStatus();
}

BlockTable BlockTable::Fork() const {
  BlockTable fork(pool_);
  for (const PageId page : pages_) pool_->Hold(page);
  fork.pages_ = pages_;
  fork.tokens_ = tokens_;
  return fork;
}

void BlockTable::Truncate(int64_t tokens) {
  KV_CHECK(tokens >= 0 && tokens <= tokens_);
  tokens_ = tokens;
  if (pages_.empty()) return;
  const size_t kept = PagesFor(tokens, PageTokens());
  // From the end: of a chain's cached pages the last ones leave first.
  while (pages_.size() > kept) {
    pool_->Release(pages_.back());
    pages_.pop_back();
  }
}

Fragmentation MeasureFragmentation(const PagePool& pool,
                                   std::span<const BlockTable* const> tables) {
  const int64_t page_tokens = pool.page_tokens();
  Fragmentation sum;
  std::unordered_map<PageId, int64_t> carried;
  for (const BlockTable* table : tables) {
    sum.tokens += table->tokens();
    int64_t left = table->tokens();
    for (const PageId page : table->pages()) {
      int64_t& tokens = carried[page];
      tokens = std::max(tokens, std::min(left, page_tokens));
      left -= page_tokens;
    }
  }
  for (const auto& [page, tokens] : carried) sum.stored_tokens += tokens;
  sum.held_slots = static_cast<int64_t>(carried.size()) * page_tokens;
  return sum;
}

}  // namespace kvarve
