// Starts a thread with a name, a stack of its own size, and all signals blocked (they belong to the
// main thread). THREADS: any.
#ifndef KVARVE_SERVICES_LOCAL_THREAD_H_
#define KVARVE_SERVICES_LOCAL_THREAD_H_

#include <pthread.h>

#include <cstddef>
#include <functional>

#include "absl/status/statusor.h"

namespace kvarve {

// A session's: its buffers are on the heap; sanitizers' frames are larger.
inline constexpr size_t kThreadStackBytes = 512 * 1024;

// The caller joins it. ResourceExhausted: the system gives no thread. `name`: at most 15 bytes.
absl::StatusOr<pthread_t> StartThread(const char* name, std::function<void()> run);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_THREAD_H_
