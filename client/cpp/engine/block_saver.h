// Saves an engine's pages as blocks. Save() gathers in the caller's thread, so that the pages are
// the engine's again when it returns (a CUDA engine's: for what its stream gets from then on); one
// thread in the background waits for the gather and puts what was gathered.
//
// Without staging for a block, that block and all after it are dropped: what is put is always the
// leading part. Every save that took a block ends exactly once in Poll(). A gather that fails puts
// nothing.
//
// THREADS: any.  BLOCKS: Save() copies and never waits for the daemon; Drain() as said; Stop() and
// the destructor for the put under way.
#ifndef KVARVE_CLIENT_CPP_ENGINE_BLOCK_SAVER_H_
#define KVARVE_CLIENT_CPP_ENGINE_BLOCK_SAVER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/engine/block_ports.h"
#include "client/cpp/engine/completions.h"
#include "gpu/transfer/move_set.h"
#include "gpu/transfer/transfer.h"
#include "storage/base/mutex.h"

namespace kvarve {

struct SaveJob {
  uint64_t id = 0;  // the caller's, given back
  ClientNamespace ns = 0;
  std::optional<BlockKey> parent;
  uint32_t first_depth = 0;
  std::vector<BlockKey> keys;  // of consecutive whole blocks
  uint64_t request_id = 0;
  uint32_t recompute_us = 0;
  std::shared_ptr<Transfer> pages;
  std::vector<int64_t> page_ids;  // of all blocks, in order
  EngineStream engine = 0;        // what wrote the pages, and will write them again
};

struct SaveAnswer {
  size_t blocks = 0;     // leading ones, that will be put
  absl::Status dropped;  // why the others were not taken; OK: there are none
};

struct SaveResult {
  uint64_t id = 0;
  absl::Status status;               // OK: every block taken has an outcome
  std::vector<PutOutcome> outcomes;  // of the leading blocks that the daemon answered for
  uint64_t bytes = 0;                // of them
  int64_t nanos = 0;                 // since Save
};

class BlockSaver {
 public:
  static constexpr size_t kPieceBytes = 8 << 20;  // of staging, at most: one put
  static constexpr size_t kMaxPieces = 1024;      // gathered and not yet put
  static constexpr size_t kMaxSaves = 4096;       // taken and not yet polled

  explicit BlockSaver(std::unique_ptr<BlockSink> sink);
  ~BlockSaver();  // Stop()

  // Never waits. InvalidArgument: the gather failed, nothing is put and no result comes; nor does
  // one when no block was taken.
  absl::StatusOr<SaveAnswer> Save(const SaveJob& job);
  // Blocks taken whose put was not answered yet.
  size_t pending_blocks() const;
  // Results since the last call.
  std::vector<SaveResult> Poll();
  int event_fd() const { return completions_.event_fd(); }  // readable while Poll() has something
  // Ends every save that waits as Cancelled, but for puts that went out. Returns the blocks given
  // up.
  size_t CancelQueued();
  // Waits until nothing is pending; false when it still is after `timeout_nanos`.
  bool Drain(int64_t timeout_nanos);
  // CancelQueued, and takes no more.
  void Stop();

 private:
  struct Pending;  // a save, until its last piece
  struct Piece {   // one put
    std::shared_ptr<Pending> save;
    size_t first_block = 0;
    size_t blocks = 0;
    StagedBytes staged;
    MoveSet moves;  // into it
  };
  absl::Status Gather(const SaveJob& job, SaveAnswer& answer, std::vector<Piece>& pieces);
  StagedBytes Stage(uint64_t block_bytes, size_t& blocks, absl::Status& dropped);
  // Whether so many pieces more may wait.
  absl::Status Room(size_t pieces) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void Put(Piece& piece);
  void End(Piece& piece, absl::Status status, std::vector<PutOutcome> outcomes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<BlockSink> sink_;
  Completions<SaveResult> completions_;
  mutable Mutex mutex_;
  CondVar work_;
  CondVar drained_;
  std::deque<Piece> queue_ ABSL_GUARDED_BY(mutex_);
  size_t pending_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t saves_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_ENGINE_BLOCK_SAVER_H_
