// The movers of the kernels' table on the CPU, told what the kernels are told
// (gpu/kernels/params.h): rows that are contiguous on both sides go as one, past the caches.
//
// THREADS: any; two at once must not write the same rows.  BLOCKS: never.
#ifndef KVARVE_GPU_DEVICE_CPU_KERNELS_H_
#define KVARVE_GPU_DEVICE_CPU_KERNELS_H_

#include "absl/status/status.h"
#include "gpu/kernels/params.h"
#include "gpu/kernels/plan.h"

namespace kvarve {

// Trusts the launch, as a kernel does. Unimplemented: the packers.
absl::Status RunOnCpu(const Launch& launch);

// Gather, or scatter.
void MoveOnCpu(const MoveParams& params, bool gather);

}  // namespace kvarve

#endif  // KVARVE_GPU_DEVICE_CPU_KERNELS_H_
