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
// Invariants: an id is evictable exactly if its state says so; then heaps_[group][places_[id]] ==
// id. A heap orders by states_, whose touch numbers are unique.
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
    states_[id] = NextTouch() << kTouchShift | traits.group;
    if (evictable) Push(id);
  }

  void OnTouch(uint32_t id) override {
    KV_CHECK(Known(id));
    states_[id] = NextTouch() << kTouchShift | (states_[id] & (kInHeap | kGroupMask));
    if (InHeap(id)) SiftDown(&heaps_[GroupOf(id)], places_[id], id);
  }

  void OnTouchRun(std::span<const uint32_t> ids) override {
    PrefetchPlaces(ids);
    for (size_t i = ids.size(); i-- > 0;) LruPolicy::OnTouch(ids[i]);
  }

  void PrefetchTouch(std::span<const uint32_t> ids) const override {
    for (uint32_t id : ids) PrefetchForRead(&states_[id]);
  }

  void OnEvictable(uint32_t id, bool evictable) override {
    KV_CHECK(Known(id));
    if (evictable == InHeap(id)) return;
    if (evictable) {
      Push(id);
    } else {
      TakeOut(id);
    }
  }

  void OnRemove(uint32_t id) override {
    KV_CHECK(Known(id));
    if (InHeap(id)) TakeOut(id);
    states_[id] = 0;
  }

  uint32_t Victim(uint32_t group) override {
    return group < heaps_.size() && heaps_[group].size() > 0 ? heaps_[group][0] : kNoVictim;
  }

  uint64_t LastTouch(uint32_t id) const override { return states_[id] >> kTouchShift; }

  uint64_t MemoryBytes() const override {
    uint64_t bytes = sizeof(*this) + states_.MemoryBytes() + places_.MemoryBytes() +
                     heaps_.capacity() * sizeof(Heap);
    for (const Heap& heap : heaps_) bytes += heap.MemoryBytes();
    return bytes;
  }

 private:
  // A state: touch number, evictable or not, group. One word, so that a touch inside a chain reads
  // and writes nothing else.
  static constexpr uint64_t kGroupMask = kMaxPolicyGroups - 1;
  static constexpr uint64_t kInHeap = kMaxPolicyGroups;
  static constexpr int kTouchShift = 13;
  static_assert(kInHeap << 1 == 1ull << kTouchShift);
  // 7 years at ten million touches a second; later touches would count as equally recent.
  static constexpr uint64_t kTouchMax = (1ull << (64 - kTouchShift)) - 1;
  static constexpr size_t kChildren = 4;  // of a node: four states are loaded at once

  using Heap = ChunkedArray<uint32_t, 4096>;  // chunks of 16 KiB: there may be many groups

  uint64_t NextTouch() {
    clock_ = std::min(clock_ + 1, kTouchMax);
    return clock_;
  }
  bool Known(uint32_t id) const { return id < states_.size() && states_[id] != 0; }
  // Its children's start in its heap; 0: none, or in no heap.
  size_t FirstChild(uint32_t id) const {
    if (!InHeap(id)) return 0;
    const size_t first = places_[id] * size_t{kChildren} + 1;
    return first < heaps_[GroupOf(id)].size() ? first : 0;
  }
  bool InHeap(uint32_t id) const { return (states_[id] & kInHeap) != 0; }
  uint32_t GroupOf(uint32_t id) const { return states_[id] & kGroupMask; }

  // Of a random touch nearly all the time is cache misses: beside the id's own state, in a heap,
  // its place and the children that it has to be compared with. Loaded for all ids together they
  // cost a fraction.
  void PrefetchPlaces(std::span<const uint32_t> ids) const {
    bool in_heaps = false;
    for (uint32_t id : ids) {
      if (!InHeap(id)) continue;  // inside a chain, as most are
      in_heaps = true;
      PrefetchForRead(&places_[id]);
    }
    if (!in_heaps) return;
    for (uint32_t id : ids) {
      const size_t child = FirstChild(id);
      if (child != 0) PrefetchForRead(&heaps_[GroupOf(id)][child]);
    }
    for (uint32_t id : ids) {
      const size_t first = FirstChild(id);
      if (first == 0) continue;
      const Heap& heap = heaps_[GroupOf(id)];
      for (size_t child = first; child < std::min(first + kChildren, heap.size()); ++child) {
        PrefetchForRead(&states_[heap[child]]);
      }
    }
  }

  void Put(Heap* heap, size_t at, uint32_t id) {
    (*heap)[at] = id;
    places_[id] = static_cast<uint32_t>(at);
  }

  void Push(uint32_t id) {
    states_[id] |= kInHeap;
    Heap& heap = heaps_[GroupOf(id)];
    heap.PushBack(id);
    SiftUp(&heap, heap.size() - 1, id);
  }

  void TakeOut(uint32_t id) {
    Heap& heap = heaps_[GroupOf(id)];
    const size_t at = places_[id];
    const uint32_t last = heap[heap.size() - 1];
    heap.PopBack();
    states_[id] &= ~kInHeap;
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
  ChunkedArray<uint64_t, 262144, /*kHuge=*/true> states_;  // 0: unknown
  ChunkedArray<uint32_t, 524288, /*kHuge=*/true> places_;  // in the group's heap, of those in it
  std::vector<Heap> heaps_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> NewLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace kvarve
