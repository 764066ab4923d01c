// The CPU as a device: streams do their work in the call, events are done when they are recorded,
// addresses are pointers. It runs the movers of the kernels' table (cpu_kernels.h).
//
// THREADS: as ComputeDevice.  BLOCKS: for the copies; WaitValue until another thread writes the
// value.
#ifndef KVARVE_GPU_DEVICE_CPU_DEVICE_H_
#define KVARVE_GPU_DEVICE_CPU_DEVICE_H_

#include <memory>

#include "gpu/device/device.h"

namespace kvarve {

std::shared_ptr<ComputeDevice> NewCpuDevice();

}  // namespace kvarve

#endif  // KVARVE_GPU_DEVICE_CPU_DEVICE_H_
