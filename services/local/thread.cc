#include "services/local/thread.h"

#include <signal.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

void* Run(void* argument) {
  std::unique_ptr<std::function<void()>> run(static_cast<std::function<void()>*>(argument));
  (*run)();
  return nullptr;
}

}  // namespace

absl::StatusOr<pthread_t> StartThread(const char* name, std::function<void()> run) {
  auto argument = std::make_unique<std::function<void()>>(std::move(run));
  pthread_attr_t attributes;
  KV_CHECK(::pthread_attr_init(&attributes) == 0);
  KV_CHECK(::pthread_attr_setstacksize(&attributes, kThreadStackBytes) == 0);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = ::pthread_create(&thread, &attributes, Run, argument.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (error != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no thread: ", std::strerror(error)));
  }
  static_cast<void>(argument.release());  // the thread's now
  ::pthread_setname_np(thread, name);
  return thread;
}

}  // namespace kvarve
