#include "storage/io/posix_device.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace kvarve {
namespace {

class PosixDevice final : public QueuedDevice {
 public:
  PosixDevice(DeviceFile file, const IoQueueOptions& options, int threads)
      : QueuedDevice(std::move(file), IoBackend::kPosix, options) {
    for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Run(); });
  }
  ~PosixDevice() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void WakeLocked() override { wake_.notify_one(); }

  void Run() {
    for (;;) {
      std::optional<IoQueue::Item> item;
      {
        MutexLock lock(&mutex_);
        while (!(item = queue_.Pop())) {
          // What waits for room in the device is started by the threads that make it.
          if (stopping_ && queue_.waiting() == 0) return;
          wake_.wait(mutex_);
        }
      }
      const int64_t result = Call(file_.fd.get(), item->request);
      Finish(*item, result);
      MutexLock lock(&mutex_);
      if (stopping_ && queue_.waiting() == 0) wake_.notify_all();
    }
  }

  CondVar wake_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Device> NewPosixDevice(DeviceFile file, const IoQueueOptions& options,
                                       int threads) {
  return std::make_unique<PosixDevice>(std::move(file), options, threads);
}

}  // namespace kvarve
