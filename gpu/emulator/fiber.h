// A stack of its own that is switched to and back on one OS thread, known to the sanitizers: ASan
// sees which stack is in use, TSan sees a thread of its own whose switches order nothing.
//
// THREADS: one; a fiber never moves between threads.
#ifndef KVARVE_GPU_EMULATOR_FIBER_H_
#define KVARVE_GPU_EMULATOR_FIBER_H_

#include <ucontext.h>

#include <cstddef>
#include <memory>

namespace kvarve::shim {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 << 10;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the next Run on it executes `entry`, which must not return: it ends with a last Yield.
  // What ran before is forgotten with its frames.
  void Reset(void (*entry)());
  // Runs it until it yields. Called from outside any fiber.
  void Run();
  // Back to who called Run. Called on the fiber itself.
  void Yield();

 private:
  void Switched();

  std::byte* stack_ = nullptr;
  void (*entry_)() = nullptr;
  void* stack_pointer_ = nullptr;  // where the fiber goes on
  void* host_pointer_ = nullptr;   // where its caller goes on
  // The portable way; only where there is no switch in assembly.
  std::unique_ptr<ucontext_t> context_, host_context_;
  // The sanitizers' own view of both stacks.
  void *fake_stack_ = nullptr, *host_fake_stack_ = nullptr;
  const void* host_bottom_ = nullptr;
  size_t host_bytes_ = 0;
  void *tsan_fiber_ = nullptr, *host_tsan_fiber_ = nullptr;
};

// Orders what was done before Release(object) with what comes after a later Acquire(object), for
// TSan only.
void Release(void* object);
void Acquire(void* object);

}  // namespace kvarve::shim

#endif  // KVARVE_GPU_EMULATOR_FIBER_H_
