// A real device whose requests fail, wait or lie when a test says so. THREADS: any.
#ifndef KVARVE_STORAGE_TESTING_FAULTY_DEVICE_H_
#define KVARVE_STORAGE_TESTING_FAULTY_DEVICE_H_

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/io/device.h"

namespace kvarve::testing {

// What a test turns on and off while the device is elsewhere.
struct DeviceFaults {
  Mutex mutex;
  bool fail_reads ABSL_GUARDED_BY(mutex) = false;   // EIO
  bool fail_writes ABSL_GUARDED_BY(mutex) = false;  // EIO
  int write_error ABSL_GUARDED_BY(mutex) = EIO;
  bool flip_reads ABSL_GUARDED_BY(mutex) = false;   // one bit of each
  bool hold_writes ABSL_GUARDED_BY(mutex) = false;  // until ReleaseWrites
  std::vector<IoRequest> held ABSL_GUARDED_BY(mutex);
  Device* device ABSL_GUARDED_BY(mutex) = nullptr;

  void Set(bool DeviceFaults::*fault, bool on) {
    MutexLock lock(&mutex);
    this->*fault = on;
  }
  void ReleaseWrites() {
    std::vector<IoRequest> requests;
    Device* to = nullptr;
    {
      MutexLock lock(&mutex);
      hold_writes = false;
      requests = std::move(held);
      held.clear();
      to = device;
    }
    for (IoRequest& request : requests) to->Submit(std::move(request));
  }
};

class FaultyDevice final : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> real, std::shared_ptr<DeviceFaults> faults)
      : real_(std::move(real)), faults_(std::move(faults)) {
    MutexLock lock(&faults_->mutex);
    faults_->device = real_.get();
  }
  ~FaultyDevice() override { faults_->ReleaseWrites(); }

  const DeviceInfo& info() const override { return real_->info(); }
  IoStats Stats() const override { return real_->Stats(); }
  void Submit(IoRequest request) override {
    bool fails = false, flips = false;
    int error = EIO;
    {
      MutexLock lock(&faults_->mutex);
      const bool is_write = request.op != IoOp::kRead;
      fails = is_write ? faults_->fail_writes : faults_->fail_reads;
      if (is_write) error = faults_->write_error;
      flips = !is_write && faults_->flip_reads;
      if (request.op == IoOp::kWrite && faults_->hold_writes) {
        faults_->held.push_back(std::move(request));
        return;
      }
    }
    if (fails) {
      request.done(ResultOf(info(), request.op, request.offset, request.bytes(), -error));
      return;
    }
    if (flips) {
      auto* const first = static_cast<std::byte*>(request.buffers.front().iov_base);
      request.done = [first, done = std::move(request.done)](const IoResult& result) {
        *first ^= std::byte{1};
        done(result);
      };
    }
    real_->Submit(std::move(request));
  }

 private:
  const std::unique_ptr<Device> real_;
  const std::shared_ptr<DeviceFaults> faults_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_TESTING_FAULTY_DEVICE_H_
