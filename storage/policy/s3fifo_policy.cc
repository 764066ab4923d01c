#include <algorithm>
#include <cstddef>
#include <vector>

#include "storage/base/chunked_array.h"
#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "storage/policy/eviction_policy.h"
#include "storage/policy/ghost_table.h"

namespace kvarve {
namespace {

// Each group has two queues of its evictable entries: small and main. Inner blocks of chains are
// counted in their queue's size but stand in none; one that becomes a leaf, since its child left,
// goes where that child stood: to the old end.
class S3FifoPolicy final : public EvictionPolicy {
 public:
  std::string_view Name() const override { return "s3fifo"; }

  void OnInsert(uint32_t id, const BlockTraits& traits, bool evictable) override {
    KV_CHECK(traits.group < kMaxPolicyGroups);
    if (id >= entries_.size()) entries_.Resize(id + size_t{1});
    if (traits.group >= groups_.size()) groups_.resize(traits.group + 1);
    Entry& entry = entries_[id];
    KV_CHECK(entry.flags == 0);
    entry.key = traits.key;
    entry.group = static_cast<uint16_t>(traits.group);
    entry.flags = kKnown;
    entry.freq = 0;
    entry.touch = ++clock_;
    if (ghosts_.Find(traits.key) != nullptr) {
      ghosts_.Erase(traits.key);
      entry.flags |= kMain;
    }
    ++QueueOf(entry).size;
    ghosts_.GrowTo(++size_ / GhostTable::kPerResident);
    if (evictable) Link(id, /*young=*/true);
  }

  void OnTouch(uint32_t id) override {
    KV_CHECK(Known(id));
    Entry& entry = entries_[id];
    entry.freq = static_cast<uint8_t>(std::min(entry.freq + 1, 3));
    entry.touch = ++clock_;
  }

  void PrefetchTouch(std::span<const uint32_t> ids) const override {
    for (uint32_t id : ids) PrefetchForRead(&entries_[id]);
  }

  void OnEvictable(uint32_t id, bool evictable) override {
    KV_CHECK(Known(id));
    const bool is = (entries_[id].flags & kLinked) != 0;
    if (evictable == is) return;
    if (evictable) {
      Link(id, /*young=*/false);
    } else {
      Unlink(id);
    }
  }

  void OnRemove(uint32_t id) override {
    KV_CHECK(Known(id));
    Entry& entry = entries_[id];
    if ((entry.flags & kLinked) != 0) Unlink(id);
    --QueueOf(entry).size;
    --size_;
    if ((entry.flags & kMain) == 0) ghosts_.Put({entry.key, ++removals_, 0, 0});
    entry = Entry{};
  }

  uint32_t Victim(uint32_t group) override {
    if (group >= groups_.size()) return kNoVictim;
    Queue& small = groups_[group].small;
    Queue& main = groups_[group].main;
    while (true) {
      const size_t small_share = std::max<size_t>(1, (small.size + main.size) / 10);
      const bool from_small =
          small.oldest != kNone && (small.size >= small_share || main.oldest == kNone);
      const uint32_t id = from_small ? small.oldest : main.oldest;
      if (id == kNone) return kNoVictim;
      Entry& entry = entries_[id];
      if (entry.freq <= (from_small ? 1 : 0)) return id;
      Unlink(id);
      --QueueOf(entry).size;
      entry.freq = from_small ? 0 : entry.freq - 1;
      entry.flags |= kMain;
      ++QueueOf(entry).size;
      Link(id, /*young=*/true);
    }
  }

  uint64_t LastTouch(uint32_t id) const override { return entries_[id].touch; }

  uint64_t MemoryBytes() const override {
    return sizeof(*this) + entries_.MemoryBytes() + ghosts_.MemoryBytes() +
           groups_.capacity() * sizeof(Group);
  }
  PolicyLearning Learning() const override { return {ghosts_.size(), false}; }

 private:
  static constexpr uint32_t kNone = kNoVictim;
  static constexpr uint8_t kKnown = 1, kLinked = 2, kMain = 4;
  struct Entry {
    uint64_t key = 0;
    uint64_t touch = 0;
    uint32_t older = kNone, younger = kNone;
    uint16_t group = 0;
    uint8_t freq = 0;
    uint8_t flags = 0;
  };
  struct Queue {
    uint32_t oldest = kNone, youngest = kNone;
    size_t size = 0;  // with those that are not evictable
  };
  struct Group {
    Queue small, main;
  };

  bool Known(uint32_t id) const {
    return id < entries_.size() && (entries_[id].flags & kKnown) != 0;
  }
  Queue& QueueOf(const Entry& entry) {
    Group& group = groups_[entry.group];
    return (entry.flags & kMain) != 0 ? group.main : group.small;
  }

  void Link(uint32_t id, bool young) {
    Entry& entry = entries_[id];
    Queue& queue = QueueOf(entry);
    entry.flags |= kLinked;
    entry.older = young ? queue.youngest : kNone;
    entry.younger = young ? kNone : queue.oldest;
    (entry.older == kNone ? queue.oldest : entries_[entry.older].younger) = id;
    (entry.younger == kNone ? queue.youngest : entries_[entry.younger].older) = id;
  }

  void Unlink(uint32_t id) {
    Entry& entry = entries_[id];
    Queue& queue = QueueOf(entry);
    (entry.older == kNone ? queue.oldest : entries_[entry.older].younger) = entry.younger;
    (entry.younger == kNone ? queue.youngest : entries_[entry.younger].older) = entry.older;
    entry.flags &= static_cast<uint8_t>(~kLinked);
  }

  ChunkedArray<Entry, 32768> entries_;
  std::vector<Group> groups_;
  GhostTable ghosts_;
  size_t size_ = 0;
  uint64_t clock_ = 0;
  uint32_t removals_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> NewS3FifoPolicy() { return std::make_unique<S3FifoPolicy>(); }

}  // namespace kvarve
