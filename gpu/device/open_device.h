// A device by its name in a setting.
// THREADS: any.  BLOCKS: as drivers start.
#ifndef KVARVE_GPU_DEVICE_OPEN_DEVICE_H_
#define KVARVE_GPU_DEVICE_OPEN_DEVICE_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/device/device.h"

namespace kvarve {

// "cpu", "cuda" (where there is one device) or "cuda:UUID". InvalidArgument: another word.
// NotFound, FailedPrecondition: no driver, too old a one, no such device, no kernels for it or none
// in this build; the text says which, and what is wanted.
absl::StatusOr<std::shared_ptr<ComputeDevice>> OpenDevice(std::string_view name);

}  // namespace kvarve

#endif  // KVARVE_GPU_DEVICE_OPEN_DEVICE_H_
