#include "client/identity/token.h"

#include <jwt.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/identity/base64url.h"
#include "client/identity/openssl_ptr.h"
#include "storage/base/status_macros.h"
#include "storage/base/utf8.h"

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxHeaderBytes = 1024;
constexpr size_t kMaxAudiences = 16;
constexpr size_t kMaxNameBytes = 256;
constexpr int64_t kLastSecond = 253'402'300'799;  // of the year 9999

struct FreeJwt {
  void operator()(jwt_t* jwt) const { jwt_free(jwt); }
};
struct FreeText {
  void operator()(char* text) const { std::free(text); }  // NOLINT: libjwt's memory is malloc's
};
using JwtPtr = std::unique_ptr<jwt_t, FreeJwt>;
using TextPtr = std::unique_ptr<char, FreeText>;

struct Parts {
  std::string_view header, claims, signature;
};

std::optional<Parts> Split(std::string_view token) {
  const size_t first = token.find('.');
  const size_t second = first == token.npos ? token.npos : token.find('.', first + 1);
  if (second == token.npos || token.size() > kMaxSignedTokenBytes) return std::nullopt;
  return Parts{token.substr(0, first), token.substr(first + 1, second - first - 1),
               token.substr(second + 1)};
}

struct Header {
  std::string algorithm;
  std::string key_id;
};

// What the header says before anything is verified: only to choose the key.
std::optional<Header> ParseHeader(std::string_view encoded) {
  if (encoded.size() > kMaxHeaderBytes) return std::nullopt;
  const std::optional<std::string> text = DecodeBase64Url(encoded);
  if (!text.has_value()) return std::nullopt;
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.contains("crit")) return std::nullopt;
  const auto alg = json.find("alg"), kid = json.find("kid"), typ = json.find("typ");
  if (alg == json.end() || !alg->is_string()) return std::nullopt;
  if (typ != json.end() && *typ != "JWT") return std::nullopt;
  Header header;
  header.algorithm = alg->get<std::string>();
  if (kid != json.end()) {
    if (!kid->is_string()) return std::nullopt;
    header.key_id = kid->get<std::string>();
  }
  return header;
}

jwt_alg_t LibraryAlgorithm(TokenAlgorithm algorithm) {
  return algorithm == TokenAlgorithm::kEs256 ? JWT_ALG_ES256 : JWT_ALG_RS256;
}

// The library verifies by the algorithm of the header that it read itself: that must be the key's,
// or a public key could be taken for a shared secret.
std::optional<std::string> VerifiedClaims(std::string_view token, const PublicKey& key,
                                          const std::string& key_id) {
  jwt_t* raw = nullptr;
  const std::string text(token);
  const int failed =
      jwt_decode(&raw, text.c_str(), reinterpret_cast<const unsigned char*>(key.pem.data()),
                 static_cast<int>(key.pem.size()));
  const JwtPtr jwt(raw);
  ERR_clear_error();
  if (failed != 0 || jwt == nullptr || jwt_get_alg(jwt.get()) != LibraryAlgorithm(key.algorithm)) {
    return std::nullopt;
  }
  const char* const kid = jwt_get_header(jwt.get(), "kid");
  if (kid == nullptr || key_id != kid) return std::nullopt;
  const TextPtr claims(jwt_get_grants_json(jwt.get(), nullptr));
  if (claims == nullptr) return std::nullopt;
  return std::string(claims.get());
}

absl::Status Wrong(const char* name, const char* why) {
  return absl::InvalidArgumentError(absl::StrFormat("the claim \"%s\" %s", name, why));
}

absl::StatusOr<std::string> Text(const Json& json, const char* name, size_t max_bytes,
                                 bool required) {
  const auto found = json.find(name);
  if (found == json.end()) {
    if (!required) return std::string();
    return Wrong(name, "is missing");
  }
  if (!found->is_string()) return Wrong(name, "is not a text");
  const auto& text = found->get_ref<const std::string&>();
  if (text.empty() || text.size() > max_bytes) return Wrong(name, "is empty or too long");
  return text;
}

absl::StatusOr<int64_t> Seconds(const Json& json, const char* name, bool required) {
  const auto found = json.find(name);
  if (found == json.end()) {
    if (!required) return 0;
    return Wrong(name, "is missing");
  }
  if (!found->is_number_integer()) return Wrong(name, "is not a whole number of seconds");
  // A number above what int64 holds comes as unsigned, and would wrap.
  if (found->is_number_unsigned() ? found->get<uint64_t>() > static_cast<uint64_t>(kLastSecond)
                                  : found->get<int64_t>() < 0) {
    return Wrong(name, "is no time");
  }
  return found->get<int64_t>();
}

absl::StatusOr<std::vector<std::string>> Texts(const Json& json, const char* name, size_t max,
                                               bool one_is_enough) {
  const auto found = json.find(name);
  if (found == json.end()) return Wrong(name, "is missing");
  if (one_is_enough && found->is_string()) return std::vector{found->get<std::string>()};
  if (!found->is_array() || found->size() > max) return Wrong(name, "is no list, or too long");
  std::vector<std::string> texts;
  for (const Json& item : *found) {
    if (!item.is_string()) return Wrong(name, "holds something that is not a text");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

Json ClaimsJson(const TokenClaims& claims) {
  Json json;
  if (!claims.issuer.empty()) json["iss"] = claims.issuer;
  if (!claims.subject.empty()) json["sub"] = claims.subject;
  if (claims.audience.size() == 1) {
    json["aud"] = claims.audience.front();
  } else {
    json["aud"] = claims.audience;
  }
  json["jti"] = claims.id;
  json["tenant"] = claims.tenant;
  json["verbs"] = claims.verbs.Names();
  if (claims.issued_at != 0) json["iat"] = claims.issued_at;
  if (claims.not_before != 0) json["nbf"] = claims.not_before;
  json["exp"] = claims.expires_at;
  return json;
}

}  // namespace

absl::StatusOr<TokenClaims> ParseClaims(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("its claims are no JSON object");
  TokenClaims claims;
  KV_ASSIGN_OR_RETURN(claims.id, Text(json, "jti", kMaxTokenIdBytes, true));
  // It stands in a line of the revocation list, and in logs.
  if (!std::all_of(claims.id.begin(), claims.id.end(),
                   [](char c) { return c > ' ' && c < 0x7f; })) {
    return Wrong("jti", "has other characters than visible ASCII");
  }
  KV_ASSIGN_OR_RETURN(claims.tenant, Text(json, "tenant", kMaxTenantNameBytes, true));
  if (!CheckTenantName(claims.tenant).ok()) return Wrong("tenant", "is no tenant's name");
  KV_ASSIGN_OR_RETURN(const std::vector<std::string> verbs, Texts(json, "verbs", kVerbs, false));
  const absl::StatusOr<VerbSet> set = VerbSet::Parse(verbs);
  if (!set.ok())
    return absl::InvalidArgumentError(
        absl::StrFormat("the claim \"verbs\": %s", set.status().message()));
  claims.verbs = *set;
  KV_ASSIGN_OR_RETURN(claims.audience, Texts(json, "aud", kMaxAudiences, true));
  KV_ASSIGN_OR_RETURN(claims.issuer, Text(json, "iss", kMaxNameBytes, false));
  KV_ASSIGN_OR_RETURN(claims.subject, Text(json, "sub", kMaxNameBytes, false));
  KV_ASSIGN_OR_RETURN(claims.issued_at, Seconds(json, "iat", false));
  KV_ASSIGN_OR_RETURN(claims.not_before, Seconds(json, "nbf", false));
  KV_ASSIGN_OR_RETURN(claims.expires_at, Seconds(json, "exp", true));
  return claims;
}

absl::StatusOr<TokenClaims> VerifyToken(std::string_view token, const KeySet& keys,
                                        const TokenRules& rules, int64_t now_seconds,
                                        TokenFault* fault) {
  const auto refused = [fault](TokenFault what, std::string_view why) {
    *fault = what;
    return absl::UnauthenticatedError(absl::StrFormat("token refused: %s", why));
  };
  *fault = TokenFault::kNone;
  const std::optional<Parts> parts = Split(token);
  std::optional<Header> header;
  if (parts.has_value()) header = ParseHeader(parts->header);
  if (!header.has_value() || !DecodeBase64Url(parts->claims).has_value() ||
      !DecodeBase64Url(parts->signature).has_value()) {
    return refused(TokenFault::kMalformed, "it is no JSON Web Token");
  }
  if (header->algorithm != AlgorithmName(TokenAlgorithm::kEs256) &&
      header->algorithm != AlgorithmName(TokenAlgorithm::kRs256)) {
    return refused(TokenFault::kAlgorithm, "only ES256 and RS256 are taken");
  }
  const auto key = keys.find(header->key_id);
  if (key == keys.end()) return refused(TokenFault::kUnknownKey, "no such key");
  if (header->algorithm != AlgorithmName(key->second.algorithm)) {
    return refused(TokenFault::kAlgorithm, "its key is for another algorithm");
  }
  const std::optional<std::string> json = VerifiedClaims(token, key->second, header->key_id);
  if (!json.has_value()) return refused(TokenFault::kSignature, "its signature is wrong");
  absl::StatusOr<TokenClaims> claims = ParseClaims(*json);
  if (!claims.ok()) {
    return refused(TokenFault::kClaims, std::string(claims.status().message()));
  }
  if (std::find(claims->audience.begin(), claims->audience.end(), rules.audience) ==
      claims->audience.end()) {
    return refused(TokenFault::kAudience, "it is for another service (its \"aud\")");
  }
  if (!rules.issuer.empty() && claims->issuer != rules.issuer) {
    return refused(TokenFault::kAudience, "it is of another issuer (its \"iss\")");
  }
  if (now_seconds >= claims->expires_at) {
    return refused(TokenFault::kExpired, "it has expired; get a new one");
  }
  if (now_seconds + kTokenClockSkewSeconds < claims->not_before) {
    return refused(TokenFault::kNotYetValid, "it is not valid yet");
  }
  return claims;
}

absl::StatusOr<std::string> SignToken(const TokenClaims& claims, const std::string& key_id,
                                      const std::string& private_pem) {
  if (key_id.empty() || key_id.size() > kMaxKeyIdBytes || !IsUtf8(key_id)) {
    return absl::InvalidArgumentError("a key's id has 1 to 128 bytes of text");
  }
  KV_ASSIGN_OR_RETURN(const PublicKey key, PublicKeyOf(private_pem));
  const std::string json = ClaimsJson(claims).dump(-1, ' ', false, Json::error_handler_t::replace);
  KV_RETURN_IF_ERROR(ParseClaims(json).status());
  jwt_t* raw = nullptr;
  if (jwt_new(&raw) != 0) return absl::InternalError("out of memory");
  const JwtPtr jwt(raw);
  const bool set = jwt_add_grants_json(jwt.get(), json.c_str()) == 0 &&
                   jwt_add_header(jwt.get(), "kid", key_id.c_str()) == 0 &&
                   jwt_set_alg(jwt.get(), LibraryAlgorithm(key.algorithm),
                               reinterpret_cast<const unsigned char*>(private_pem.data()),
                               static_cast<int>(private_pem.size())) == 0;
  const TextPtr token(set ? jwt_encode_str(jwt.get()) : nullptr);
  ERR_clear_error();
  if (token == nullptr) return absl::InternalError("libjwt cannot sign with this key");
  if (std::string_view(token.get()).size() > kMaxSignedTokenBytes) {
    return absl::InvalidArgumentError("the token would be longer than 4096 bytes");
  }
  return std::string(token.get());
}

absl::StatusOr<UnverifiedToken> ReadUnverified(std::string_view token) {
  const std::optional<Parts> parts = Split(token);
  if (parts.has_value()) {
    const std::optional<std::string> header = DecodeBase64Url(parts->header);
    const std::optional<std::string> claims = DecodeBase64Url(parts->claims);
    if (header.has_value() && claims.has_value()) return UnverifiedToken{*header, *claims};
  }
  return absl::InvalidArgumentError("is no JSON Web Token: three parts of base64url, two dots");
}

}  // namespace kvarve
