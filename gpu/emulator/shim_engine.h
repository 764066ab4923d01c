// What the shim's files share: the block that is running, its threads and its shared memory.
// THREADS: one; fibers of it.
#ifndef KVARVE_GPU_EMULATOR_SHIM_ENGINE_H_
#define KVARVE_GPU_EMULATOR_SHIM_ENGINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/emulator/fiber.h"
#include "gpu/emulator/shim.h"

namespace kvarve::shim {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxPendingCopies = 64;  // of one thread
inline constexpr int kMaxSharedArrays = 16;
inline constexpr int kMaxCollectives = 8;  // of one warp, under different masks at once

enum class State { kReady, kBarrier, kCollective, kDone };
enum class Operation { kBarrier, kShuffleXor };

struct PendingCopy {
  void* to;
  const void* from;
  uint32_t bytes;
};

// A warp operation that its lanes arrive at one by one.
struct Collective {
  unsigned mask = 0, arrived = 0, left = 0;
  bool used = false, complete = false;
  Operation operation{};
  Site site{};
  uint32_t values[kWarpLanes];
};

struct Thread {
  Fiber fiber;
  Index index;
  int number = 0;
  State state = State::kReady;
  Site site{};
  Collective* collective = nullptr;
  // Asynchronous copies not yet waited for: the oldest first, in groups; behind them the open ones.
  std::array<PendingCopy, kMaxPendingCopies> copies;
  std::array<int, kMaxPendingCopies> group_sizes;
  int copy_count = 0, group_count = 0, open_count = 0;
  int Lane() const { return number % kWarpLanes; }
};

struct SharedArray {
  const void* key;
  size_t offset;
};

// What a fiber does to this is not seen by TSan, but allocations and library calls are: so fibers
// allocate nothing.
struct Engine {
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::array<Collective, kMaxCollectives>> collectives;  // by warp
  int count = 0, live = 0, at_barrier = 0;
  Site barrier_site{};
  Thread* running = nullptr;
  bool failed = false;
  char fault[1200];  // why
  // [dynamic][red zone][static arrays, a red zone behind each]
  std::byte* shared = nullptr;
  size_t dynamic_bytes = 0, static_begin = 0, static_end = 0, shared_bytes = 0;
  std::array<SharedArray, kMaxSharedArrays> arrays;
  int array_count = 0;
  std::vector<std::byte*> used_shared;  // freed when the grid ends: a free would order its blocks
  // TSan's objects. Barriers take turns: who is at the next one already must not be ordered before
  // those who have yet to leave this one.
  char barrier_order[2] = {}, begin_order = 0, end_order = 0;
  unsigned barriers = 0;
};

extern Engine g_engine;

// Ends the grid; the fiber is never run again.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...);
// A block's memory, as undefined as CUDA leaves it; freed when the grid ends.
void NewShared(uint32_t dynamic_bytes);
void FreeShared();

}  // namespace kvarve::shim

#endif  // KVARVE_GPU_EMULATOR_SHIM_ENGINE_H_
