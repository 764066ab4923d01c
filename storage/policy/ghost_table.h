// What is remembered of blocks that are not here: at most four a resident, 16 bytes each, in sets
// of eight of which the one that came first makes place (what was resident stays as long as what
// never was). THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_GHOST_TABLE_H_
#define KVARVE_STORAGE_POLICY_GHOST_TABLE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvarve {

struct Ghost {
  uint64_t key = 0;  // 0: none
  uint32_t last_touch = 0;
  uint16_t of_class = 0;
  uint8_t hits = 0;
  uint8_t length = 1;  // blocks that it stands for (GhostRuns)
};
static_assert(sizeof(Ghost) == 16);

class GhostTable {
 public:
  static constexpr size_t kPerResident = 4;
  static constexpr size_t kWays = 8;

  // Grows to what so many residents allow, by an eighth at a time; ghosts move, none is lost. The
  // table never shrinks.
  void GrowTo(size_t residents) {
    const size_t sets = residents * kPerResident / kWays;
    if (sets < sets_.size() + sets_.size() / 8 + 1) return;
    std::vector<Set> old(sets);
    old.swap(sets_);
    size_ = 0;
    for (const Set& set : old) {
      for (const Ghost& ghost : set) {
        if (ghost.key != 0) Put(ghost);
      }
    }
  }

  // Without removing it; null: not remembered.
  const Ghost* Find(uint64_t key) const {
    if (sets_.empty() || key == 0) return nullptr;
    for (const Ghost& ghost : sets_[SetOf(key)]) {
      if (ghost.key == key) return &ghost;
    }
    return nullptr;
  }

  Ghost* FindMutable(uint64_t key) { return const_cast<Ghost*>(Find(key)); }

  // A key in 32 bits, not 0, by which its ghost is found, or, once in 2^29, another.
  static uint32_t ShortOf(uint64_t key) {
    const auto mixed =
        static_cast<uint32_t>(key * 0x9e3779b97f4a7c15u >> 32);  // 2^64 / golden ratio
    return mixed == 0 ? 1 : mixed;
  }
  const Ghost* FindShort(uint32_t short_key) const {
    if (sets_.empty() || short_key == 0) return nullptr;
    for (const Ghost& ghost : sets_[SetOf(short_key)]) {
      if (ghost.key != 0 && ShortOf(ghost.key) == short_key) return &ghost;
    }
    return nullptr;
  }

  void Erase(uint64_t key) {
    if (Ghost* const ghost = FindMutable(key)) {
      ghost->key = 0;
      --size_;
    }
  }

  // Gives back the one that had to go, or `ghost` itself where none can be kept.
  std::optional<Ghost> Put(const Ghost& ghost) {
    if (ghost.key == 0 || sets_.empty()) return ghost;
    Set& set = sets_[SetOf(ghost.key)];
    size_t from = 0;  // its own place, a free one, or the first
    for (size_t way = 0; way < kWays; ++way) {
      if (set[way].key == 0) from = way;
    }
    for (size_t way = 0; way < kWays; ++way) {
      if (set[way].key == ghost.key) from = way;
    }
    const Ghost gone = set[from];
    std::copy(set.begin() + from + 1, set.end(), set.begin() + from);
    set.back() = ghost;
    if (gone.key == 0) ++size_;
    if (gone.key == 0 || gone.key == ghost.key) return std::nullopt;
    return gone;
  }

  size_t size() const { return size_; }

  size_t places() const { return sets_.size() * kWays; }
  const Ghost& At(size_t place) const { return sets_[place / kWays][place % kWays]; }
  uint64_t MemoryBytes() const { return sets_.capacity() * sizeof(Set); }

 private:
  using Set = std::array<Ghost, kWays>;
  size_t SetOf(uint32_t short_key) const {
    return static_cast<size_t>(uint64_t{short_key} * sets_.size() >> 32);
  }
  size_t SetOf(uint64_t key) const { return SetOf(ShortOf(key)); }

  std::vector<Set> sets_;
  size_t size_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_GHOST_TABLE_H_
