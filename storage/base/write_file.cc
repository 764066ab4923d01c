#include "storage/base/write_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

absl::Status FileError(const std::string& path, const char* what) {
  const std::string text = absl::StrFormat("%s: %s: %s", path, what, std::strerror(errno));
  return errno == EACCES || errno == EPERM ? absl::PermissionDeniedError(text)
                                           : absl::UnavailableError(text);
}

absl::Status Write(const std::string& path, std::string_view bytes) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return FileError(path, "create");
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path, "write");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ::fsync(fd.get()) == 0 ? absl::OkStatus() : FileError(path, "fsync");
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, std::string_view bytes) {
  const std::string next = path + ".next";
  ::unlink(next.c_str());
  KV_RETURN_IF_ERROR(Write(next, bytes));
  if (::rename(next.c_str(), path.c_str()) != 0) return FileError(path, "rename");
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  UniqueFd dir(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid() || ::fsync(dir.get()) != 0) return FileError(folder, "fsync");
  return absl::OkStatus();
}

}  // namespace kvarve
