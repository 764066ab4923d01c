#include "gpu/transfer/move_set.h"

namespace kvarve {

absl::Status MoveSet::Start(Transfer& transfer, MoveDirection direction,
                            std::span<const BlockMove> blocks, uint32_t token_begin,
                            uint32_t token_end, const EngineOrder& engine, bool may_wait) {
  for (;;) {
    absl::StatusOr<std::unique_ptr<Move>> move =
        transfer.Start(direction, blocks, token_begin, token_end, engine);
    if (move.ok()) {
      moves_.push_back(*std::move(move));
      Reap();
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(move.status()) || !may_wait) return move.status();
    transfer.AwaitRoom();
  }
}

void MoveSet::Reap() {
  while (!moves_.empty()) {
    const absl::StatusOr<bool> done = moves_.front()->Done();
    if (done.ok() && !*done) return;
    if (status_.ok()) status_ = done.status();
    moves_.pop_front();
  }
}

absl::Status MoveSet::Wait() {
  for (const std::unique_ptr<Move>& move : moves_) {
    const absl::Status waited = move->Wait();
    if (status_.ok()) status_ = waited;
  }
  moves_.clear();
  return status_;
}

}  // namespace kvarve
