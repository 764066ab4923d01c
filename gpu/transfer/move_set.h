// The moves of one job: started in order, waited for together. Whatever keeps their memory must
// outlive the set; its destructor waits.
//
// THREADS: one.  BLOCKS: Start where it may, Wait, the destructor.
#ifndef KVARVE_GPU_TRANSFER_MOVE_SET_H_
#define KVARVE_GPU_TRANSFER_MOVE_SET_H_

#include <deque>
#include <memory>
#include <span>
#include <utility>

#include "gpu/transfer/transfer.h"

namespace kvarve {

class MoveSet {
 public:
  MoveSet() = default;
  MoveSet(MoveSet&&) = default;
  MoveSet& operator=(MoveSet&& other) noexcept {
    Wait().IgnoreError();  // what is under way here still needs its memory
    moves_ = std::move(other.moves_);
    status_ = other.status_;
    return *this;
  }

  // As Transfer::Start. Without room: with `may_wait` waits until there is; else ResourceExhausted.
  absl::Status Start(Transfer& transfer, MoveDirection direction, std::span<const BlockMove> blocks,
                     uint32_t token_begin, uint32_t token_end, const EngineOrder& engine,
                     bool may_wait);
  // All of them; the first failure.
  absl::Status Wait();

 private:
  void Reap();  // those that are done
  std::deque<std::unique_ptr<Move>> moves_;
  absl::Status status_;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_TRANSFER_MOVE_SET_H_
