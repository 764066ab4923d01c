// What both real devices share: the queue with its lock, the counters, and the last call of a
// request. A backend takes items with StartSome or Pop and gives each to Finish.
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_STORAGE_IO_QUEUED_DEVICE_H_
#define KVARVE_STORAGE_IO_QUEUED_DEVICE_H_

#include <optional>
#include <utility>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/io/device.h"
#include "storage/io/device_file.h"
#include "storage/io/io_queue.h"

namespace kvarve {

class QueuedDevice : public Device {
 public:
  const DeviceInfo& info() const final { return info_; }
  IoStats Stats() const final;
  void Submit(IoRequest request) final;

  // Lets go of the file's lock at once: a ring gives its file back some time after it is closed.
  ~QueuedDevice() override;

 protected:
  QueuedDevice(DeviceFile file, IoBackend backend, const IoQueueOptions& options);

  // Something waits. Called under the lock: it only notifies.
  virtual void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Counts and tells. `result`: bytes or -errno.
  void Finish(const IoQueue::Item& item, int64_t result);
  // Carries the request out with POSIX calls: bytes or -errno.  BLOCKS.
  static int64_t Call(int fd, const IoRequest& request);

  const DeviceFile file_;
  mutable Mutex mutex_;
  IoQueue queue_ ABSL_GUARDED_BY(mutex_);
  IoStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

 private:
  bool Queue(IoRequest* request, std::optional<IoQueue::Item>* here);

  DeviceInfo info_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_QUEUED_DEVICE_H_
