// Files of credentials, as commands read and write them. THREADS: one.  BLOCKS: on the files.
#ifndef KVARVE_CLIENT_CLI_FILES_H_
#define KVARVE_CLIENT_CLI_FILES_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve::cli {

inline constexpr size_t kMaxPemBytes = 64 << 10;

// NotFound, InvalidArgument (longer than `max_bytes`), Unavailable; every message names the file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);
// AlreadyExists: nothing that somebody may still need is written over.
absl::Status WriteNewFile(const std::string& path, std::string_view text, mode_t mode);
// All or nothing: a new file takes the old one's place.
absl::Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode);
absl::Status InFile(const std::string& path, const absl::Status& status);
// SHA-256 of the first certificate of a PEM file.
absl::StatusOr<std::string> FingerprintOf(const std::string& path);
// `text` without characters that move a terminal's cursor.
std::string Plain(std::string text);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_FILES_H_
