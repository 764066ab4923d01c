#include "client/cpp/engine/block_saver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

bool InPlace(PutOutcome outcome) {
  return outcome == PutOutcome::kStored || outcome == PutOutcome::kExists;
}

}  // namespace

struct BlockSaver::Pending {
  SaveJob job;
  int64_t started_nanos = 0;
  size_t pieces_left = 0;  // under the saver's mutex, as is the result
  SaveResult result;
};

BlockSaver::BlockSaver(std::unique_ptr<BlockSink> sink) : sink_(std::move(sink)) {
  MutexLock lock(&mutex_);
  thread_ = std::thread([this] { Run(); });
}

BlockSaver::~BlockSaver() { Stop(); }

// The largest piece that there is staging for; `blocks` becomes its size, 0 with the reason in
// `dropped`.
StagedBytes BlockSaver::Stage(uint64_t block_bytes, size_t& blocks, absl::Status& dropped) {
  blocks = std::min<size_t>(blocks, std::max<uint64_t>(1, kPieceBytes / block_bytes));
  for (; blocks > 0; blocks /= 2) {
    absl::StatusOr<StagedBytes> staged = sink_->Stage(blocks * block_bytes);
    if (staged.ok()) return *std::move(staged);
    dropped = staged.status();
    if (!absl::IsResourceExhausted(dropped)) blocks = 0;
  }
  return {};
}

absl::Status BlockSaver::Gather(const SaveJob& job, SaveAnswer& answer,
                                std::vector<Piece>& pieces) {
  Transfer& mover = *job.pages;
  const uint64_t block_bytes = mover.layout().BlockBytes();
  const uint32_t tokens = mover.layout().tokens, pages = mover.pages_per_block();
  while (answer.blocks < job.keys.size()) {
    Piece piece;
    piece.first_block = answer.blocks;
    piece.blocks = job.keys.size() - answer.blocks;
    piece.staged = Stage(block_bytes, piece.blocks, answer.dropped);
    if (piece.blocks == 0) return absl::OkStatus();
    absl::Status started;
    size_t begun = 0;
    std::vector<BlockMove> blocks;
    while (begun < piece.blocks && started.ok()) {
      blocks.clear();
      for (size_t i = begun; i < std::min(begun + mover.max_blocks(), piece.blocks); ++i) {
        blocks.push_back({{piece.staged.data + i * block_bytes, block_bytes},
                          std::span(job.page_ids).subspan((piece.first_block + i) * pages, pages)});
      }
      started = piece.moves.Start(mover, MoveDirection::kGather, blocks, 0, tokens, {job.engine},
                                  /*may_wait=*/false);
      if (started.ok()) begun += blocks.size();
    }
    if (absl::IsInvalidArgument(started)) return started;
    piece.blocks = begun;
    answer.blocks += begun;
    if (begun > 0) pieces.push_back(std::move(piece));
    if (started.ok()) continue;
    answer.dropped = started;
    return absl::OkStatus();
  }
  answer.dropped = absl::OkStatus();
  return absl::OkStatus();
}

absl::Status BlockSaver::Room(size_t pieces) const {
  if (stopped_) return absl::FailedPreconditionError("the saver is stopped");
  if (saves_ >= kMaxSaves || queue_.size() + pieces > kMaxPieces) {
    return absl::ResourceExhaustedError("too many saves are under way");
  }
  return absl::OkStatus();
}

absl::StatusOr<SaveAnswer> BlockSaver::Save(const SaveJob& job) {
  if (job.pages == nullptr) return absl::InvalidArgumentError("a save without pages");
  if (job.page_ids.size() != job.keys.size() * job.pages->pages_per_block()) {
    return absl::InvalidArgumentError(absl::StrFormat("%d page ids for %d blocks of %d pages",
                                                      job.page_ids.size(), job.keys.size(),
                                                      job.pages->pages_per_block()));
  }
  {
    MutexLock lock(&mutex_);
    const absl::Status room = Room(1);
    if (!room.ok()) return SaveAnswer{0, room};
  }
  auto save = std::make_shared<Pending>();
  save->started_nanos = SystemClock::Get()->NowNanos();
  SaveAnswer answer;
  std::vector<Piece> pieces;
  KV_RETURN_IF_ERROR(Gather(job, answer, pieces));
  if (pieces.empty()) return answer;
  save->job = job;
  save->result.id = job.id;
  save->pieces_left = pieces.size();

  MutexLock lock(&mutex_);
  const absl::Status room = Room(pieces.size());
  if (!room.ok()) return SaveAnswer{0, room};
  ++saves_;
  pending_blocks_ += answer.blocks;
  for (Piece& piece : pieces) {
    piece.save = save;
    queue_.push_back(std::move(piece));
  }
  work_.notify_one();
  return answer;
}

size_t BlockSaver::pending_blocks() const {
  MutexLock lock(&mutex_);
  return pending_blocks_;
}

std::vector<SaveResult> BlockSaver::Poll() {
  std::vector<SaveResult> results = completions_.Take();
  if (!results.empty()) {
    MutexLock lock(&mutex_);
    saves_ -= results.size();
  }
  return results;
}

size_t BlockSaver::CancelQueued() {
  std::deque<Piece> cancelled;  // their staging is given back outside the lock
  MutexLock lock(&mutex_);
  cancelled.swap(queue_);
  size_t blocks = 0;
  for (Piece& piece : cancelled) {
    blocks += piece.blocks;
    End(piece, absl::CancelledError("the save was cancelled"), {});
  }
  return blocks;
}

bool BlockSaver::Drain(int64_t timeout_nanos) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_nanos);
  MutexLock lock(&mutex_);
  while (pending_blocks_ > 0) {
    if (drained_.wait_until(mutex_, deadline) == std::cv_status::timeout)
      return pending_blocks_ == 0;
  }
  return true;
}

void BlockSaver::Stop() {
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    thread.swap(thread_);
  }
  work_.notify_all();
  CancelQueued();
  if (thread.joinable()) thread.join();
}

void BlockSaver::Run() {
  for (;;) {
    Piece piece;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopped_) work_.wait(mutex_);
      if (queue_.empty()) return;
      piece = std::move(queue_.front());
      queue_.pop_front();
    }
    Put(piece);
  }
}

void BlockSaver::Put(Piece& piece) {
  const SaveJob& job = piece.save->job;
  {
    // Behind a block that is not there, no daemon is asked: the rest of the chain could never be
    // found.
    MutexLock lock(&mutex_);
    const SaveResult& so_far = piece.save->result;
    if (!so_far.status.ok()) return End(piece, so_far.status, {});
    if (!so_far.outcomes.empty() && !InPlace(so_far.outcomes.back())) {
      return End(piece, absl::OkStatus(),
                 std::vector<PutOutcome>(piece.blocks, PutOutcome::kRejectedParent));
    }
  }
  const absl::Status gathered = piece.moves.Wait();
  if (!gathered.ok()) {
    MutexLock lock(&mutex_);
    return End(piece, gathered, {});
  }
  PutChain chain;
  chain.parent = piece.first_block == 0 ? job.parent : job.keys[piece.first_block - 1];
  chain.first_depth = job.first_depth + static_cast<uint32_t>(piece.first_block);
  chain.keys = std::span(job.keys).subspan(piece.first_block, piece.blocks);
  chain.request_id = job.request_id;
  chain.recompute_us = job.recompute_us;
  absl::StatusOr<std::vector<PutOutcome>> outcomes =
      sink_->Put(job.ns, chain, std::move(piece.staged));
  if (outcomes.ok() && outcomes->size() != piece.blocks) {
    outcomes = absl::InternalError(
        absl::StrFormat("%d outcomes for a put of %d blocks", outcomes->size(), piece.blocks));
  }
  MutexLock lock(&mutex_);
  if (outcomes.ok()) {
    End(piece, absl::OkStatus(), *std::move(outcomes));
  } else {
    End(piece, outcomes.status(), {});
  }
}

// The only place where a piece ends; the last one ends its save.
void BlockSaver::End(Piece& piece, absl::Status status, std::vector<PutOutcome> outcomes) {
  Pending& save = *piece.save;
  if (save.result.status.ok()) save.result.status = std::move(status);
  // What was put while the rest was cancelled still has its outcomes.
  if (save.result.outcomes.size() == piece.first_block) {
    save.result.outcomes.insert(save.result.outcomes.end(), outcomes.begin(), outcomes.end());
    save.result.bytes += outcomes.size() * save.job.pages->layout().BlockBytes();
  }
  pending_blocks_ -= piece.blocks;
  if (pending_blocks_ == 0) drained_.notify_all();
  if (--save.pieces_left > 0) return;
  save.result.nanos = SystemClock::Get()->NowNanos() - save.started_nanos;
  completions_.Push(std::move(save.result));
}

}  // namespace kvarve
