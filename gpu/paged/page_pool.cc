#include "gpu/paged/page_pool.h"

#include <limits>
#include <utility>

#include "storage/base/status_macros.h"

namespace kvarve {

PagePool::PagePool(const PagePoolOptions& options, EvictionHook hook)
    : page_tokens_(options.page_tokens), hook_(std::move(hook)) {
  KV_CHECK(options.pages > 0 && options.pages <= std::numeric_limits<int32_t>::max());
  KV_CHECK(options.page_tokens > 0);
  slots_.resize(options.pages);
  free_.reserve(options.pages);
  for (PageId page = options.pages - 1; page >= 0; --page) free_.push_back(page);
}

absl::StatusOr<PageId> PagePool::Allocate() {
  PageId page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (oldest_ != kNone) {
    page = oldest_;
    UnlinkCached(page);
    Slot& slot = slots_[page];
    by_key_.erase(slot.key);
    slot.has_key = false;
    ++evictions_;
    if (hook_) hook_(page, slot.key);
  } else {
    return absl::ResourceExhaustedError("every page is held");
  }
  slots_[page].holders = 1;
  return page;
}

void PagePool::Hold(PageId page) {
  KV_CHECK(slots_[page].holders > 0);
  ++slots_[page].holders;
}

void PagePool::Release(PageId page) {
  Slot& slot = slots_[page];
  KV_CHECK(slot.holders > 0);
  --slot.holders;
  if (Idle(slot)) Park(page);
}

void PagePool::Park(PageId page) {
  if (slots_[page].has_key) {
    LinkCached(page);
  } else {
    free_.push_back(page);
  }
}

bool PagePool::Publish(PageId page, const BlockKey& key) {
  Slot& slot = slots_[page];
  KV_CHECK(slot.holders > 0);
  if (slot.has_key || !by_key_.emplace(key, page).second) return false;
  slot.has_key = true;
  slot.key = key;
  return true;
}

std::optional<PageId> PagePool::FindAndHold(const BlockKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  Slot& slot = slots_[found->second];
  if (Idle(slot)) UnlinkCached(found->second);
  ++slot.holders;
  return found->second;
}

void PagePool::Forget(PageId page) {
  Slot& slot = slots_[page];
  if (!slot.has_key) return;
  by_key_.erase(slot.key);
  slot.has_key = false;
  if (!Idle(slot)) return;
  UnlinkCached(page);
  free_.push_back(page);
}

void PagePool::QueueCopy(const PageCopy& copy) {
  Slot &from = slots_[copy.from], &to = slots_[copy.to];
  KV_CHECK(copy.from != copy.to && from.holders > 0 && to.holders > 0);
  KV_CHECK(!from.copy_target && to.queued == 0);
  ++from.queued;
  ++to.queued;
  to.copy_target = true;
  copies_.push_back(copy);
  ++copies_queued_;
}

std::vector<PageCopy> PagePool::TakeCopies() {
  std::vector<PageCopy> taken;
  taken.swap(copies_);
  for (const PageCopy& copy : taken) {
    slots_[copy.to].copy_target = false;
    for (const PageId page : {copy.from, copy.to}) {
      --slots_[page].queued;
      if (Idle(slots_[page])) Park(page);
    }
  }
  return taken;
}

PagePoolStats PagePool::Stats() const {
  PagePoolStats stats;
  stats.pages = pages();
  stats.cached = cached_;
  stats.free = static_cast<int64_t>(free_.size());
  stats.held = stats.pages - stats.cached - stats.free;
  stats.evictions = evictions_;
  stats.copies = copies_queued_;
  for (const Slot& slot : slots_) {
    stats.references += slot.holders;
    stats.shared += slot.holders > 1;
  }
  return stats;
}

void PagePool::LinkCached(PageId page) {
  Slot& slot = slots_[page];
  slot.older = newest_;
  slot.newer = kNone;
  (newest_ == kNone ? oldest_ : slots_[newest_].newer) = page;
  newest_ = page;
  ++cached_;
}

void PagePool::UnlinkCached(PageId page) {
  const Slot& slot = slots_[page];
  (slot.newer == kNone ? newest_ : slots_[slot.newer].older) = slot.older;
  (slot.older == kNone ? oldest_ : slots_[slot.older].newer) = slot.newer;
  --cached_;
}

}  // namespace kvarve
