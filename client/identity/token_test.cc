// Tokens that another library made and forged, and our own.
#include "client/identity/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "client/identity/base64url.h"

namespace kvarve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json Golden() {
  std::ifstream file("client/identity/testdata/tokens.json");
  return nlohmann::json::parse(file);
}

TokenFault FaultNamed(const std::string& name) {
  static const std::map<std::string, TokenFault> faults = {
      {"none", TokenFault::kNone},           {"malformed", TokenFault::kMalformed},
      {"algorithm", TokenFault::kAlgorithm}, {"unknown_key", TokenFault::kUnknownKey},
      {"signature", TokenFault::kSignature}, {"claims", TokenFault::kClaims},
      {"expired", TokenFault::kExpired},     {"not_yet_valid", TokenFault::kNotYetValid},
      {"audience", TokenFault::kAudience}};
  return faults.at(name);
}

TokenClaims SomeClaims() {
  TokenClaims claims;
  claims.id = "id-1";
  claims.tenant = "team a";
  claims.verbs.Add(Verb::kRead);
  claims.audience = {"kvarve"};
  claims.expires_at = 2'000;
  return claims;
}

TEST(TokenTest, Golden) {
  const nlohmann::json golden = Golden();
  const auto keys = ParseKeySet(golden["keys"].dump());
  ASSERT_TRUE(keys.ok()) << keys.status();
  TokenRules rules;
  rules.issuer = "";
  for (const auto& row : golden["tokens"]) {
    const std::string name = row["name"], token = row["token"];
    TokenFault fault = TokenFault::kNone;
    const auto claims = VerifyToken(token, *keys, rules, golden["now"], &fault);
    EXPECT_EQ(fault, FaultNamed(row["fault"])) << name << ": " << claims.status();
    ASSERT_EQ(claims.ok(), fault == TokenFault::kNone) << name;
    if (!claims.ok()) {
      EXPECT_EQ(claims.status().code(), absl::StatusCode::kUnauthenticated);
      continue;
    }
    EXPECT_EQ(claims->id, "0123-abc");
    EXPECT_THAT(claims->verbs.Names(), ElementsAre("lookup", "read", "write"));
    EXPECT_EQ(claims->tenant, name == "tenant in another script" ? "équipe ß" : "team-a");
    EXPECT_EQ(claims->expires_at, 1'800'003'600);
  }
}

TEST(TokenTest, TheIssuerWhenOneIsNamed) {
  const nlohmann::json golden = Golden();
  const KeySet keys = *ParseKeySet(golden["keys"].dump());
  TokenFault fault = TokenFault::kNone;
  TokenRules rules;
  rules.issuer = golden["issuer"];
  const std::string token = golden["tokens"][0]["token"];
  EXPECT_TRUE(VerifyToken(token, keys, rules, golden["now"], &fault).ok());
  rules.issuer += "/";
  EXPECT_FALSE(VerifyToken(token, keys, rules, golden["now"], &fault).ok());
  EXPECT_EQ(fault, TokenFault::kAudience);
}

// Any one changed character: none may still be taken, whatever it decodes to.
TEST(TokenTest, EveryCharacterCounts) {
  const std::string pem = *NewPrivateKey();
  const KeySet keys = {{"k", *PublicKeyOf(pem)}};
  const std::string token = *SignToken(SomeClaims(), "k", pem);
  TokenFault fault = TokenFault::kNone;
  ASSERT_TRUE(VerifyToken(token, keys, {}, 1'000, &fault).ok());
  for (size_t i = 0; i < token.size(); ++i) {
    for (const char c : {'A', 'x', '-', '.', '=', '\0'}) {
      std::string changed = token;
      if (changed[i] == c) continue;
      changed[i] = c;
      EXPECT_FALSE(VerifyToken(changed, keys, {}, 1'000, &fault).ok()) << i << " " << changed;
    }
  }
}

TEST(TokenTest, SignsWhatItVerifies) {
  const std::string pem = *NewPrivateKey();
  const KeySet keys = {{"key-1", *PublicKeyOf(pem)}};
  TokenClaims claims = SomeClaims();
  claims.subject = "tester";
  claims.issuer = "me";
  claims.audience = {"a", "kvarve"};
  claims.issued_at = 900;
  claims.not_before = 950;
  const auto token = SignToken(claims, "key-1", pem);
  ASSERT_TRUE(token.ok()) << token.status();
  TokenFault fault = TokenFault::kNone;
  const auto read = VerifyToken(*token, keys, {}, 1'000, &fault);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, claims.id);
  EXPECT_EQ(read->tenant, claims.tenant);
  EXPECT_EQ(read->verbs, claims.verbs);
  EXPECT_EQ(read->audience, claims.audience);
  EXPECT_EQ(read->issuer, "me");
  EXPECT_EQ(read->subject, "tester");
  EXPECT_EQ(read->issued_at, 900);
  EXPECT_EQ(read->not_before, 950);
  EXPECT_EQ(read->expires_at, 2'000);

  const auto unverified = ReadUnverified(*token);
  ASSERT_TRUE(unverified.ok());
  EXPECT_THAT(unverified->header_json, HasSubstr("ES256"));
  EXPECT_EQ(ParseClaims(unverified->claims_json)->id, claims.id);
}

TEST(TokenTest, RefusesToSign) {
  const std::string pem = *NewPrivateKey();
  TokenClaims claims = SomeClaims();
  EXPECT_FALSE(SignToken(claims, "", pem).ok());
  EXPECT_FALSE(SignToken(claims, "k", "no key").ok());
  EXPECT_FALSE(SignToken(claims, "k", PublicKeyOf(pem)->pem).ok());
  claims.verbs = {};
  EXPECT_FALSE(SignToken(claims, "k", pem).ok());
  claims = SomeClaims();
  claims.tenant = "\xff";
  claims.subject = std::string(300, 'x');
  EXPECT_FALSE(SignToken(claims, "k", pem).ok());
}

// An error may be logged or sent: it must not hold the token.
TEST(TokenTest, ErrorsDoNotQuoteTheToken) {
  const nlohmann::json golden = Golden();
  const KeySet keys = *ParseKeySet(golden["keys"].dump());
  for (const auto& row : golden["tokens"]) {
    const std::string token = row["token"];
    TokenFault fault = TokenFault::kNone;
    const auto claims = VerifyToken(token, keys, {}, golden["now"], &fault);
    if (claims.ok() || token.size() < 20) continue;
    const std::string message(claims.status().message());
    EXPECT_THAT(message, Not(HasSubstr(token.substr(0, 12))));
    EXPECT_THAT(message, Not(HasSubstr(token.substr(token.size() - 12))));
  }
}

TEST(KeySetTest, RoundTrip) {
  const KeySet keys = *ParseKeySet(Golden()["keys"].dump());
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys.at("ec-1").algorithm, TokenAlgorithm::kEs256);
  EXPECT_EQ(keys.at("rsa-1").algorithm, TokenAlgorithm::kRs256);
  const auto again = ParseKeySet(KeySetJson(keys));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, keys);
}

TEST(KeySetTest, Refuses) {
  const nlohmann::json good = Golden()["keys"];
  const auto refused = [&](auto change, const std::string& why) {
    nlohmann::json keys = good;
    change(keys["keys"]);
    const auto parsed = ParseKeySet(keys.dump());
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(why));
  };
  using J = nlohmann::json;
  refused([](J& k) { k[1]["kid"] = "ec-1"; }, "key 1: its \"kid\"");
  refused([](J& k) { k[0].erase("kid"); }, "needs a \"kid\"");
  refused([](J& k) { k[0]["kid"] = ""; }, "needs a \"kid\"");
  refused([](J& k) { k[0]["d"] = "AA"; }, "secret");
  refused([](J& k) { k[0] = {{"kty", "oct"}, {"kid", "x"}, {"k", "AAAA"}}; }, "secret");
  refused([](J& k) { k[0]["kty"] = "OKP"; }, "only EC");
  refused([](J& k) { k[0]["crv"] = "P-384"; }, "P-256");
  refused([](J& k) { k[0]["alg"] = "RS256"; }, "alg");
  refused([](J& k) { k[1]["alg"] = "PS256"; }, "alg");
  refused([](J& k) { k[1]["use"] = "enc"; }, "use");
  refused([](J& k) { k[0]["x"] = k[0]["y"]; }, "no key");
  refused([](J& k) { k[0]["x"] = "AAAA"; }, "32 bytes");
  refused([](J& k) { k[0]["x"] = "!!"; }, "base64url");
  refused([](J& k) { k[1] = Golden()["weak_key"]; }, "1024 bits");
  refused([](J& k) { k[1]["n"] = EncodeBase64Url(std::string(2000, '\x81')); }, "too large");
  refused([](J& k) { k = J::array(); }, "has 0 keys");
  refused([](J& k) { k = 1; }, "no JSON Web Key Set");
  EXPECT_FALSE(ParseKeySet("").ok());
  EXPECT_FALSE(ParseKeySet("[]").ok());
  EXPECT_FALSE(ParseKeySet(std::string(kMaxKeySetBytes + 1, ' ')).ok());
}

TEST(Base64UrlTest, OneTextEach) {
  for (const auto& [text, bytes] : std::map<std::string, std::string>{
           {"", ""}, {"Zg", "f"}, {"Zm8", "fo"}, {"Zm9v", "foo"}, {"_-8", "\xff\xef"}}) {
    EXPECT_EQ(EncodeBase64Url(bytes), text);
    EXPECT_EQ(DecodeBase64Url(text), bytes);
  }
  for (const char* bad : {"Z", "Zh", "Zg==", "Zg=", "Zm9v ", "/+8", "Zm9", "Zm 8", "Zg."}) {
    EXPECT_FALSE(DecodeBase64Url(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace kvarve
