#include <algorithm>
#include <cstddef>
#include <vector>

#include "storage/base/chunked_array.h"
#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "storage/policy/eviction_policy.h"

namespace kvarve {
namespace {

// A heap per group of its evictable ids, the oldest touch on top, and of each id its place there.
// Inner blocks of chains are in no heap, so that their touches are one store; a touched leaf sinks
// to the bottom, where it mostly is already. Nothing is put off: no call ever pays for many earlier
// ones.
//
// Invariants: an id is evictable exactly if places_[id] != 0; then heaps_[group][places_[id] - 1]
// == id. A heap orders by states_, whose touch numbers are unique.
class LruPolicy final : public EvictionPolicy {
 public:
  std::string_view Name() const override { return "lru"; }

  void OnInsert(uint32_t id, const BlockTraits& traits, bool evictable) override {
    KV_CHECK(traits.group < kMaxPolicyGroups);
    if (id >= states_.size()) {
      states_.Resize(id + size_t{1});
      places_.Resize(id + size_t{1});
    }
    KV_CHECK(states_[id] == 0);
    if (traits.group >= heaps_.size()) heaps_.resize(traits.group + 1);
    states_[id] = NextTouch() << kGroupBits | traits.group;
    if (evictable) Push(id);
  }

  void OnTouch(uint32_t id) override {
    KV_CHECK(Known(id));
    states_[id] = NextTouch() << kGroupBits | GroupOf(id);
    if (places_[id] != 0) SiftDown(&heaps_[GroupOf(id)], places_[id] - 1, id);
  }

  void OnTouchRun(std::span<const uint32_t> ids) override {
    for (size_t i = ids.size(); i-- > 0;) LruPolicy::OnTouch(ids[i]);
  }

  // Of a random touch nearly all the time is cache misses: the id's own words, then the children
  // that it has to be compared with. Loaded for all ids together they cost a fraction.
  void PrefetchTouch(std::span<const uint32_t> ids) const override {
    for (uint32_t id : ids) {
      PrefetchForRead(&states_[id]);
      PrefetchForRead(&places_[id]);
    }
    bool in_heaps = false;
    for (uint32_t id : ids) {
      if (places_[id] == 0) continue;  // inside a chain, as most are
      in_heaps = true;
      const size_t child = FirstChild(id);
      if (child != 0) PrefetchForRead(&heaps_[GroupOf(id)][child]);
    }
    if (!in_heaps) return;
    for (uint32_t id : ids) {
      const size_t first = FirstChild(id);
      if (first == 0) continue;
      const Heap& heap = heaps_[GroupOf(id)];
      for (size_t child = first; child < std::min(first + kChildren, heap.size()); ++child) {
        PrefetchForRead(&states_[heap[child]]);
      }
    }
  }

  void OnEvictable(uint32_t id, bool evictable) override {
    KV_CHECK(Known(id));
    if (evictable == (places_[id] != 0)) return;
    if (evictable) {
      Push(id);
    } else {
      TakeOut(id);
    }
  }

  void OnRemove(uint32_t id) override {
    KV_CHECK(Known(id));
    if (places_[id] != 0) TakeOut(id);
    states_[id] = 0;
  }

  uint32_t Victim(uint32_t group) override {
    return group < heaps_.size() && heaps_[group].size() > 0 ? heaps_[group][0] : kNoVictim;
  }

  uint64_t LastTouch(uint32_t id) const override { return states_[id] >> kGroupBits; }

  uint64_t MemoryBytes() const override {
    uint64_t bytes = sizeof(*this) + states_.MemoryBytes() + places_.MemoryBytes() +
                     heaps_.capacity() * sizeof(Heap);
    for (const Heap& heap : heaps_) bytes += heap.MemoryBytes();
    return bytes;
  }

 private:
  static constexpr int kGroupBits = 12;
  static_assert(kMaxPolicyGroups <= 1u << kGroupBits);
  // 14 years at ten million touches a second; later touches would count as equally recent.
  static constexpr uint64_t kTouchMax = (1ull << (64 - kGroupBits)) - 1;
  static constexpr size_t kChildren = 4;  // of a node: four states are loaded at once

  using Heap = ChunkedArray<uint32_t, 4096>;  // chunks of 16 KiB: there may be many groups

  uint64_t NextTouch() {
    clock_ = std::min(clock_ + 1, kTouchMax);
    return clock_;
  }
  bool Known(uint32_t id) const { return id < states_.size() && states_[id] != 0; }
  // Its children's start in its heap; 0: none, or in no heap.
  size_t FirstChild(uint32_t id) const {
    const size_t place = places_[id];
    if (place == 0) return 0;
    const size_t first = (place - 1) * kChildren + 1;
    return first < heaps_[GroupOf(id)].size() ? first : 0;
  }
  uint32_t GroupOf(uint32_t id) const { return states_[id] & (kMaxPolicyGroups - 1); }

  void Put(Heap* heap, size_t at, uint32_t id) {
    (*heap)[at] = id;
    places_[id] = static_cast<uint32_t>(at + 1);
  }

  void Push(uint32_t id) {
    Heap& heap = heaps_[GroupOf(id)];
    heap.PushBack(id);
    SiftUp(&heap, heap.size() - 1, id);
  }

  void TakeOut(uint32_t id) {
    Heap& heap = heaps_[GroupOf(id)];
    const size_t at = places_[id] - 1;
    const uint32_t last = heap[heap.size() - 1];
    heap.PopBack();
    places_[id] = 0;
    if (last == id) return;
    if (at > 0 && states_[last] < states_[heap[(at - 1) / kChildren]]) {
      SiftUp(&heap, at, last);
    } else {
      SiftDown(&heap, at, last);
    }
  }

  // `id` belongs at `at` or nearer to the top; what stands at `at` is overwritten.
  void SiftUp(Heap* heap, size_t at, uint32_t id) {
    const uint64_t state = states_[id];
    while (at > 0) {
      const size_t parent = (at - 1) / kChildren;
      const uint32_t above = (*heap)[parent];
      if (states_[above] <= state) break;
      Put(heap, at, above);
      at = parent;
    }
    Put(heap, at, id);
  }

  void SiftDown(Heap* heap, size_t at, uint32_t id) {
    const uint64_t state = states_[id];
    const size_t size = heap->size();
    for (size_t first = at * kChildren + 1; first < size; first = at * kChildren + 1) {
      size_t best = first;
      uint64_t best_state = states_[(*heap)[first]];
      const size_t end = std::min(first + kChildren, size);
      for (size_t child = first + 1; child < end; ++child) {
        const uint64_t child_state = states_[(*heap)[child]];
        if (child_state < best_state) {
          best = child;
          best_state = child_state;
        }
      }
      if (state <= best_state) break;
      Put(heap, at, (*heap)[best]);
      at = best;
    }
    Put(heap, at, id);
  }

  uint64_t clock_ = 0;
  ChunkedArray<uint64_t, 32768> states_;  // touch number and group; 0: unknown
  ChunkedArray<uint32_t, 65536> places_;  // in the group's heap, from 1; 0: not evictable
  std::vector<Heap> heaps_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> NewLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace kvarve
