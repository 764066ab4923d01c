// base64url without padding (RFC 7515), strictly: every text has one decoding and every bytes one
// text. THREADS: any.
#ifndef KVARVE_CLIENT_IDENTITY_BASE64URL_H_
#define KVARVE_CLIENT_IDENTITY_BASE64URL_H_

#include <optional>
#include <string>
#include <string_view>

namespace kvarve {

// None: another character, padding, a length that no bytes have, or bits left over that are not 0.
std::optional<std::string> DecodeBase64Url(std::string_view text);
std::string EncodeBase64Url(std::string_view bytes);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_BASE64URL_H_
