// For ThreadSanitizer, which cannot see into the packaged gRPC: tells it what gRPC promises, that
// what was done before an operation of a call was started is done when its callback runs, whichever
// thread that is on; that a call's OnDone comes after its other callbacks; and that a server that
// is gone has no callback left. Nothing else is ordered: the operations of two calls are not, nor
// is a call and another thread of ours. OnDone runs in the thread of the callback before it here,
// not in gRPC's executor.
//
// It stands before grpc_call_start_batch, grpc_server_destroy and ServerCallbackCall's
// ScheduleOnDone, which are looked up by name, and before the callbacks of what is started. Linked
// into tests, and compiled without the sanitizer, so that its own lock orders nothing.
// services/rpc/planted_race_testing.cc shows that races are still found.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <link.h>
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace {

using Functor = grpc_completion_queue_functor;

// Callbacks that are to come. Plain arrays: code of std:: might be another file's, with the
// sanitizer.
struct Started {
  Functor* functor;
  grpc_call* call;
  void (*run)(Functor*, int);
};
constexpr size_t kMaxStarted = 1 << 16;
Started started[kMaxStarted];
std::atomic_flag is_locked = ATOMIC_FLAG_INIT;
char ended;  // every callback that was run: to the last of a call, and the end of a server

size_t PlaceOf(const Functor* functor) {
  return (reinterpret_cast<uintptr_t>(functor) >> 4) * 0x9E3779B97F4A7C15u % kMaxStarted;
}
void Lock() {
  while (is_locked.test_and_set(std::memory_order_acquire)) ::sched_yield();
}
void Unlock() { is_locked.clear(std::memory_order_release); }

// The table is open; of one functor there is one entry at a time.
Started* Find(const Functor* functor) {
  for (size_t i = 0; i < kMaxStarted; ++i) {
    Started& at = started[(PlaceOf(functor) + i) % kMaxStarted];
    if (at.functor == functor) return &at;
  }
  std::fprintf(stderr, "grpc_order_testing: too many calls\n");
  std::abort();
}

Started Take(Functor* functor) {
  Lock();
  Started* const at = Find(functor);
  const Started taken = *at;
  at->functor = reinterpret_cast<Functor*>(1);  // nobody's, but the search goes on behind it
  Unlock();
  functor->functor_run = taken.run;
  return taken;
}

void Run(Functor* functor, int ok) {
  const Started taken = Take(functor);
  __tsan_acquire(taken.call);
  __tsan_release(&ended);  // the call's last one may come while this runs on
  taken.run(functor, ok);
  __tsan_release(&ended);
}

void Put(Functor* functor, grpc_call* call) {
  Lock();
  Started* place = nullptr;
  for (size_t i = 0; i < kMaxStarted && place == nullptr; ++i) {
    Started& at = started[(PlaceOf(functor) + i) % kMaxStarted];
    if (reinterpret_cast<uintptr_t>(at.functor) <= 1) place = &at;
  }
  if (place == nullptr) Find(nullptr);  // ends it
  *place = {functor, call, functor->functor_run};
  functor->functor_run = &Run;
  Unlock();
}

int IsCode(dl_phdr_info* info, size_t, void* address) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) && at >= begin &&
        at < begin + part.p_memsz) {
      return 1;
    }
  }
  return 0;
}

// A tag is a functor or an object that begins with its table of virtual functions, which is data.
bool IsFunctor(void* tag) {
  return tag != nullptr && ::dl_iterate_phdr(&IsCode, *static_cast<void**>(tag)) == 1;
}

template <typename Function>
Function* Real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count,
                                                 void* tag, void* reserved) {
  static auto* const real = Real(&grpc_call_start_batch, "grpc_call_start_batch");
  const bool is_functor = IsFunctor(tag);
  if (is_functor) Put(static_cast<Functor*>(tag), call);
  __tsan_release(call);
  const grpc_call_error error = real(call, ops, count, tag, reserved);
  if (error != GRPC_CALL_OK && is_functor) Take(static_cast<Functor*>(tag));
  return error;
}

// grpc::internal::ServerCallbackCall::ScheduleOnDone(bool inline_ondone)
#define KV_SCHEDULE_ON_DONE "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb"
void ScheduleOnDone(void* call, bool is_inline) asm(KV_SCHEDULE_ON_DONE);
void ScheduleOnDone(void* call, bool) {
  static auto* const real = Real(&ScheduleOnDone, KV_SCHEDULE_ON_DONE);
  __tsan_acquire(&ended);
  real(call, true);
}

extern "C" void grpc_server_destroy(grpc_server* server) {
  static auto* const real = Real(&grpc_server_destroy, "grpc_server_destroy");
  real(server);
  __tsan_acquire(&ended);
}
