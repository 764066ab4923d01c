#include "client/cpp/endpoint.h"

#include <sys/un.h>

#include <charconv>

#include "absl/strings/str_format.h"

namespace kvarve::client {
namespace {

constexpr std::string_view kUnixScheme = "unix://";
constexpr std::string_view kRemoteScheme = "kvarve://", kTlsScheme = "kvarves://";
constexpr size_t kMaxHostBytes = 253;
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

absl::Status Bad(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "endpoint \"%s\": %s; write unix:///run/kvarve/kvarved.sock or kvarves://host:7410", text,
      why));
}

bool IsPort(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

absl::StatusOr<Endpoint> ParseRemote(std::string_view text, bool tls) {
  const std::string_view address = text.substr((tls ? kTlsScheme : kRemoteScheme).size());
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || !IsPort(address.substr(colon + 1))) {
    return Bad(text, "the port is missing or no number from 1 to 65535");
  }
  const std::string_view host = address.substr(0, colon);
  const bool is_bracketed = host.starts_with('[') && host.ends_with(']');
  const std::string_view inside = is_bracketed ? host.substr(1, host.size() - 2) : host;
  constexpr std::string_view kNameBytes =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  constexpr std::string_view kAddressBytes = "abcdefABCDEF0123456789:.%";
  if (inside.empty() || inside.size() > kMaxHostBytes ||
      inside.find_first_not_of(is_bracketed ? kAddressBytes : kNameBytes) !=
          std::string_view::npos) {
    return Bad(text, "the host is no name and no address (IPv6 in brackets)");
  }
  return Endpoint{"", std::string(address), tls};
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  if (text.starts_with(kRemoteScheme)) return ParseRemote(text, /*tls=*/false);
  if (text.starts_with(kTlsScheme)) return ParseRemote(text, /*tls=*/true);
  if (!text.starts_with(kUnixScheme)) return Bad(text, "unknown scheme");
  const std::string_view path = text.substr(kUnixScheme.size());
  if (!path.starts_with('/')) return Bad(text, "the path is not absolute");
  if (path.size() > kMaxPathBytes) {
    return Bad(text, absl::StrFormat("the path is longer than %d bytes", kMaxPathBytes));
  }
  if (path.find('\0') != std::string_view::npos) return Bad(text, "the path holds a zero byte");
  return Endpoint{std::string(path), ""};
}

}  // namespace kvarve::client
