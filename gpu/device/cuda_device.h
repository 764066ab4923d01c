// A CUDA device through the driver's table: its primary context (the engine's own, if this is the
// engine's process), streams that order nothing with any other, the kernels' module loaded once.
//
// THREADS: as ComputeDevice. Every call sets the thread's capture mode to relaxed and back, so that
// a capture of the engine's, on whatever thread, is not invalidated by it.  BLOCKS: as
// ComputeDevice.
#ifndef KVARVE_GPU_DEVICE_CUDA_DEVICE_H_
#define KVARVE_GPU_DEVICE_CUDA_DEVICE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/device/device.h"
#include "gpu/device/driver.h"

namespace kvarve {

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
std::string UuidText(const cuda::Uuid& uuid);

// The devices that the driver shows to this process. A MIG instance is one, by its own UUID.
absl::StatusOr<std::vector<ComputeDeviceInfo>> ListCudaDevices(const cuda::Driver& driver);

// `uuid`: with or without "GPU-" or "MIG-", as nvidia-smi -L or an engine's framework gives it;
// empty where there is only one device. `module`: KernelModule(). `driver` must outlive the device.
// NotFound: no such device, with those that there are. FailedPrecondition: no kernels for it, with
// what the driver is and what is wanted. Unavailable: a capture is under way.
absl::StatusOr<std::shared_ptr<ComputeDevice>> OpenCudaDevice(const cuda::Driver& driver,
                                                              std::string_view uuid,
                                                              std::span<const std::byte> module);

}  // namespace kvarve

#endif  // KVARVE_GPU_DEVICE_CUDA_DEVICE_H_
