#include "storage/arena/extent.h"

#include <algorithm>
#include <bit>

#include "storage/base/status_macros.h"

namespace kvarve {

void Extent::Assign(uint64_t slot_bytes) {
  KV_CHECK(!assigned() && slot_bytes > 0 && slot_bytes <= kExtentBytes);
  slot_bytes_ = slot_bytes;
  slots_ = static_cast<uint32_t>(kExtentBytes / slot_bytes);
  free_slots_ = slots_;
  used_.assign((slots_ + 63) / 64, 0);
  owners_.assign(slots_, kNoOwner);
}

void Extent::Unassign() {
  KV_CHECK(assigned() && free_slots_ == slots_ && bucket_ < 0);
  slot_bytes_ = 0;
  slots_ = free_slots_ = 0;
  std::vector<uint64_t>().swap(used_);
  std::vector<uint32_t>().swap(owners_);
}

uint32_t Extent::NextFree(uint32_t from) const {
  for (uint32_t word = from / 64; word < used_.size(); ++word) {
    uint64_t free = ~used_[word];
    if (word == from / 64) free &= ~uint64_t{0} << (from % 64);
    if (free != 0) return std::min(slots_, word * 64 + std::countr_zero(free));
  }
  return slots_;
}

uint32_t Extent::NextUsed(uint32_t from) const {
  for (uint32_t word = from / 64; word < used_.size(); ++word) {
    uint64_t used = used_[word];
    if (word == from / 64) used &= ~uint64_t{0} << (from % 64);
    if (used != 0) return std::min(slots_, word * 64 + std::countr_zero(used));
  }
  return slots_;
}

SlotRun Extent::FindRun(uint32_t count) const {
  SlotRun best;
  for (uint32_t first = NextFree(0); first < slots_;) {
    const uint32_t end = NextUsed(first);
    const uint32_t length = end - first;
    const bool fits = length >= count;
    const bool best_fits = best.count >= count;
    if (fits ? !best_fits || length < best.count : !best_fits && length > best.count) {
      best = {first, length};
      if (length == count) break;
    }
    first = NextFree(end);
  }
  KV_CHECK(best.count > 0);
  return best;
}

void Extent::Take(SlotRun run) {
  KV_CHECK(run.count > 0 && run.first < slots_ && run.count <= slots_ - run.first);
  for (uint32_t slot = run.first; slot < run.first + run.count; ++slot) {
    KV_CHECK(!used(slot));
    used_[slot / 64] |= uint64_t{1} << (slot % 64);
  }
  free_slots_ -= run.count;
}

void Extent::Release(uint32_t slot) {
  KV_CHECK(slot < slots_ && used(slot));
  used_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  owners_[slot] = kNoOwner;
  ++free_slots_;
}

void Extent::AppendOwners(std::vector<uint32_t>* out) const {
  for (uint32_t slot = NextUsed(0); slot < slots_; slot = NextUsed(slot + 1)) {
    out->push_back(owners_[slot]);
  }
}

void SizeClass::Update(Extent* extent, bool out) {
  const bool has_room = extent->free_slots() > 0 && extent->used_slots() > 0;
  const int bucket = out || !has_room ? -1 : std::bit_width(extent->free_slots()) - 1;
  if (bucket == extent->bucket_) return;
  if (extent->bucket_ >= 0) {
    (extent->previous_ ? extent->previous_->next_ : heads_[extent->bucket_]) = extent->next_;
    if (extent->next_) extent->next_->previous_ = extent->previous_;
    extent->previous_ = extent->next_ = nullptr;
  }
  extent->bucket_ = bucket;
  if (bucket >= 0) {
    extent->next_ = heads_[bucket];
    if (extent->next_) extent->next_->previous_ = extent;
    heads_[bucket] = extent;
  }
}

Extent* SizeClass::FindWithRun(uint32_t count, SlotRun* run) const {
  for (int bucket = std::bit_width(count) - 1; bucket < kBuckets; ++bucket) {
    Extent* extent = heads_[bucket];
    for (int probe = 0; probe < kMaxProbes && extent != nullptr; ++probe, extent = extent->next_) {
      if (extent->free_slots() < count) continue;
      *run = extent->FindRun(count);
      if (run->count >= count) return extent;
    }
  }
  return nullptr;
}

Extent* SizeClass::Roomiest() const {
  for (int bucket = kBuckets - 1; bucket >= 0; --bucket) {
    if (heads_[bucket] != nullptr) return heads_[bucket];
  }
  return nullptr;
}

}  // namespace kvarve
