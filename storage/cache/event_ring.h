// What happened to blocks, in order: the last `capacity` events, by sequence number. Readers pull,
// so that nothing is called while the cache's mutex is held.
//
// THREADS: externally synchronised (the cache's mutex).  BLOCKS: never.
#ifndef KVARVE_STORAGE_CACHE_EVENT_RING_H_
#define KVARVE_STORAGE_CACHE_EVENT_RING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "storage/block/block_key.h"

namespace kvarve {

struct NamespaceInfo;

enum class CacheEventKind : uint8_t {
  kStored,
  kRemoved,      // from every tier
  kCleared,      // the whole namespace; has no key
  kTierChanged,  // the fastest tier that holds it is another
};

// Where a block can be read fastest.
enum class CacheTier : uint8_t { kHost = 1, kNvme = 2 };

struct CacheEvent {
  uint64_t sequence = 0;  // from 1 on, without gaps
  BlockKey key;
  std::shared_ptr<const NamespaceInfo> ns;  // which may be forgotten since
  uint32_t depth = 0;
  CacheEventKind kind = CacheEventKind::kStored;
  CacheTier tier = CacheTier::kHost;  // of kStored and kTierChanged: where it is now
};

class EventRing {
 public:
  // 0: keeps nothing.
  explicit EventRing(size_t capacity) : events_(capacity) {}

  void Add(CacheEventKind kind, const std::shared_ptr<const NamespaceInfo>& ns, const BlockKey& key,
           uint32_t depth, CacheTier tier = CacheTier::kHost) {
    if (events_.empty()) return;
    events_[next_ % events_.size()] = {next_, key, ns, depth, kind, tier};
    ++next_;
  }
  // The number that the next event will have.
  uint64_t next() const { return next_; }
  // The oldest event that is kept, or next().
  uint64_t first() const { return next_ - std::min<uint64_t>(next_ - 1, events_.size()); }
  // Appends at most `most` events from `from` on. REQUIRES: first() <= from <= next().
  void Read(uint64_t from, size_t most, std::vector<CacheEvent>* out) const {
    const uint64_t end = std::min<uint64_t>(next_, from + most);
    for (uint64_t i = from; i < end; ++i) out->push_back(events_[i % events_.size()]);
  }

 private:
  std::vector<CacheEvent> events_;
  uint64_t next_ = 1;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_EVENT_RING_H_
