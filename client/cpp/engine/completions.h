// Results that wait to be fetched, and a descriptor that is readable while any does: an engine's
// step looks in without a lock held long, an idle one sleeps on the descriptor. THREADS: any.
// BLOCKS: never.
#ifndef KVARVE_CLIENT_CPP_ENGINE_COMPLETIONS_H_
#define KVARVE_CLIENT_CPP_ENGINE_COMPLETIONS_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

template <typename Result>
class Completions {
 public:
  Completions() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // Readable while Take() would return something; -1 when the process has no descriptor left: who
  // polls it then learns of results when its own time is up.
  int event_fd() const { return event_.get(); }

  void Push(Result result) {
    MutexLock lock(&mutex_);
    results_.push_back(std::move(result));
    const uint64_t one = 1;
    if (event_.valid()) KV_CHECK(::write(event_.get(), &one, sizeof(one)) == sizeof(one));
  }

  std::vector<Result> Take() {
    MutexLock lock(&mutex_);
    if (results_.empty()) return {};
    uint64_t count;
    if (event_.valid()) KV_CHECK(::read(event_.get(), &count, sizeof(count)) == sizeof(count));
    return std::exchange(results_, {});
  }

 private:
  const UniqueFd event_;
  Mutex mutex_;
  std::vector<Result> results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_ENGINE_COMPLETIONS_H_
