// Launches of our kernels in the shim.
// THREADS: one.
#ifndef KVARVE_GPU_EMULATOR_SHIM_LAUNCH_H_
#define KVARVE_GPU_EMULATOR_SHIM_LAUNCH_H_

#include <cstdint>
#include <string>

#include "gpu/emulator/shim.h"
#include "gpu/kernels/plan.h"

namespace kvarve::shim {

// Empty, or what went wrong. The binary holds the kernels (kv_shim_kernels_testing).
std::string RunOnShim(const Launch& launch, Order order, uint64_t seed);

}  // namespace kvarve::shim

#endif  // KVARVE_GPU_EMULATOR_SHIM_LAUNCH_H_
