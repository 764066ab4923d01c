// A small file that is read again when it changes. THREADS: externally synchronised.
// BLOCKS: on the file.
#ifndef KVARVE_CLIENT_IDENTITY_WATCHED_FILE_H_
#define KVARVE_CLIENT_IDENTITY_WATCHED_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace kvarve {

// Everything of a file, at most `max_bytes`. NotFound; InvalidArgument: longer, or no regular file;
// PermissionDenied: others than its owner may write it (`secret`: or read it), or the owner is
// neither this user nor root; Unavailable: the system's error. Every message names the file.
absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t max_bytes, bool secret);

class WatchedFile {
 public:
  WatchedFile(std::string path, size_t max_bytes, bool secret = false)
      : path_(std::move(path)), max_bytes_(max_bytes), secret_(secret) {}

  const std::string& path() const { return path_; }
  // Whether the file is another than at the last Read, by inode, size and time of change.
  bool Changed() const;
  absl::StatusOr<std::string> Read();
  // What the reader made of it; kept for the reader.
  bool failed() const { return failed_; }
  void set_failed(bool failed) { failed_ = failed; }

 private:
  struct Stamp {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t changed_nanos = 0;
    bool operator==(const Stamp&) const = default;
  };
  Stamp Now() const;  // of the file that the path leads to; all 0: none

  const std::string path_;
  const size_t max_bytes_;
  const bool secret_;
  Stamp read_;
  bool failed_ = false;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_WATCHED_FILE_H_
