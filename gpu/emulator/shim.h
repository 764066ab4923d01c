// The CUDA C++ dialect for a C++ compiler: kernels are compiled as they are, each CUDA thread is a
// fiber, and sanitizers see what they do. Included by gpu/kernels/portable.cuh alone.
//
// Beyond CUDA's own rules it refuses, with file and line: threads of one block at two different
// barriers, a warp operation whose mask does not name the caller or whose lanes call different
// ones, a shuffle from a lane that takes no part, threads that wait for ever.
//
// THREADS: one grid at a time, on one thread (kernels' threads are fibers).
#ifndef KVARVE_GPU_EMULATOR_SHIM_H_
#define KVARVE_GPU_EMULATOR_SHIM_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace kvarve::shim {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// The call's place in the source: return addresses are no identity, optimisers clone call sites.
struct Site {
  const char* file;
  int line;
};

void Barrier(Site site);
void WarpBarrier(unsigned mask, Site site);
uint32_t ShuffleXor(unsigned mask, uint32_t value, unsigned lanes, Site site);
void* DynamicShared();
// The block's own copy of the array that `key` stands for, fresh in each block.
void* StaticShared(const void* key, size_t bytes);
// Copied at the wait, not before; until then the destination holds 0xFF.
void CopyAsync(void* shared, const void* global, uint32_t bytes);
void CopyAsyncCommit();
void CopyAsyncWait(int pending_allowed);
uint32_t AtomicAdd(uint32_t* at, uint32_t value);

// The order in which blocks, and a block's runnable threads, are taken.
enum class Order { kForward, kReverse, kRandom };

struct Grid {
  Index grid{1, 1, 1};
  Index block{1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  Order order = Order::kForward;
  uint64_t seed = 1;
};

// Runs the kernel to its end; `body` is called by each of its threads. Empty, or what a thread did
// that CUDA forbids; the grid ends there.
std::string RunGrid(const Grid& grid, const std::function<void()>& body);

// Kernels by name, as a loaded module has them.
using KernelFunction = void (*)(const void* params);
struct KernelEntry {
  KernelEntry(const char* name, size_t params_bytes, KernelFunction run);
  const char* name;
  size_t params_bytes;
  KernelFunction run;
};
const KernelEntry* FindKernel(const std::string& name);
std::vector<const KernelEntry*> Kernels();

}  // namespace kvarve::shim

// The names that CUDA gives them.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern kvarve::shim::Index threadIdx, blockIdx, blockDim, gridDim;

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  kvarve::shim::Barrier({file, line});
}
inline void __syncwarp(unsigned mask = ~0u, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  kvarve::shim::WarpBarrier(mask, {file, line});
}
inline float __shfl_xor_sync(unsigned mask, float value, unsigned lanes,
                             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return std::bit_cast<float>(
      kvarve::shim::ShuffleXor(mask, std::bit_cast<uint32_t>(value), lanes, {file, line}));
}
inline uint32_t atomicAdd(uint32_t* at, uint32_t value) {
  return kvarve::shim::AtomicAdd(at, value);
}
inline void __threadfence_system() {}
// NOLINTEND(bugprone-reserved-identifier)

#endif  // KVARVE_GPU_EMULATOR_SHIM_H_
