// A std::mutex that carries Abseil's thread annotations. Not absl::Mutex: the packaged Abseil is
// not instrumented, and ThreadSanitizer then reports races that are none.
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_MUTEX_H_
#define KVARVE_STORAGE_BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace kvarve {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

  // BasicLockable, so that std::condition_variable_any can wait on it.
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

using CondVar = std::condition_variable_any;

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_MUTEX_H_
