#include "client/identity/watched_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/read_file.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

absl::Status CheckTrusted(const std::string& path, const struct stat& file, bool secret) {
  if (!S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(path + ": is not a regular file");
  }
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s: belongs to uid %d; it must belong to uid %d or root", path, file.st_uid, ::geteuid()));
  }
  // Kubernetes mounts secrets with the group's right to read; a group that may write is a fault.
  const mode_t forbidden = secret ? 037 : 022;
  if ((file.st_mode & forbidden) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat("%s: mode %04o lets others in; chmod %s",
                                                       path, file.st_mode & 07777,
                                                       (secret ? "600 " : "644 ") + path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t max_bytes,
                                            bool secret) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const std::string text = absl::StrFormat("%s: %s", path, std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
  }
  struct stat file;
  if (::fstat(fd.get(), &file) != 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  KV_RETURN_IF_ERROR(CheckTrusted(path, file, secret));
  std::string text;
  if (!ReadToEnd(fd.get(), max_bytes, &text)) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: is longer than %d bytes", path, max_bytes));
  }
  return text;
}

WatchedFile::Stamp WatchedFile::Now() const {
  struct stat file;
  if (::stat(path_.c_str(), &file) != 0) return {};
  return {file.st_dev, file.st_ino, static_cast<uint64_t>(file.st_size),
          file.st_ctim.tv_sec * int64_t{1'000'000'000} + file.st_ctim.tv_nsec};
}

bool WatchedFile::Changed() const { return Now() != read_; }

absl::StatusOr<std::string> WatchedFile::Read() {
  // Taken before: a change while it is read shows as one afterwards.
  read_ = Now();
  return ReadTrustedFile(path_, max_bytes_, secret_);
}

}  // namespace kvarve
