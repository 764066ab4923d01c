// The public keys that tokens may be signed with: a JSON Web Key Set (RFC 7517), as identity
// providers publish it. EC keys on P-256 sign ES256, RSA keys of 2048 to 8192 bits sign RS256;
// nothing else is taken. Values: THREADS: any.
#ifndef KVARVE_CLIENT_IDENTITY_KEY_SET_H_
#define KVARVE_CLIENT_IDENTITY_KEY_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr size_t kMaxKeySetBytes = 256 << 10;
inline constexpr size_t kMaxKeys = 64;
inline constexpr size_t kMaxKeyIdBytes = 128;

enum class TokenAlgorithm : uint8_t { kEs256, kRs256 };
std::string_view AlgorithmName(TokenAlgorithm algorithm);

struct PublicKey {
  TokenAlgorithm algorithm = TokenAlgorithm::kEs256;
  std::string pem;
  friend bool operator==(const PublicKey&, const PublicKey&) = default;
};

using KeySet = std::map<std::string, PublicKey, std::less<>>;  // by key id

// InvalidArgument: not a key set, a key without id or with an id twice, a private or a symmetric
// key in it, a weak key, an unknown kind of key. One bad key refuses the whole set: half a set
// would be taken for all of it.
absl::StatusOr<KeySet> ParseKeySet(std::string_view json);
std::string KeySetJson(const KeySet& keys);

// The public half of a private key in PEM, with its algorithm. InvalidArgument: no such key, or one
// that a set refuses.
absl::StatusOr<PublicKey> PublicKeyOf(const std::string& private_pem);
// A new P-256 key, PKCS 8 in PEM.
absl::StatusOr<std::string> NewPrivateKey();

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_KEY_SET_H_
