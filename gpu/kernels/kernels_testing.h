// The kernels' tests, for whatever runs kernels: each row of kKernels against an oracle on the CPU,
// over layouts, page sizes and alignments.
//
// THREADS: one.
#ifndef KVARVE_GPU_KERNELS_KERNELS_TESTING_H_
#define KVARVE_GPU_KERNELS_KERNELS_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpu/kernels/paged_memory_testing.h"
#include "gpu/kernels/plan.h"

namespace kvarve::testing {

// Memory that a launch may touch: what a device would have allocated, or mapped.
using Memory = std::vector<std::span<const std::byte>>;
// Runs a launch over this process's memory; empty, or what went wrong.
using RunLaunch = std::function<std::string(const Launch&, const Memory&)>;

struct KernelCase {
  uint32_t kernel = 0;  // row of kKernels
  PageLayout layout = PageLayout::kNhd;
  uint32_t page_tokens = 8;
  uint64_t seed = 0;
};

// Compares one case; failures are GoogleTest's.
void CheckKernel(const KernelCase& which, const RunLaunch& run);
// Offsets beyond 2^31 elements, on memory that exists only where it is touched.
void CheckFarPages(const RunLaunch& run);
void CheckFarPacks(const RunLaunch& run);  // the same of packers, which the CPU device has not
// More pieces than a grid has threads, more tokens than a grid's y has blocks.
void CheckManyPieces(const RunLaunch& run);

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_KERNELS_KERNELS_TESTING_H_
