// The arena's background thread for work with pages that nobody should wait for: touching the pages
// of extents that are in use or next to be, and unmapping dropped chunks.
//
// THREADS: any.  BLOCKS: the destructor, for at most one step (kStepBytes) of touching.
#ifndef KVARVE_STORAGE_ARENA_PAGE_WORKER_H_
#define KVARVE_STORAGE_ARENA_PAGE_WORKER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "storage/arena/chunk.h"
#include "storage/base/mutex.h"

namespace kvarve {

class PageWorker {
 public:
  // More extents than this waiting: the rest is touched by the first copy.
  static constexpr size_t kMaxQueued = 64;
  static constexpr uint64_t kStepBytes = 2ull << 20;

  // Told, on this thread, of a range whose pages are all there, and of all of a memory before it is
  // let go of.
  using Told = std::function<void(std::byte* base, size_t bytes)>;
  explicit PageWorker(Told on_present = nullptr, Told on_unmap = nullptr);
  ~PageWorker();

  // False when the queue is full. `urgent`: before the ones that are not.
  bool Populate(std::shared_ptr<ChunkMemory> memory, uint64_t offset, uint64_t size, bool urgent);
  // Lets go of the memory of a dropped chunk.
  void Unmap(std::shared_ptr<ChunkMemory> memory);
  // Waits until nothing is queued or under way. For tests and warm-up.
  void Drain();

 private:
  struct Range {
    std::shared_ptr<ChunkMemory> memory;
    uint64_t offset = 0;
    uint64_t size = 0;
  };

  void Run();
  // Whether all of its pages are there.
  bool Touch(const Range& range);
  void Pause();

  static constexpr int kTries = 10;  // at pages that are in hand
  static constexpr std::chrono::milliseconds kPause{10};

  const Told on_present_, on_unmap_;
  Mutex mutex_;
  CondVar wake_;
  CondVar idle_;
  std::deque<Range> ranges_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ChunkMemory>> unmaps_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_PAGE_WORKER_H_
