// Launches of our kernels, as nvcc compiled them for each target.
// THREADS: one.
#ifndef KVARVE_GPU_EMULATOR_PTX_PTX_LAUNCH_TESTING_H_
#define KVARVE_GPU_EMULATOR_PTX_PTX_LAUNCH_TESTING_H_

#include <string>

#include "absl/status/statusor.h"
#include "gpu/emulator/ptx/ptx_module.h"
#include "gpu/kernels/kernels_testing.h"
#include "gpu/kernels/plan.h"

namespace kvarve::ptx {

inline constexpr const char* kTargets[] = {"80", "90", "100", "120"};

// A module of this build by its file's name: "kernels_80".
absl::StatusOr<Module> LoadModule(const std::string& name);
// The kernels that ship, parsed once for each target; no entries where that fails.
const Module& ModuleFor(const std::string& target);
// Empty, or what went wrong. `reverse`: the order of a block's threads.
std::string RunOnPtx(const Module& module, const Launch& launch, const testing::Memory& memory,
                     bool reverse);

}  // namespace kvarve::ptx

#endif  // KVARVE_GPU_EMULATOR_PTX_PTX_LAUNCH_TESTING_H_
