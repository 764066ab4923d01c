// What a CUDA device's files share: the context and how to be in it.
// THREADS: any.
#ifndef KVARVE_GPU_DEVICE_CUDA_CORE_H_
#define KVARVE_GPU_DEVICE_CUDA_CORE_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "gpu/device/device.h"
#include "gpu/device/driver.h"
#include "gpu/kernels/kernel_table.h"

// driver.call(arguments…), as a status that names the call.
#define KV_CUDA(driver, call, ...) \
  ::kvarve::cuda::ToStatus((driver), (driver).call(__VA_ARGS__), "cu" #call)

namespace kvarve::cuda {

// A device's primary context with the kernels loaded; memory, streams and events keep it.
class Core {
 public:
  Core(const Driver& driver, DeviceOrdinal ordinal, ComputeDeviceInfo info);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  // Retains the context and loads the module.
  absl::Status Open(std::span<const std::byte> module);

  const Driver& driver() const { return driver_; }
  DeviceOrdinal ordinal() const { return ordinal_; }
  const ComputeDeviceInfo& info() const { return info_; }
  Context context() const { return context_; }
  Kernel kernel(uint32_t row) const { return kernels_[row]; }

 private:
  absl::Status Load(std::span<const std::byte> module);
  const Driver& driver_;
  const DeviceOrdinal ordinal_;
  const ComputeDeviceInfo info_;
  Context context_ = nullptr;
  Library library_ = nullptr;
  std::array<Kernel, kKernelCount> kernels_{};
};

// In the context, and relaxed towards captures, while it lives.
class InContext {
 public:
  explicit InContext(const Core& core);
  ~InContext();
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  const Core& core_;
  int capture_mode_ = kCaptureRelaxed;
  absl::Status status_;
};

absl::StatusOr<std::unique_ptr<DeviceStream>> NewCudaStream(std::shared_ptr<const Core> core);
// As ComputeDevice::RecordEngine.
absl::StatusOr<std::shared_ptr<DeviceEvent>> RecordEngineEvent(std::shared_ptr<const Core> core,
                                                               EngineStream engine);

}  // namespace kvarve::cuda

#endif  // KVARVE_GPU_DEVICE_CUDA_CORE_H_
