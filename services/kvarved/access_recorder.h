// Writes the access log (storage/policy/access_log.h) of a running daemon to a file. Ids are salted
// with a secret that is kept nowhere, so that a log tells neither keys nor tokens, and two logs
// have nothing in common.
//
// A file that is full ends the recording; what is asked for faster than the disk takes it is left
// out. Both are counted, and the first one of each is a warning.
//
// THREADS: any; it has a thread of its own, which hashes and writes.  BLOCKS: Record never; the
// destructor, until all is written.
#ifndef KVARVE_SERVICES_KVARVED_ACCESS_RECORDER_H_
#define KVARVE_SERVICES_KVARVED_ACCESS_RECORDER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/cache/cache.h"

namespace kvarve {

struct RecordStats {
  uint64_t accesses = 0;  // written
  uint64_t bytes = 0;     // of the file
  uint64_t dropped = 0;   // accesses left out
};

class AccessRecorder {
 public:
  static constexpr size_t kQueuedKeysMax = 1 << 18;  // 8 MiB

  // Begins a new file of mode 0600 at `path`. AlreadyExists: there is one, which is left alone.
  // Unavailable: it cannot be made.
  static absl::StatusOr<std::unique_ptr<AccessRecorder>> Create(const std::string& path,
                                                                uint64_t bytes_max);
  ~AccessRecorder();

  void Record(const CacheAccess& access);
  RecordStats Stats() const;

 private:
  struct Queued {
    uint64_t micros = 0, request = 0;
    NamespaceId ns;
    bool has_parent = false;
    BlockKey parent;
    uint32_t first_depth = 0;
    std::vector<BlockKey> keys;
  };
  AccessRecorder(std::string path, UniqueFd file, uint64_t bytes_max);
  void Run();
  void Write(const std::vector<Queued>& queue);
  uint64_t IdOf(const NamespaceId& ns, const void* bytes, size_t size) const;
  bool Append(std::string_view bytes);
  void Drop(uint64_t accesses, const char* why);

  const std::string path_;
  const UniqueFd file_;
  const uint64_t bytes_max_;
  const int64_t start_nanos_;
  std::array<uint8_t, 32> salt_;
  bool is_full_ = false;  // the thread's own
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_keys_ ABSL_GUARDED_BY(mutex_) = 0;
  RecordStats stats_ ABSL_GUARDED_BY(mutex_);
  bool has_warned_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_ACCESS_RECORDER_H_
