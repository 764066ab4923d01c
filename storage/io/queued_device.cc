#include "storage/io/queued_device.h"

#include <sys/file.h>

#include "absl/strings/str_format.h"

namespace kvarve {

QueuedDevice::QueuedDevice(DeviceFile file, IoBackend backend, const IoQueueOptions& options)
    : file_(std::move(file)), queue_(options) {
  info_.path = file_.path;
  info_.bytes = file_.bytes;
  info_.backend = backend;
  info_.direct = file_.direct;
  info_.fallback_reason = file_.fallback_reason;
}

QueuedDevice::~QueuedDevice() {
  if (file_.fd.valid()) ::flock(file_.fd.get(), LOCK_UN);
}

IoStats QueuedDevice::Stats() const {
  MutexLock lock(&mutex_);
  IoStats stats = stats_;
  for (int i = 0; i < kIoClasses; ++i)
    stats.queued_bytes[i] = queue_.queued_bytes(static_cast<IoClass>(i));
  return stats;
}

void QueuedDevice::Submit(IoRequest request) {
  IoResult refused;
  refused.status = CheckRequest(info_, request);
  if (refused.status.ok()) {
    MutexLock lock(&mutex_);
    if (!queue_.full()) {
      IoQueue::Item item;
      item.bytes = request.bytes();
      item.submitted_nanos = SystemClock::Get()->NowNanos();
      item.request = std::move(request);
      queue_.Push(std::move(item));
      WakeLocked();
      return;
    }
    ++stats_.refused;
    refused.status =
        absl::ResourceExhaustedError(absl::StrFormat("%s: the I/O queue is full", info_.path));
  }
  request.done(refused);
}

void QueuedDevice::Finish(const IoQueue::Item& item, int64_t result) {
  const IoRequest& request = item.request;
  const IoResult told = ResultOf(info_, request.op, request.offset, item.bytes, result);
  {
    MutexLock lock(&mutex_);
    IoStats::Counters& of =
        stats_.of[static_cast<int>(request.io_class)][static_cast<int>(request.op)];
    ++of.requests;
    of.bytes += told.bytes;
    of.errors += told.status.ok() ? 0 : 1;
    of.nanos += static_cast<uint64_t>(SystemClock::Get()->NowNanos() - item.submitted_nanos);
    queue_.Finished(request.io_class, item.bytes);
    if (queue_.waiting() > 0) WakeLocked();
  }
  request.done(told);
}

}  // namespace kvarve
