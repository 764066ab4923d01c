// Waits for a group of requests: submit some, then Wait for all of them. For threads that may
// block. THREADS: one owner.  BLOCKS: Wait, and the destructor, until every request is done.
#ifndef KVARVE_STORAGE_IO_IO_WAIT_H_
#define KVARVE_STORAGE_IO_IO_WAIT_H_

#include <utility>

#include "storage/base/mutex.h"
#include "storage/io/device.h"

namespace kvarve {

class IoWait {
 public:
  explicit IoWait(Device* device) : device_(device) {}
  ~IoWait() { WaitBelow(1); }
  IoWait(const IoWait&) = delete;
  IoWait& operator=(const IoWait&) = delete;

  // The request's own `done`, if it has one, is called before it counts as done here.
  void Submit(IoRequest request) {
    {
      MutexLock lock(&mutex_);
      ++pending_;
    }
    request.done = [this, done = std::move(request.done)](const IoResult& result) {
      if (done) done(result);
      MutexLock lock(&mutex_);
      if (first_error_.ok()) first_error_ = Unshared(result.status);
      --pending_;
      changed_.notify_all();
    };
    device_->Submit(std::move(request));
  }
  // Until fewer than `below` are pending.
  void WaitBelow(size_t below) {
    for (;;) {
      {
        MutexLock lock(&mutex_);
        if (pending_ < below) return;
      }
      if (device_->RunOne()) continue;
      MutexLock lock(&mutex_);
      while (pending_ >= below) changed_.wait(mutex_);
    }
  }
  // OK, or the first error of those submitted since the last Wait.
  absl::Status Wait() {
    WaitBelow(1);
    MutexLock lock(&mutex_);
    return std::exchange(first_error_, absl::OkStatus());
  }

 private:
  Device* const device_;
  Mutex mutex_;
  CondVar changed_;
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_IO_WAIT_H_
