#include "client/cpp/endpoint.h"

#include <sys/un.h>

#include "absl/strings/str_format.h"

namespace kvarve::client {
namespace {

constexpr std::string_view kUnixScheme = "unix://";
constexpr std::string_view kRemoteScheme = "kvarve://";
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

absl::Status Bad(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrFormat("endpoint \"%s\": %s; write unix:///run/kvarve/kvarved.sock", text, why));
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  if (text.starts_with(kRemoteScheme)) {
    return Bad(text, "this client reaches the kvarved of its own host, over a Unix socket, only");
  }
  if (!text.starts_with(kUnixScheme)) return Bad(text, "unknown scheme");
  const std::string_view path = text.substr(kUnixScheme.size());
  if (!path.starts_with('/')) return Bad(text, "the path is not absolute");
  if (path.size() > kMaxPathBytes) {
    return Bad(text, absl::StrFormat("the path is longer than %d bytes", kMaxPathBytes));
  }
  if (path.find('\0') != std::string_view::npos) return Bad(text, "the path holds a zero byte");
  return Endpoint{std::string(path)};
}

}  // namespace kvarve::client
