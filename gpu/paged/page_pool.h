// The pages of one paged KV memory: who holds each, which can be taken, which keep a prefix that
// may be wanted again. It counts; it touches no KV byte and knows no tokens.
//
// A page is held, cached (by nobody held, but a key names what is in it) or free. Allocate
// takes a free page, else the cached one that nobody has held for longest: the eviction hook hears
// of it first, so that its bytes can be offloaded.
//
// Copies of pages are queued here (copy-on-write) and taken once a step: the caller puts them on
// the stream that writes the pages, ahead of the step's writes. Until then neither end is given to
// anybody else, even when nobody holds it any more.
//
// THREADS: one owner (an engine's scheduler).  BLOCKS: never, but the hook may.
#ifndef KVARVE_GPU_PAGED_PAGE_POOL_H_
#define KVARVE_GPU_PAGED_PAGE_POOL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/block/block_key.h"

namespace kvarve {

using PageId = int64_t;

struct PageCopy {
  PageId from = 0;
  PageId to = 0;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

struct PagePoolOptions {
  int64_t pages = 0;         // 1 .. 2^31 - 1: engines' tables hold 32 bits
  uint32_t page_tokens = 0;  // tokens a page, at least 1
};

struct PagePoolStats {
  int64_t pages = 0;
  int64_t held = 0;
  int64_t cached = 0;
  int64_t free = 0;
  int64_t shared = 0;      // held more than once
  int64_t references = 0;  // holders of all pages
  uint64_t evictions = 0;
  uint64_t copies = 0;  // queued so far
};

class PagePool {
 public:
  // Called while the page is neither free nor held; it must not call the pool.
  using EvictionHook = std::function<void(PageId, const BlockKey&)>;

  // REQUIRES: options in their ranges (KV_CHECK). `hook` may be empty.
  explicit PagePool(const PagePoolOptions& options, EvictionHook hook = {});
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int64_t pages() const { return static_cast<int64_t>(slots_.size()); }
  uint32_t page_tokens() const { return page_tokens_; }
  // Pages that Allocate can still give: free and cached ones.
  int64_t available() const { return static_cast<int64_t>(free_.size()) + cached_; }

  // A page with one reference and no key. ResourceExhausted: every page is held.
  absl::StatusOr<PageId> Allocate();
  // REQUIRES: `page` is held.
  void Hold(PageId page);
  void Release(PageId page);
  int64_t references(PageId page) const { return slots_[page].holders; }

  // Names what a held page holds: from now on Find gives it. False, and nothing changed, when
  // another page has that key or this page has a key.
  bool Publish(PageId page, const BlockKey& key);
  // The page with this key, held once more.
  std::optional<PageId> FindAndHold(const BlockKey& key);
  bool published(PageId page) const { return slots_[page].has_key; }
  // Takes a page's key away (its bytes are no longer trusted); a cached page becomes free.
  void Forget(PageId page);

  // REQUIRES: both held, neither the end of a queued copy: its bytes are not there yet.
  void QueueCopy(const PageCopy& copy);
  bool AwaitsCopy(PageId page) const { return slots_[page].copy_target; }
  // The queued copies, in no particular order: no page is the end of one and in another. They go on
  // the stream before anything that writes a page allocated after this call.
  std::vector<PageCopy> TakeCopies();

  PagePoolStats Stats() const;

 private:
  static constexpr PageId kNone = -1;
  struct Slot {
    int64_t holders = 0;
    int64_t queued = 0;                   // copies queued from or to it
    PageId newer = kNone, older = kNone;  // the list of cached pages
    bool has_key = false;
    bool copy_target = false;
    BlockKey key;
  };
  // A client chooses keys, but a scheduler's own pool is no shared table: any word will do.
  struct KeyHash {
    size_t operator()(const BlockKey& key) const { return key.Word(0) ^ key.Word(1); }
  };

  static bool Idle(const Slot& slot) { return slot.holders == 0 && slot.queued == 0; }
  // Of a page that became idle: onto the list of cached or of free pages.
  void Park(PageId page);
  void LinkCached(PageId page);
  void UnlinkCached(PageId page);

  const uint32_t page_tokens_;
  const EvictionHook hook_;
  std::vector<Slot> slots_;
  std::vector<PageId> free_;
  std::unordered_map<BlockKey, PageId, KeyHash> by_key_;
  PageId newest_ = kNone, oldest_ = kNone;
  int64_t cached_ = 0;
  std::vector<PageCopy> copies_;
  uint64_t evictions_ = 0, copies_queued_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_PAGED_PAGE_POOL_H_
