// Bearer tokens: JSON Web Tokens (RFC 7519), signed ES256 or RS256 and nothing else. The only user
// of libjwt; signatures are its matter, what a token must say is this file's (docs/security.md).
// THREADS: any; no state.
#ifndef KVARVE_CLIENT_IDENTITY_TOKEN_H_
#define KVARVE_CLIENT_IDENTITY_TOKEN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/identity/identity.h"
#include "client/identity/key_set.h"

namespace kvarve {

inline constexpr size_t kMaxSignedTokenBytes = 4096;
inline constexpr size_t kMaxTokenIdBytes = 128;
// A token that is to begin within this long is taken: clocks differ. Its end is its end.
inline constexpr int64_t kTokenClockSkewSeconds = 30;

struct TokenClaims {
  std::string id;                     // "jti", what a revocation names; required
  std::string tenant;                 // required
  VerbSet verbs;                      // a list of names; required
  std::vector<std::string> audience;  // one text or a list; required
  std::string issuer;                 // optional, and so are the next two
  std::string subject;
  int64_t issued_at = 0;
  int64_t not_before = 0;  // seconds since 1970; optional
  int64_t expires_at = 0;  // required
};

// Why a token is refused; also a label of metrics.
enum class TokenFault : uint8_t {
  kNone = 0,
  kMalformed,  // no token at all
  kAlgorithm,  // neither ES256 nor RS256, or not its key's
  kUnknownKey,
  kSignature,
  kClaims,  // signed, but without what it must say
  kExpired,
  kNotYetValid,
  kAudience,  // for another service, or of another issuer
};

struct TokenRules {
  std::string audience = "kvarve";
  std::string issuer;  // empty: any whose key is in the set
};

// The claims of a token that is signed by a key of `keys` and valid at `now_seconds`.
// Unauthenticated otherwise, with `*fault`; the message names nothing that an unsigned token said.
absl::StatusOr<TokenClaims> VerifyToken(std::string_view token, const KeySet& keys,
                                        const TokenRules& rules, int64_t now_seconds,
                                        TokenFault* fault);

// InvalidArgument: claims that VerifyToken would refuse (but for time), or no such key.
absl::StatusOr<std::string> SignToken(const TokenClaims& claims, const std::string& key_id,
                                      const std::string& private_pem);

// What a token says, believed by nobody: for people to look at. InvalidArgument: no token.
struct UnverifiedToken {
  std::string header_json;
  std::string claims_json;
};
absl::StatusOr<UnverifiedToken> ReadUnverified(std::string_view token);
// InvalidArgument: a claim that is missing or of the wrong kind.
absl::StatusOr<TokenClaims> ParseClaims(std::string_view json);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_TOKEN_H_
