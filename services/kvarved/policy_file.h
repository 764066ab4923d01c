// What the eviction policy has learned, kept in a file from one start to the next: read at the
// start, written every few minutes and at the end. It may be lost: the daemon learns again.
//
// THREADS: one owner; it has a thread of its own.  BLOCKS: the constructor and the destructor, on
// the file.
#ifndef KVARVE_SERVICES_KVARVED_POLICY_FILE_H_
#define KVARVE_SERVICES_KVARVED_POLICY_FILE_H_

#include <cstdint>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "storage/base/mutex.h"
#include "storage/cache/cache.h"

namespace kvarve {

inline constexpr int64_t kPolicySaveNanos = 300'000'000'000;

class PolicyFile {
 public:
  // A file that is damaged, or another policy's, is a warning in the log, and so is one that cannot
  // be read. `cache` outlives this.
  PolicyFile(std::string path, Cache* cache, int64_t interval_nanos = kPolicySaveNanos);
  ~PolicyFile();

  // A policy that learns nothing writes nothing.
  absl::Status Save();

 private:
  void Load();
  void SaveOrWarn();
  void Run();

  const std::string path_;
  Cache* const cache_;
  const int64_t interval_nanos_;
  Mutex mutex_;
  CondVar stops_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_POLICY_FILE_H_
