#include "storage/io/uring_device.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <iterator>
#include <list>
#include <map>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr unsigned kEntries = 128;
constexpr int kMaxRegions = 16384;                // the kernel's limit
constexpr uint64_t kMaxRegionBytes = 1ull << 30;  // the kernel's limit a buffer

absl::Status Refused(int error) {
  return absl::UnavailableError(
      absl::StrFormat("io_uring is refused here: %s (a container's seccomp profile, or the sysctl "
                      "kernel.io_uring_disabled)",
                      std::generic_category().message(error)));
}

// 0 or -errno. The newest flags first; older kernels know none.
int InitRing(io_uring* ring) {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
  const int newest = ::io_uring_queue_init(kEntries, ring,
                                           IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  if (newest != -EINVAL) return newest;
#endif
  return ::io_uring_queue_init(kEntries, ring, 0);
}

// Memory that the kernel keeps pinned.
struct Region {
  std::byte* base = nullptr;
  size_t bytes = 0;
};

class UringDevice final : public QueuedDevice {
 public:
  UringDevice(DeviceFile file, const IoQueueOptions& options)
      : QueuedDevice(std::move(file), IoBackend::kUring, options) {}

  // The ring is made by the thread that will use it, as SINGLE_ISSUER demands.
  absl::Status Start() {
    wake_.reset(::eventfd(0, EFD_CLOEXEC));
    if (!wake_.valid()) return Refused(errno);
    std::promise<int> started;
    std::future<int> answer = started.get_future();
    thread_ = std::thread([this, &started] { Run(&started); });
    const int error = answer.get();
    if (error == 0) return absl::OkStatus();
    thread_.join();
    return Refused(-error);
  }

  ~UringDevice() override {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      Ring();
    }
    thread_.join();
  }

  absl::Status RegisterMemory(void* base, size_t bytes) override {
    if (bytes == 0 || bytes > kMaxRegionBytes)
      return absl::InvalidArgumentError("a piece of registered memory has 1 byte to 1 GiB");
    const int result = Command({static_cast<std::byte*>(base), bytes}, /*add=*/true);
    if (result == 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot register %d bytes with io_uring: %s (see RLIMIT_MEMLOCK)", bytes,
                        std::generic_category().message(-result)));
  }
  void UnregisterMemory(void* base) override {
    Command({static_cast<std::byte*>(base), 0}, /*add=*/false);
  }

 private:
  struct InFlight {
    IoQueue::Item item;
    std::list<InFlight>::iterator self;
  };
  struct PendingCommand {
    Region region;
    bool add = false;
    std::promise<int> result;
  };

  void WakeLocked() override {
    if (asleep_) Ring();
  }
  void Ring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    asleep_ = false;
    const uint64_t one = 1;
    KV_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  }

  int Command(Region region, bool add) {
    PendingCommand command{region, add, {}};
    std::future<int> answer = command.result.get_future();
    {
      MutexLock lock(&mutex_);
      commands_.push_back(&command);
      Ring();
    }
    return answer.get();
  }

  void Run(std::promise<int>* started) {
    const int error = InitRing(&ring_);
    if (error != 0) {
      started->set_value(error);
      return;
    }
    // Both are savings: without them the plain operations work as well.
    int fd = file_.fd.get();
    fixed_file_ = ::io_uring_register_files(&ring_, &fd, 1) == 0;
    fixed_buffers_ = ::io_uring_register_buffers_sparse(&ring_, kMaxRegions) == 0;
    started->set_value(0);
    ArmWake();
    while (StartSome()) {
      const int result = ::io_uring_submit_and_wait(&ring_, 1);
      KV_CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
      Reap();
    }
    ::io_uring_queue_exit(&ring_);
  }

  // False: the device is being destroyed and nothing is left to do.
  bool StartSome() {
    std::vector<PendingCommand*> commands;
    bool go_on = true;
    {
      MutexLock lock(&mutex_);
      commands.swap(commands_);
      PrepareWaiting();
      asleep_ = true;
      go_on = !stopping_ || queue_.waiting() + queue_.inflight() > 0;
    }
    for (PendingCommand* command : commands) command->result.set_value(Execute(*command));
    return go_on;
  }

  // Whether anything was waiting.
  bool PrepareWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool any = false;
    while (std::optional<IoQueue::Item> item = queue_.Pop()) {
      started_.push_back({*std::move(item), {}});
      started_.back().self = std::prev(started_.end());
      uint64_t& fixed = stats_.fixed_buffer_requests;
      fixed += Prepare(&started_.back()) ? 1 : 0;
      any = true;
    }
    return any;
  }

  // The ring has more entries than requests can be in flight, so there is always one.
  io_uring_sqe* NextSqe() {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {
      ::io_uring_submit(&ring_);
      sqe = ::io_uring_get_sqe(&ring_);
    }
    KV_CHECK(sqe != nullptr);
    return sqe;
  }

  // Whether it uses registered memory.
  bool Prepare(InFlight* inflight) {
    const IoRequest& request = inflight->item.request;
    io_uring_sqe* sqe = NextSqe();
    const int fd = fixed_file_ ? 0 : file_.fd.get();
    const int region = request.buffers.size() == 1 ? RegionOf(request.buffers[0]) : -1;
    const auto count = static_cast<unsigned>(request.buffers.size());
    const iovec* buffers = request.buffers.data();
    switch (request.op) {
      case IoOp::kRead:
        if (region >= 0) {
          ::io_uring_prep_read_fixed(sqe, fd, buffers[0].iov_base,
                                     static_cast<unsigned>(buffers[0].iov_len), request.offset,
                                     region);
        } else {
          ::io_uring_prep_readv(sqe, fd, buffers, count, request.offset);
        }
        break;
      case IoOp::kWrite:
        if (region >= 0) {
          ::io_uring_prep_write_fixed(sqe, fd, buffers[0].iov_base,
                                      static_cast<unsigned>(buffers[0].iov_len), request.offset,
                                      region);
        } else {
          ::io_uring_prep_writev(sqe, fd, buffers, count, request.offset);
        }
        break;
      case IoOp::kSync:
        ::io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
        break;
    }
    if (fixed_file_) sqe->flags |= IOSQE_FIXED_FILE;
    ::io_uring_sqe_set_data(sqe, inflight);
    return region >= 0;
  }

  int RegionOf(const iovec& buffer) const {
    const auto* begin = static_cast<const std::byte*>(buffer.iov_base);
    const auto behind = regions_.upper_bound(begin);
    if (behind == regions_.begin()) return -1;
    const auto& [base, region] = *std::prev(behind);
    return begin + buffer.iov_len <= base + region.bytes ? region.number : -1;
  }

  int Execute(const PendingCommand& command) {
    if (!fixed_buffers_) return command.add ? -EOPNOTSUPP : 0;
    const auto known = regions_.find(command.region.base);
    if (!command.add) {
      if (known == regions_.end()) return 0;
      const int number = known->second.number;
      regions_.erase(known);  // whatever the kernel says: no request is to use it any more
      const int result = SetRegion(number, {nullptr, 0});
      if (result == 0) free_numbers_.push_back(number);
      return std::min(result, 0);
    }
    if (known != regions_.end()) return -EEXIST;
    if (free_numbers_.empty()) {
      if (next_number_ == kMaxRegions) return -ENOSPC;
      free_numbers_.push_back(next_number_++);
    }
    const int number = free_numbers_.back();
    const int result = SetRegion(number, {command.region.base, command.region.bytes});
    if (result < 0) return result;
    free_numbers_.pop_back();
    regions_[command.region.base] = {command.region.bytes, number};
    return 0;
  }

  int SetRegion(int number, iovec buffer) {
    const __u64 tag = 0;
    return ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(number), &buffer,
                                                  &tag, 1);
  }

  void ArmWake() {
    io_uring_sqe* sqe = NextSqe();
    ::io_uring_prep_read(sqe, wake_.get(), &wake_count_, sizeof(wake_count_), 0);
    ::io_uring_sqe_set_data(sqe, nullptr);
  }

  // What is made of a read, its check above all, takes as long as the device needs for a good part
  // of the next, and devices finish several at once: what was submitted meanwhile starts between
  // two of them, not behind the last.
  void Reap() {
    {
      MutexLock lock(&mutex_);
      asleep_ = false;  // it looks without being woken
    }
    std::array<io_uring_cqe*, kEntries> ready;
    std::array<std::pair<InFlight*, int>, kEntries> ended;
    const unsigned count = ::io_uring_peek_batch_cqe(&ring_, ready.data(), ready.size());
    for (unsigned i = 0; i < count; ++i) {
      ended[i] = {static_cast<InFlight*>(::io_uring_cqe_get_data(ready[i])), ready[i]->res};
    }
    ::io_uring_cq_advance(&ring_, count);
    for (unsigned i = 0; i < count; ++i) {
      const auto& [inflight, result] = ended[i];
      if (inflight == nullptr) {
        ArmWake();
        continue;
      }
      if (result == -EINTR || result == -EAGAIN) {  // the kernel asks for another try
        Prepare(inflight);
        continue;
      }
      const IoQueue::Item item = std::move(inflight->item);
      started_.erase(inflight->self);
      Finish(item, result);
      if (i + 1 < count) SubmitWaiting();
    }
  }

  void SubmitWaiting() {
    {
      MutexLock lock(&mutex_);
      if (!PrepareWaiting()) return;
    }
    ::io_uring_submit(&ring_);  // what it could not take now, it does when it waits
  }

  UniqueFd wake_;
  std::thread thread_;
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<PendingCommand*> commands_ ABSL_GUARDED_BY(mutex_);

  // Of the ring's thread alone.
  io_uring ring_;
  bool fixed_file_ = false;
  bool fixed_buffers_ = false;
  uint64_t wake_count_ = 0;
  std::list<InFlight> started_;
  struct Known {
    size_t bytes = 0;
    int number = 0;  // the kernel's
  };
  std::map<const std::byte*, Known> regions_;
  std::vector<int> free_numbers_;
  int next_number_ = 0;
};

}  // namespace

absl::Status UringWorks() {
  io_uring ring;
  const int error = InitRing(&ring);
  if (error != 0) return Refused(-error);
  ::io_uring_queue_exit(&ring);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device>> NewUringDevice(DeviceFile* file,
                                                       const IoQueueOptions& options) {
  KV_RETURN_IF_ERROR(UringWorks());
  IoQueueOptions bounded = options;
  bounded.inflight_max = std::min<size_t>(bounded.inflight_max, kEntries / 2);
  // A second descriptor of the same open file (and lock), so that the caller keeps one if this
  // fails.
  DeviceFile copy;
  copy.fd.reset(::fcntl(file->fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.fd.valid()) return Refused(errno);
  copy.path = file->path;
  copy.bytes = file->bytes;
  copy.block_device = file->block_device;
  copy.direct = file->direct;
  copy.fallback_reason = file->fallback_reason;
  auto device = std::make_unique<UringDevice>(std::move(copy), bounded);
  const absl::Status started = device->Start();
  if (!started.ok()) return started;
  file->fd.reset();
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kvarve
