#include "services/auth/bearer_token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

constexpr std::string_view kScheme = "Bearer ";

std::array<uint8_t, 32> Digest(std::string_view text) {
  std::array<uint8_t, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

absl::StatusOr<UniqueFd> OpenPrivate(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const std::string text = absl::StrFormat("token file %s: %s", path, std::strerror(errno));
    if (errno == ENOENT) {
      return absl::NotFoundError(text + "; make one: (umask 077; openssl rand -hex 32 > " + path +
                                 ")");
    }
    return absl::FailedPreconditionError(text);
  }
  struct stat file;
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode)) {
    return absl::FailedPreconditionError("token file " + path + ": is not a regular file");
  }
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("token file %s: belongs to uid %d; it must belong to uid %d or root", path,
                        file.st_uid, ::geteuid()));
  }
  if ((file.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "token file %s: mode %04o lets others in; chmod 600 %s", path, file.st_mode & 07777, path));
  }
  return fd;
}

}  // namespace

absl::StatusOr<BearerToken> BearerToken::FromFile(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const UniqueFd fd, OpenPrivate(path));
  std::string token(kMaxTokenBytes + 2,
                    '\0');  // room for the line's end, and for one byte too many
  const ssize_t got = ::read(fd.get(), token.data(), token.size());
  if (got < 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("token file %s: %s", path, std::strerror(errno)));
  }
  token.resize(static_cast<size_t>(got));
  token.resize(std::min(token.size(), token.find('\n')));
  if (!token.empty() && token.back() == '\r') token.pop_back();
  const bool is_plain =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes || !is_plain) {
    OPENSSL_cleanse(token.data(), token.size());
    return absl::InvalidArgumentError(absl::StrFormat(
        "token file %s: its first line must be %d to %d visible ASCII characters without spaces",
        path, kMinTokenBytes, kMaxTokenBytes));
  }
  BearerToken result;
  result.digest_ = Digest(token);
  OPENSSL_cleanse(token.data(), token.size());
  return result;
}

bool BearerToken::Matches(std::string_view authorization) const {
  // The scheme's name is case-insensitive (RFC 9110).
  if (authorization.size() <= kScheme.size() ||
      authorization.size() > kScheme.size() + kMaxTokenBytes ||
      ::strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return false;
  }
  const std::array<uint8_t, 32> digest = Digest(authorization.substr(kScheme.size()));
  return CRYPTO_memcmp(digest.data(), digest_.data(), digest.size()) == 0;
}

}  // namespace kvarve
