// Ghosts of whole runs. Blocks that stood behind each other, of one class and as often hit, mostly
// come back together: what is remembered of them is one ghost, by the key of the first, with their
// number. So the same memory reaches several times as far back.
//
// A request's blocks are asked for in the order of their chain. One that is not remembered itself,
// behind one that was of a run, is taken for the next of that run: wrongly where the request leaves
// the chain that went before (some percent on published traces, at kMost).
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_GHOST_RUNS_H_
#define KVARVE_STORAGE_POLICY_GHOST_RUNS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "storage/base/chunked_array.h"
#include "storage/policy/ghost_table.h"

namespace kvarve {

class GhostRuns {
 public:
  static constexpr uint8_t kMost = 64;  // blocks of a run

  const GhostTable& table() const { return table_; }
  void GrowTo(size_t residents) { table_.GrowTo(residents); }
  uint64_t MemoryBytes() const { return table_.MemoryBytes() + behind_.MemoryBytes(); }

  // What is remembered of a block; asking twice in a row is asking once. Null: nothing. Valid until
  // the next call.
  const Ghost* Next(uint64_t key) {
    if (key == asked_) return known_ ? &ghost_ : nullptr;
    asked_ = key;
    if (const Ghost* const first = table_.Find(key)) {
      ghost_ = *first;
      known_ = true;
    } else if (known_ && key != 0 && ghost_.length > 1) {
      --ghost_.length;
    } else {
      known_ = false;
    }
    return known_ ? &ghost_ : nullptr;
  }
  // `forgotten`, here and below, is called with each ghost that had to make place.
  template <typename Fn>
  void BeginRequest(const Fn& forgotten) {
    EndRun(forgotten);
    asked_ = 0;
    known_ = false;
  }

  // The block is resident from now on.
  template <typename Fn>
  void Came(uint32_t id, uint64_t key, const Fn& forgotten) {
    EndRun(forgotten);
    table_.Erase(key);
    if (id >= behind_.size()) behind_.Resize(id + size_t{1});
    behind_[id] = 0;
    left_ = 0;
  }
  // It is no longer; `ghost` has its own last touch.
  template <typename Fn>
  void Left(uint32_t id, Ghost ghost, const Fn& forgotten) {
    if (const Ghost* const child = table_.FindShort(std::exchange(behind_[id], 0))) {
      // They were touched one after the other, if in one request.
      const auto apart = static_cast<int32_t>(child->last_touch - ghost.last_touch);
      if (IsLike(*child, ghost) && std::abs(apart) <= 2 * child->length + 2) {
        ghost.length = static_cast<uint8_t>(child->length + 1);
        table_.Erase(child->key);
      }
    }
    Put(ghost, forgotten);
    left_ = GhostTable::ShortOf(ghost.key);
  }
  // It is a leaf: of what left right before this, if anything did, it was the parent.
  void IsLeaf(uint32_t id) {
    if (const uint32_t left = std::exchange(left_, 0); left != 0) behind_[id] = left;
  }

  // A block of this request that did not become resident, behind the one refused before. The last
  // of a run is remembered by itself: the next prompt of a session mostly has another there.
  template <typename Fn>
  void Refused(const Ghost& ghost, const Fn& forgotten) {
    table_.Erase(ghost.key);
    if (run_ != 0 && last_.key != 0 && IsLike(last_, ghost)) {
      Ghost* const first = table_.FindMutable(run_);
      if (first != nullptr && first->length < kMost) {
        ++first->length;
        last_ = ghost;
        return;
      }
    } else if (run_ != 0 && last_.key == 0) {
      const Ghost* const first = table_.Find(run_);
      if (first != nullptr && IsLike(*first, ghost)) {
        last_ = ghost;
        return;
      }
    }
    EndRun(forgotten);
    run_ = ghost.key;
    Put(ghost, forgotten);
  }

 private:
  static bool IsLike(const Ghost& a, const Ghost& b) {
    return a.of_class == b.of_class && a.hits == b.hits && a.length < kMost;
  }
  template <typename Fn>
  void Put(const Ghost& ghost, const Fn& forgotten) {
    if (const std::optional<Ghost> gone = table_.Put(ghost)) forgotten(*gone);
  }
  template <typename Fn>
  void EndRun(const Fn& forgotten) {
    run_ = 0;
    if (last_.key != 0) Put(std::exchange(last_, Ghost()), forgotten);
  }

  GhostTable table_;
  // Of each resident: GhostTable::ShortOf of the run that stood behind it. 0: none.
  ChunkedArray<uint32_t, 65536> behind_;
  uint32_t left_ = 0;  // what left last, while nothing else happened
  uint64_t asked_ = 0;
  bool known_ = false;
  Ghost ghost_;       // of `asked_`, if known; its length: with what stands behind it
  uint64_t run_ = 0;  // key of the first that was refused; 0: none
  Ghost last_;        // key 0: none behind the first
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_GHOST_RUNS_H_
