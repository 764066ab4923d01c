// The kernels as nvcc made them: a fatbin with cubins for sm_80, 90, 100 and 120 (each serves its
// major family) and PTX for what comes later. Part of the library, so that nothing is looked for at
// run time.
//
// THREADS: any.
#ifndef KVARVE_GPU_KERNELS_KERNEL_MODULE_H_
#define KVARVE_GPU_KERNELS_KERNEL_MODULE_H_

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"

namespace kvarve {

// FailedPrecondition, with what was missing, in a build without nvcc.
absl::StatusOr<std::span<const std::byte>> KernelModule();

}  // namespace kvarve

#endif  // KVARVE_GPU_KERNELS_KERNEL_MODULE_H_
