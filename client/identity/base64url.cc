#include "client/identity/base64url.h"

#include "absl/strings/escaping.h"
#include "storage/base/abseil.h"

namespace kvarve {

std::string EncodeBase64Url(std::string_view bytes) {
  return absl::WebSafeBase64Escape(ToAbsl(bytes));
}

// Abseil also takes padding, spaces and bits left over: only what encodes back is taken.
std::optional<std::string> DecodeBase64Url(std::string_view text) {
  std::string bytes;
  if (!absl::WebSafeBase64Unescape(ToAbsl(text), &bytes) || EncodeBase64Url(bytes) != text) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace kvarve
