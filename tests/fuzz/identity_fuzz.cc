// Goal: what strangers send or write about who they are (tokens, their claims, key sets, revocation
// lists, certificate names, peers' addresses) is refused or read, never half read: what is read and
// written again reads the same, and no token is good without a signature. Under a sanitizer.
#include "client/identity/base64url.h"
#include "client/identity/certificate.h"
#include "client/identity/identity.h"
#include "client/identity/key_set.h"
#include "client/identity/revocations.h"
#include "client/identity/token.h"
#include "services/auth/failure_limiter.h"
#include "storage/base/status_macros.h"
#include "tests/fuzz/fuzz.h"

namespace kvarve {
namespace {

struct Signer {
  std::string pem = *NewPrivateKey();
  KeySet keys = {{"k", *PublicKeyOf(pem)}};
  TokenClaims claims;
  std::string token;
  Signer() {
    claims.id = "1";
    claims.tenant = "t";
    claims.verbs = VerbSet::All();
    claims.audience = {"kvarve"};
    claims.expires_at = 200'000'000'000;
    token = *SignToken(claims, "k", pem);
  }
};

const Signer& TheSigner() {
  static const Signer signer;
  return signer;
}

void TryToken(std::string_view text) {
  const Signer& signer = TheSigner();
  TokenFault fault = TokenFault::kNone;
  const auto claims = VerifyToken(text, signer.keys, {}, 1'000, &fault);
  KV_CHECK(claims.ok() == (fault == TokenFault::kNone));
  KV_CHECK(!claims.ok() || text == signer.token);
  ReadUnverified(text).status().IgnoreError();
}

void TryClaims(std::string_view text) {
  const auto claims = ParseClaims(text);
  if (!claims.ok()) return;
  KV_CHECK(CheckTenantName(claims->tenant).ok() && !claims->verbs.empty());
  KV_CHECK(claims->expires_at >= 0 && claims->not_before >= 0);
}

void TryRevocations(std::string_view text) {
  const auto list = ParseRevocations(text);
  if (list.ok()) KV_CHECK(*ParseRevocations(RevocationsText(*list, 0)) == *list);
}

void TryUri(std::string_view text) {
  const std::string uris[] = {std::string(text)};
  const auto identity = IdentityOfUris(uris, "");
  if (identity.ok()) KV_CHECK(UriOfIdentity(*identity).size() == uris[0].size());
  IdentityOfUris(uris, "corp.example").status().IgnoreError();
}

}  // namespace
}  // namespace kvarve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      kvarve::TryToken(text);
      break;
    case 1:
      kvarve::TryClaims(text);
      break;
    case 2: {
      const auto keys = kvarve::ParseKeySet(text);
      if (keys.ok()) KV_CHECK(*kvarve::ParseKeySet(kvarve::KeySetJson(*keys)) == *keys);
      break;
    }
    case 3:
      kvarve::TryRevocations(text);
      break;
    case 4:
      kvarve::TryUri(text);
      break;
    case 5:
      kvarve::ReadCertificate(text).status().IgnoreError();
      break;
    case 6: {
      const auto bytes = kvarve::DecodeBase64Url(text);
      if (bytes.has_value()) KV_CHECK(kvarve::EncodeBase64Url(*bytes) == text);
      KV_CHECK(kvarve::DecodeBase64Url(kvarve::EncodeBase64Url(text)) == text);
      break;
    }
    default:
      KV_CHECK(kvarve::AddressOfPeer(text).size() <= 160);
  }
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  const Signer& signer = TheSigner();
  const Issued authority = *NewAuthority("a", 0, 2'000'000'000);
  return {std::string("\0", 1) + signer.token,
          "\x01" + ReadUnverified(signer.token)->claims_json,
          "\x02" + KeySetJson(signer.keys),
          std::string("\x03") + "# r\ntoken a 5\ncertificate " + std::string(64, 'a') + "\n",
          std::string("\x04") + "kvarve://client/a%20b",
          std::string("\x04") + "spiffe://corp.example/kvarve/client/a",
          "\x05" + authority.certificate,
          std::string("\x06") + "Zm9vYg",
          std::string("\x07") + "ipv6:[fe80::1%eth0]:50"};
}

}  // namespace kvarve::fuzz
