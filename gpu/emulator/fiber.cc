#include "gpu/emulator/fiber.h"

#include <sys/mman.h>

#include "storage/base/status_macros.h"

// This file is never instrumented by TSan (its own bookkeeping is not what a kernel does), so that
// the build says whether the rest is: KV_SHIM_TSAN.
#ifdef KV_SHIM_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* object);
void __tsan_release(void* object);
}
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvarve::shim {
namespace {

constexpr size_t kGuardBytes = 4096;
#ifdef KV_SHIM_TSAN
constexpr unsigned kNoOrder = 1;  // a switch says nothing about what a GPU would order
#endif

Fiber* g_starting = nullptr;

}  // namespace

#if defined(__x86_64__)
// Saves what a call preserves, swaps the stacks, goes on there. A system call less than swapcontext
// takes, and a quarter of its time.
extern "C" void kv_shim_switch(void** save, void* load);
asm(R"(
.text
.globl kv_shim_switch
.type kv_shim_switch,@function
kv_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kv_shim_switch,.-kv_shim_switch
)");
#endif

Fiber::Fiber() {
  void* const memory = ::mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KV_CHECK(memory != MAP_FAILED);
  KV_CHECK(::mprotect(memory, kGuardBytes, PROT_NONE) == 0);
  stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
#ifdef KV_SHIM_TSAN
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef KV_SHIM_TSAN
  __tsan_destroy_fiber(tsan_fiber_);
#endif
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
  ::munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::Reset(void (*entry)()) {
  entry_ = entry;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);  // frames that were left standing
#endif
  void (*const start)() = [] {
    Fiber* const self = g_starting;
    self->Switched();
    self->entry_();
  };
#if defined(__x86_64__)
  // As if it had been switched away from at start's first instruction: six registers, then the
  // address, with the stack off by 8 from 16 as after a call.
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  if (!context_) context_ = std::make_unique<ucontext_t>();
  if (!host_context_) host_context_ = std::make_unique<ucontext_t>();
  KV_CHECK(::getcontext(context_.get()) == 0);
  context_->uc_stack.ss_sp = stack_;
  context_->uc_stack.ss_size = kStackBytes;
  context_->uc_link = nullptr;
  ::makecontext(context_.get(), start, 0);
#endif
}

void Fiber::Switched() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack_, &host_bottom_, &host_bytes_);
#endif
}

void Fiber::Run() {
  g_starting = this;
#ifdef KV_SHIM_TSAN
  host_tsan_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, kNoOrder);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&host_fake_stack_, stack_, kStackBytes);
#endif
#if defined(__x86_64__)
  kv_shim_switch(&host_pointer_, stack_pointer_);
#else
  ::swapcontext(host_context_.get(), context_.get());
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(host_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Yield() {
#ifdef KV_SHIM_TSAN
  __tsan_switch_to_fiber(host_tsan_fiber_, kNoOrder);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fake_stack_, host_bottom_, host_bytes_);
#endif
#if defined(__x86_64__)
  kv_shim_switch(&stack_pointer_, host_pointer_);
#else
  ::swapcontext(context_.get(), host_context_.get());
#endif
  Switched();
}

void Release([[maybe_unused]] void* object) {
#ifdef KV_SHIM_TSAN
  __tsan_release(object);
#endif
}

void Acquire([[maybe_unused]] void* object) {
#ifdef KV_SHIM_TSAN
  __tsan_acquire(object);
#endif
}

}  // namespace kvarve::shim
