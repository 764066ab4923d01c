#include "storage/arena/page_worker.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace kvarve {

PageWorker::PageWorker(Told on_present, Told on_unmap)
    : on_present_(std::move(on_present)),
      on_unmap_(std::move(on_unmap)),
      thread_([this] { Run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "kvarve-pages");
}

PageWorker::~PageWorker() {
  {
    MutexLock lock(&mutex_);
    stop_.store(true, std::memory_order_relaxed);
  }
  wake_.notify_all();
  thread_.join();
}

bool PageWorker::Populate(std::shared_ptr<ChunkMemory> memory, uint64_t offset, uint64_t size,
                          bool urgent) {
  {
    MutexLock lock(&mutex_);
    if (ranges_.size() >= kMaxQueued) return false;
    Range range{std::move(memory), offset, size};
    if (urgent) {
      ranges_.push_front(std::move(range));
    } else {
      ranges_.push_back(std::move(range));
    }
  }
  wake_.notify_one();
  return true;
}

void PageWorker::Unmap(std::shared_ptr<ChunkMemory> memory) {
  memory->Cancel();
  {
    MutexLock lock(&mutex_);
    unmaps_.push_back(std::move(memory));
  }
  wake_.notify_one();
}

void PageWorker::Drain() {
  MutexLock lock(&mutex_);
  while (busy_ || !ranges_.empty() || !unmaps_.empty()) idle_.wait(mutex_);
}

void PageWorker::Run() {
  // Ahead of its need is early enough: requests and engines go first. (0 is this thread.)
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, 0, kNice);
  while (true) {
    std::vector<std::shared_ptr<ChunkMemory>> unmaps;
    Range range;
    {
      MutexLock lock(&mutex_);
      busy_ = false;
      if (ranges_.empty() && unmaps_.empty()) idle_.notify_all();
      while (!stop_.load(std::memory_order_relaxed) && ranges_.empty() && unmaps_.empty()) {
        wake_.wait(mutex_);
      }
      if (stop_.load(std::memory_order_relaxed)) return;
      busy_ = true;
      unmaps.swap(unmaps_);
      if (unmaps.empty()) {
        range = std::move(ranges_.front());
        ranges_.pop_front();
      }
    }
    for (const auto& memory : unmaps) {
      if (on_unmap_) on_unmap_(memory->base(), memory->bytes());
    }
    if (range.memory && Touch(range) && on_present_) {
      on_present_(range.memory->base() + range.offset, range.size);
    }
  }
}

bool PageWorker::Touch(const Range& range) {
  std::vector<uint64_t> left;
  const uint64_t end = range.offset + range.size;
  for (uint64_t offset = range.offset; offset < end; offset += kStepBytes) left.push_back(offset);
  for (int tries = kTries; !left.empty(); --tries) {
    std::vector<uint64_t> busy;
    for (const uint64_t offset : left) {
      if (stop_.load(std::memory_order_relaxed) || range.memory->cancelled()) return false;
      const auto present = range.memory->Populate(offset, std::min(kStepBytes, end - offset));
      if (present == ChunkMemory::Present::kNo) return false;
      if (present == ChunkMemory::Present::kBusy) busy.push_back(offset);
    }
    if (busy.empty() || tries == 1) break;
    left = std::move(busy);
    Pause();
  }
  return true;
}

// While a device writes from pages they stay small, and it is soon done with them.
void PageWorker::Pause() {
  MutexLock lock(&mutex_);
  if (!stop_.load(std::memory_order_relaxed)) wake_.wait_for(mutex_, kPause);
}

}  // namespace kvarve
