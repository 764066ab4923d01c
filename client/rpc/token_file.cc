#include "client/rpc/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/unique_fd.h"

namespace kvarve::client {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

}  // namespace

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  if (path.empty()) return std::string();
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const std::string text = absl::StrFormat("token file %s: %s", path, std::strerror(errno));
    if (errno == ENOENT) return absl::NotFoundError(text);
    return absl::PermissionDeniedError(text);
  }
  struct stat file;
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError("token file " + path + ": is not a regular file");
  }
  if ((file.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "token file %s: mode %04o lets others in; chmod 600 %s", path, file.st_mode & 07777, path));
  }
  std::string token(kMaxTokenBytes + 2, '\0');
  const ssize_t got = ::read(fd.get(), token.data(), token.size());
  token.resize(got > 0 ? static_cast<size_t>(got) : 0);
  token.resize(std::min(token.size(), token.find('\n')));
  if (!token.empty() && token.back() == '\r') token.pop_back();
  const bool is_plain =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (token.empty() || token.size() > kMaxTokenBytes || !is_plain) {
    return absl::InvalidArgumentError("token file " + path +
                                      ": its first line must be a token of visible characters");
  }
  return token;
}

}  // namespace kvarve::client
