// Loads blocks into an engine's pages with a few threads of its own: leased memory is mapped, each
// block verified and scattered, and the job's end comes out of Poll().
//
// Every submitted job ends exactly once, be it loaded, failed, cancelled or cut off by Stop(), and
// after its result is out no page of it is written. A job that fails may have written any of its
// pages.
//
// THREADS: any.  BLOCKS: only Stop() and the destructor, for the blocks being scattered.
#ifndef KVARVE_CLIENT_CPP_ENGINE_BLOCK_LOADER_H_
#define KVARVE_CLIENT_CPP_ENGINE_BLOCK_LOADER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/engine/block_ports.h"
#include "client/cpp/engine/completions.h"
#include "gpu/transfer/move_set.h"
#include "gpu/transfer/transfer.h"
#include "storage/base/mutex.h"

namespace kvarve {

struct LoadJob {
  uint64_t id = 0;  // the caller's; one job of an id at a time
  ClientNamespace ns = 0;
  std::vector<BlockKey> keys;  // of consecutive blocks
  std::optional<GrantSet>
      grants;  // a sibling process's lease on them; none: the loader leases them
  uint64_t request_id = 0;
  std::shared_ptr<Transfer> pages;
  std::vector<int64_t>
      page_ids;  // of all blocks, in order; those outside the tokens below may be -1
  // Tokens [first_token, end_token) are written, counted from the first block's first. No other
  // byte of a page is.
  uint64_t first_token = 0;
  uint64_t end_token = std::numeric_limits<uint64_t>::max();  // cut to the blocks' tokens
  EngineStream engine = 0;  // what may still read the pages as they were
};

struct LoadResult {
  uint64_t id = 0;
  absl::Status status;                         // OK: every block is in its pages
  uint64_t blocks = 0;                         // scattered
  uint64_t bytes = 0;                          // written
  std::array<uint64_t, kHostPaths> by_path{};  // blocks
  int64_t nanos = 0;                           // since Submit
};

class BlockLoader {
 public:
  static constexpr int kMaxThreads = 16;
  static constexpr size_t kMaxJobs = 4096;  // submitted and not yet polled

  struct Options {
    int threads = 2;
    bool verify = true;  // each block's checksum, before it is scattered; what others may write
                         // is checked always, and afterwards
  };
  // InvalidArgument: threads outside 1 .. kMaxThreads.
  static absl::StatusOr<std::unique_ptr<BlockLoader>> Create(std::unique_ptr<BlockSource> source,
                                                             const Options& options);
  ~BlockLoader();  // Stop()

  // An error means that the job was not taken and no result will come: ResourceExhausted
  // (kMaxJobs), AlreadyExists (the id), FailedPrecondition (stopped). Whatever is wrong with the
  // job itself is its result.
  absl::Status Submit(LoadJob job);
  // True: the job was not done, and its result will be (or already is in Poll) Cancelled.
  bool Cancel(uint64_t id);
  // Results since the last call.
  std::vector<LoadResult> Poll();
  int event_fd() const { return completions_.event_fd(); }  // readable while Poll() has something
  // Cancels all, takes no more, and returns when no page is being written.
  void Stop();

 private:
  struct Job;
  BlockLoader(std::unique_ptr<BlockSource> source, const Options& options);
  void Run();
  void Load(Job& job, LoadResult& result);
  absl::StatusOr<OpenBlocks> Open(Job& job, size_t first);
  absl::Status Scatter(Job& job, size_t first, const OpenBlocks& open, LoadResult& result);
  // Of blocks [first, first + open's), when their memory could change while they were copied.
  absl::Status CheckCopied(Job& job, size_t first, const OpenBlocks& open);
  void End(const std::shared_ptr<Job>& job, LoadResult result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<BlockSource> source_;
  const Options options_;
  Completions<LoadResult> completions_;
  Mutex mutex_;
  CondVar work_;
  std::deque<std::shared_ptr<Job>> queue_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Job>> jobs_
      ABSL_GUARDED_BY(mutex_);  // queued and running
  size_t unpolled_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_ENGINE_BLOCK_LOADER_H_
