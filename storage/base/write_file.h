// A small file that is replaced as a whole: whoever reads it, after a crash too, finds the old one
// or the new one. THREADS: any, one writer a path.  BLOCKS: until it is durable.
#ifndef KVARVE_STORAGE_BASE_WRITE_FILE_H_
#define KVARVE_STORAGE_BASE_WRITE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace kvarve {

// Only its owner may read it. Unavailable: names the file and the system call that failed;
// PermissionDenied where that was the reason.
absl::Status ReplaceFile(const std::string& path, std::string_view bytes);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_WRITE_FILE_H_
