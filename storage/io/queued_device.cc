#include "storage/io/queued_device.h"

#include <errno.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <optional>

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
    std::optional<IoQueue::Item> here;
    if (Queue(&request, &here)) {
      if (here.has_value()) Finish(*here, Call(file_.fd.get(), here->request));
      return;
    }
    refused.status =
        absl::ResourceExhaustedError(absl::StrFormat("%s: the I/O queue is full", info_.path));
  }
  request.done(refused);
}

// False: there is no room. `here`: the caller is to carry it out, as nothing waits before it and
// the caps let it through.
bool QueuedDevice::Queue(IoRequest* request, std::optional<IoQueue::Item>* here) {
  MutexLock lock(&mutex_);
  if (queue_.full()) {
    ++stats_.refused;
    return false;
  }
  const bool is_first = queue_.waiting() == 0 && request->in_callers_thread;
  IoQueue::Item item;
  item.bytes = request->bytes();
  item.submitted_nanos = SystemClock::Get()->NowNanos();
  item.request = std::move(*request);
  queue_.Push(std::move(item));
  if (is_first) *here = queue_.Pop();
  if (!here->has_value()) WakeLocked();
  return true;
}

int64_t QueuedDevice::Call(int fd, const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.offset);
  const auto count = static_cast<int>(request.buffers.size());
  for (;;) {
    ssize_t result = -1;
    switch (request.op) {
      case IoOp::kRead:
        result = ::preadv(fd, request.buffers.data(), count, offset);
        break;
      case IoOp::kWrite:
        result = ::pwritev(fd, request.buffers.data(), count, offset);
        break;
      case IoOp::kSync:
        result = ::fdatasync(fd);
        break;
    }
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
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
    // Who stops waits for what others carry out, too.
    if (queue_.waiting() > 0 || stopping_) WakeLocked();
  }
  request.done(told);
}

}  // namespace kvarve
