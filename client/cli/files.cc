#include "client/cli/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_format.h"
#include "client/identity/certificate.h"
#include "storage/base/read_file.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace kvarve::cli {
namespace {

absl::Status FileError(const std::string& path) {
  const std::string text = absl::StrFormat("%s: %s", path, std::strerror(errno));
  if (errno == ENOENT) return absl::NotFoundError(text);
  if (errno == EEXIST) {
    return absl::AlreadyExistsError(path + ": exists; move it away, or name another file");
  }
  return absl::FailedPreconditionError(text);
}

absl::Status Write(const std::string& path, std::string_view text, mode_t mode) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd.valid()) return FileError(path);
  if (::fchmod(fd.get(), mode) != 0) return FileError(path);  // whatever the umask
  while (!text.empty()) {
    const ssize_t n = ::write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return ::fsync(fd.get()) == 0 ? absl::OkStatus() : FileError(path);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(path);
  std::string text;
  if (!ReadToEnd(fd.get(), max_bytes, &text)) return FileError(path);
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: is longer than %d bytes", path, max_bytes));
  }
  return text;
}

absl::Status WriteNewFile(const std::string& path, std::string_view text, mode_t mode) {
  return Write(path, text, mode);
}

absl::Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode) {
  const std::string next = path + ".next";
  ::unlink(next.c_str());
  KV_RETURN_IF_ERROR(Write(next, text, mode));
  return ::rename(next.c_str(), path.c_str()) == 0 ? absl::OkStatus() : FileError(path);
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrFormat("%s: %s", path, status.message()));
}

absl::StatusOr<std::string> FingerprintOf(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const std::string pem, ReadFile(path, kMaxCertificateBytes));
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(pem);
  if (!facts.ok()) return InFile(path, facts.status());
  return facts->fingerprint;
}

std::string Plain(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

}  // namespace kvarve::cli
