// How often keys were asked for of late: one small counter for many keys, so that it may say more
// than was true and never less (a counting Bloom filter of one row). Halved now and then: what was
// asked for long ago counts less.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_SEEN_COUNTS_H_
#define KVARVE_STORAGE_POLICY_SEEN_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/block/block_key.h"

namespace kvarve {

class SeenCounts {
 public:
  // REQUIRES: a power of two.
  explicit SeenCounts(size_t counters = 1 << 20) : counts_(counters) {}

  void Add(const BlockKey& key) {
    uint8_t& count = counts_[Place(key)];
    if (count < kMost) ++count;
    if (++added_ < counts_.size() * kHalveEvery) return;
    added_ = 0;
    for (uint8_t& of : counts_) of /= 2;
  }
  uint32_t Of(const BlockKey& key) const { return counts_[Place(key)]; }

 private:
  static constexpr uint8_t kMost = 255;
  static constexpr size_t kHalveEvery = 4;  // additions a counter
  size_t Place(const BlockKey& key) const {
    return (key.Word(0) * 0x9E3779B97F4A7C15ull) >> 20 & (counts_.size() - 1);
  }
  std::vector<uint8_t> counts_;
  size_t added_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_SEEN_COUNTS_H_
