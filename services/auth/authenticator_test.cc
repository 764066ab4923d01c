// Who is let in and who is not: certificates, tokens, both together, files that change, guessing.
#include "services/auth/authenticator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "client/identity/certificate.h"
#include "client/identity/key_set.h"
#include "client/identity/token.h"
#include "client/identity/watched_file.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow = 1'800'000'000;
constexpr char kPeer[] = "ipv4:10.1.2.3:40000";
constexpr char kShared[] = "a-shared-token-of-some-length";

class AuthenticatorTest : public ::testing::Test {
 protected:
  AuthenticatorTest() {
    char name[] = "/tmp/kvarve_auth_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    Write("keys.json", KeySetJson({{"key-1", *PublicKeyOf(key_)}}));
    options_.keys_file = folder_ + "/keys.json";
    options_.revocations_file = folder_ + "/revoked";
    options_.default_tenant = "default";
    options_.tenants = {"team-a", "team-b"};
    options_.reload_nanos = 3'600'000'000'000;  // the tests reload by hand
    options_.clock = &clock_;
    options_.now_seconds = [this] { return now_.load(); };
  }
  ~AuthenticatorTest() override {
    auth_.reset();
    std::filesystem::remove_all(folder_);
  }

  // As a rotation does: a new file in place of the old one.
  void Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_ + "/" + name, next = path + ".next";
    std::ofstream(next, std::ios::binary) << text;
    ASSERT_EQ(::chmod(next.c_str(), mode), 0);
    std::filesystem::rename(next, path);
  }
  void UseSharedToken() {
    Write("token", std::string(kShared) + "\n");
    options_.token_file = folder_ + "/token";
  }
  void Start() {
    auto created = Authenticator::Create(options_);
    ASSERT_TRUE(created.ok()) << created.status();
    auth_ = *std::move(created);
  }
  std::string Token(const std::string& tenant, const std::string& id = "id-1",
                    int64_t expires = kNow + 600) {
    TokenClaims claims;
    claims.id = id;
    claims.tenant = tenant;
    claims.verbs.Add(Verb::kLookup);
    claims.verbs.Add(Verb::kRead);
    claims.audience = {"kvarve"};
    claims.expires_at = expires;
    return "Bearer " + *SignToken(claims, "key-1", key_);
  }
  std::string Certificate(const std::vector<std::string>& uris, int64_t until = kNow + 1000) {
    CertificateRequest request;
    request.name = "test";
    request.uris = uris;
    request.not_before = kNow - 1000;
    request.not_after = until;
    return IssueCertificate(authority_, request)->certificate;
  }
  absl::StatusOr<Caller> Call(const std::string& token, const std::string& certificate = "",
                              const char* peer = kPeer) {
    Presented presented;
    presented.peer = peer;
    presented.certificate_pem = certificate;
    if (!token.empty()) presented.authorization = token;
    return auth_->Authenticate(presented);
  }
  // Refused for `fault`, and counted so.
  void ExpectRefused(AuthFault fault, const std::string& token,
                     const std::string& certificate = "") {
    const size_t index = static_cast<size_t>(fault);
    const uint64_t before = auth_->Stats().failures[index];
    const auto caller = Call(token, certificate, FreshPeer());
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kUnauthenticated) << AuthFaultName(fault);
    EXPECT_EQ(auth_->Stats().failures[index], before + 1)
        << AuthFaultName(fault) << ": " << caller.status();
    if (token.size() > 20) {
      EXPECT_THAT(std::string(caller.status().message()), Not(HasSubstr(token.substr(8, 12))));
    }
  }
  const char* FreshPeer() {
    peer_ = "ipv4:10.9.0." + std::to_string(++peers_) + ":1";
    return peer_.c_str();
  }

  std::string folder_;
  const std::string key_ = *NewPrivateKey();
  const Issued authority_ = *NewAuthority("authority", kNow - 1000, kNow + 100'000);
  ManualClock clock_;
  std::atomic<int64_t> now_{kNow};
  AuthOptions options_;
  std::unique_ptr<Authenticator> auth_;
  std::string peer_;
  int peers_ = 0;
};

TEST_F(AuthenticatorTest, SignedTokens) {
  Start();
  const auto caller = Call(Token("team-a"));
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->role, Role::kClient);
  EXPECT_EQ(caller->tenant, "team-a");
  EXPECT_EQ(caller->name, "id-1");
  EXPECT_TRUE(caller->May(Verb::kRead).ok());
  EXPECT_EQ(caller->May(Verb::kWrite).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(caller->MayAdminister().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(auth_->Stats().accepted, 1u);
}

TEST_F(AuthenticatorTest, RefusedTokens) {
  Start();
  const std::string other_key = *NewPrivateKey();
  TokenClaims claims;
  claims.id = "x";
  claims.tenant = "team-a";
  claims.verbs = VerbSet::All();
  claims.audience = {"kvarve"};
  claims.expires_at = kNow + 100;
  const std::string forged = "Bearer " + *SignToken(claims, "key-1", other_key);
  claims.audience = {"another service"};
  const std::string elsewhere = "Bearer " + *SignToken(claims, "key-1", key_);
  const std::string good = Token("team-a");

  ExpectRefused(AuthFault::kNoToken, "");
  ExpectRefused(AuthFault::kSignature, forged);
  ExpectRefused(AuthFault::kAudience, elsewhere);
  ExpectRefused(AuthFault::kExpired, Token("team-a", "id-2", kNow));
  ExpectRefused(AuthFault::kTenant, Token("team-c"));
  ExpectRefused(AuthFault::kMalformed, "Basic " + good.substr(7));
  ExpectRefused(AuthFault::kMalformed, good.substr(7));
  ExpectRefused(AuthFault::kMalformed, "Bearer ");
  ExpectRefused(AuthFault::kMalformed, good + " ");
  ExpectRefused(AuthFault::kMalformed, "Bearer  " + good.substr(7));
  ExpectRefused(AuthFault::kMalformed, "Bearer " + std::string(100'000, 'x'));
  Presented twice{FreshPeer(), "", good, true};
  EXPECT_EQ(auth_->Authenticate(twice).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(auth_->Stats().accepted, 0u);
}

TEST_F(AuthenticatorTest, ARememberedTokenStillExpiresAndIsRevoked) {
  Start();
  const std::string one = Token("team-a", "one"), two = Token("team-a", "two");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Call(one).ok());
  EXPECT_EQ(auth_->Stats().tokens_verified, 1u);
  clock_.Advance(61'000'000'000);
  ASSERT_TRUE(Call(one).ok());
  EXPECT_EQ(auth_->Stats().tokens_verified, 2u);
  ASSERT_TRUE(Call(two).ok());

  Write("revoked", "token one\n");
  auth_->Reload();
  ExpectRefused(AuthFault::kRevoked, one);
  EXPECT_TRUE(Call(two).ok());
  now_ = kNow + 600;
  ExpectRefused(AuthFault::kExpired, two);
}

TEST_F(AuthenticatorTest, KeysAreReplaced) {
  Start();
  const std::string old_token = Token("team-a");
  ASSERT_TRUE(Call(old_token).ok());
  const std::string new_key = *NewPrivateKey();
  Write("keys.json", KeySetJson({{"key-1", *PublicKeyOf(new_key)}}));
  auth_->Reload();
  EXPECT_EQ(auth_->Stats().reloads, 1u);
  ExpectRefused(AuthFault::kSignature, old_token);
}

// A bad file leaves the old one in force, and is tried again when it is good.
TEST_F(AuthenticatorTest, BadFiles) {
  Write("revoked", "token revoked-one\n");
  Start();
  const std::string good = Token("team-a");
  for (const std::string& text : {std::string("{}"), std::string(), std::string("{\"keys\":[]}")}) {
    Write("keys.json", text);
    auth_->Reload();
    EXPECT_TRUE(Call(good).ok());
  }
  EXPECT_EQ(auth_->Stats().reload_failures, 3u);
  Write("keys.json", KeySetJson({{"key-1", *PublicKeyOf(key_)}}), 0666);
  auth_->Reload();
  EXPECT_EQ(auth_->Stats().reload_failures, 4u);
  Write("keys.json", KeySetJson({{"key-1", *PublicKeyOf(key_)}}));

  Write("revoked", "nonsense\n");
  auth_->Reload();
  ExpectRefused(AuthFault::kRevoked, Token("team-a", "revoked-one"));
  std::filesystem::remove(folder_ + "/revoked");
  auth_->Reload();
  ExpectRefused(AuthFault::kRevoked, Token("team-a", "revoked-one"));
  Write("revoked", "token other\n");
  auth_->Reload();
  EXPECT_TRUE(Call(Token("team-a", "revoked-one")).ok());
}

TEST_F(AuthenticatorTest, WillNotStart) {
  options_.keys_file.clear();
  EXPECT_EQ(Authenticator::Create(options_).status().code(), absl::StatusCode::kFailedPrecondition);
  options_.keys_file = folder_ + "/none.json";
  const auto missing = Authenticator::Create(options_);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none.json"));
  Write("bad.json", "[");
  options_.keys_file = folder_ + "/bad.json";
  EXPECT_FALSE(Authenticator::Create(options_).ok());
  Write("keys.json", KeySetJson({{"key-1", *PublicKeyOf(key_)}}), 0622);
  options_.keys_file = folder_ + "/keys.json";
  EXPECT_EQ(Authenticator::Create(options_).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(AuthenticatorTest, TheSharedToken) {
  UseSharedToken();
  options_.keys_file.clear();
  Start();
  const auto caller = Call(std::string("bearer ") + kShared);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->tenant, "default");
  EXPECT_EQ(caller->verbs, VerbSet::All());
  EXPECT_THAT(caller->name, Not(HasSubstr("a-shared")));
  EXPECT_FALSE(caller->MayAdminister().ok());
  ExpectRefused(AuthFault::kWrongToken, std::string("Bearer ") + kShared + "x");
  ExpectRefused(AuthFault::kWrongToken, Token("team-a"));

  Write("token", "another-token-of-some-length\n");
  auth_->Reload();
  ExpectRefused(AuthFault::kWrongToken, std::string("Bearer ") + kShared);
  EXPECT_TRUE(Call("Bearer another-token-of-some-length").ok());
}

TEST_F(AuthenticatorTest, BothKindsOfTokens) {
  UseSharedToken();
  Start();
  EXPECT_EQ(Call(std::string("Bearer ") + kShared)->tenant, "default");
  EXPECT_EQ(Call(Token("team-b"))->tenant, "team-b");
  ExpectRefused(AuthFault::kMalformed, "Bearer something else");
}

TEST_F(AuthenticatorTest, CertificatesSayTheRole) {
  options_.tls = true;
  options_.trust_domain = "corp.example";
  Start();
  const auto role = [&](const char* uri) { return Call("", Certificate({uri}))->role; };
  EXPECT_EQ(role("kvarve://admin"), Role::kAdmin);
  EXPECT_EQ(role("kvarve://peer"), Role::kPeer);
  EXPECT_EQ(role("spiffe://corp.example/kvarve/admin"), Role::kAdmin);
  const auto client = Call("", Certificate({"kvarve://client/team-a"}));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(client->tenant, "team-a");
  EXPECT_EQ(client->verbs, VerbSet::All());

  // No role takes another's rights.
  const Caller admin = *Call("", Certificate({"kvarve://admin"}));
  const Caller peer = *Call("", Certificate({"kvarve://peer"}));
  EXPECT_TRUE(admin.MayAdminister().ok());
  EXPECT_FALSE(peer.MayAdminister().ok());
  EXPECT_FALSE(client->MayAdminister().ok());
  EXPECT_FALSE(peer.May(Verb::kRead).ok());
  EXPECT_FALSE(peer.MayGreet().ok());
  EXPECT_FALSE(admin.MayGreet().ok());
  EXPECT_TRUE(client->MayGreet().ok());
  const auto counted = [&] {
    return auth_->Stats().failures[static_cast<size_t>(AuthFault::kRole)];
  };
  EXPECT_TRUE(auth_->MayAdminister(admin, kPeer).ok());
  EXPECT_EQ(counted(), 0u);
  for (const Caller& other : {peer, *client}) {
    EXPECT_EQ(auth_->MayAdminister(other, kPeer).code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(counted(), 2u);
  for (size_t verb = 0; verb < kVerbs; ++verb) {
    EXPECT_FALSE(admin.May(static_cast<Verb>(verb)).ok());
  }
}

TEST_F(AuthenticatorTest, RefusedCertificates) {
  options_.tls = true;
  Start();
  ExpectRefused(AuthFault::kCertificate, "");
  ExpectRefused(AuthFault::kCertificate, Token("team-a"));  // a token alone is not enough
  ExpectRefused(AuthFault::kCertificate, "", "no certificate");
  ExpectRefused(AuthFault::kCertificate, "", Certificate({}));
  ExpectRefused(AuthFault::kCertificate, "", Certificate({"https://elsewhere"}));
  ExpectRefused(AuthFault::kCertificate, "", Certificate({"kvarve://root"}));
  ExpectRefused(AuthFault::kCertificate, "", Certificate({"kvarve://admin", "kvarve://peer"}));
  ExpectRefused(AuthFault::kCertificate, "", Certificate({"spiffe://corp.example/kvarve/admin"}));
  ExpectRefused(AuthFault::kCertificate, Token("team-a"), Certificate({"kvarve://admin"}));
  ExpectRefused(AuthFault::kTenant, "", Certificate({"kvarve://client/team-c"}));
}

TEST_F(AuthenticatorTest, CertificateAndToken) {
  options_.tls = true;
  Start();
  const std::string any = Certificate({"kvarve://client"}),
                    team_a = Certificate({"kvarve://client/team-a"});
  ExpectRefused(AuthFault::kNoToken, "", any);
  EXPECT_EQ(Call(Token("team-b"), any)->tenant, "team-b");
  // A token narrows what a certificate allows, and never changes the tenant.
  const auto narrowed = Call(Token("team-a"), team_a);
  ASSERT_TRUE(narrowed.ok());
  EXPECT_FALSE(narrowed->May(Verb::kWrite).ok());
  ExpectRefused(AuthFault::kTenant, Token("team-b"), team_a);
  ExpectRefused(AuthFault::kExpired, Token("team-a", "old", kNow - 5), team_a);
}

TEST_F(AuthenticatorTest, ACertificateEndsWhileItsConnectionLives) {
  options_.tls = true;
  Start();
  const std::string one = Certificate({"kvarve://client/team-a"}, kNow + 50),
                    two = Certificate({"kvarve://client/team-a"});
  ASSERT_TRUE(Call("", one).ok());
  ASSERT_TRUE(Call("", two).ok());
  now_ = kNow + 51;
  ExpectRefused(AuthFault::kCertificate, "", one);
  EXPECT_TRUE(Call("", two).ok());
  Write("revoked", "certificate " + ReadCertificate(two)->fingerprint + "\n");
  auth_->Reload();
  ExpectRefused(AuthFault::kRevoked, "", two);
}

TEST_F(AuthenticatorTest, WhoGuessesWaits) {
  Start();
  const std::string good = Token("team-a");
  ASSERT_TRUE(Call(good).ok());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Call("Bearer a.b.c").status().code(), absl::StatusCode::kUnauthenticated) << i;
  }
  const uint64_t verified = auth_->Stats().tokens_verified;
  const auto throttled = Call("Bearer a.b.c", "", "ipv4:10.1.2.3:999");
  EXPECT_EQ(throttled.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(throttled.status().message()), HasSubstr("1 s"));
  EXPECT_EQ(auth_->Stats().tokens_verified, verified);
  EXPECT_EQ(auth_->Stats().failures[static_cast<size_t>(AuthFault::kThrottled)], 1u);
  // Others, and who was good before, are let in; even when it has to be verified anew.
  EXPECT_TRUE(Call(good, "", "ipv4:10.1.2.4:999").ok());
  EXPECT_TRUE(Call(good).ok());
  Write("revoked", "token other\n");
  auth_->Reload();
  EXPECT_TRUE(Call(good).ok());
  const std::string fresh = Token("team-b", "fresh");
  EXPECT_EQ(Call(fresh).status().code(), absl::StatusCode::kResourceExhausted);
  clock_.Advance(1'000'000'000);
  EXPECT_TRUE(Call(fresh).ok());
  EXPECT_EQ(Call("Bearer a.b.c").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Call("Bearer a.b.c").status().code(), absl::StatusCode::kResourceExhausted);
}

// Calls from many threads while files change: a revoked token is refused from the reload on, and
// nobody else ever is. Under ThreadSanitizer this is also the test of the locks.
TEST_F(AuthenticatorTest, RevokedUnderLoad) {
  UseSharedToken();
  options_.reload_nanos = 1'000'000;
  Start();
  const std::string stays = Token("team-a", "stays"), goes = Token("team-b", "goes");
  std::atomic<bool> stop{false}, wrong{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string peer = "ipv4:10.7.0." + std::to_string(i) + ":1";
      while (!stop) {
        if (!Call(stays, "", peer.c_str()).ok()) wrong = true;
        const auto caller = Call(goes, "", peer.c_str());
        if (caller.ok() && caller->tenant != "team-b") wrong = true;
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    Write("revoked", i % 2 == 0 ? "token goes\n" : "token nobody\n");
    auth_->Reload();
    EXPECT_EQ(Call(goes).ok(), i % 2 != 0) << i;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
}

// Refusals of who was let in are counted by reason, and cost neither it nor its neighbours
// anything.
TEST_F(AuthenticatorTest, WhoLacksAVerbKeepsTheOthers) {
  Start();
  const Caller reader = *Call(Token("team-a"));  // lookup and read
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(auth_->May(reader, Verb::kWrite, kPeer).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_TRUE(auth_->May(reader, Verb::kRead, kPeer).ok());
  }
  EXPECT_TRUE(auth_->MayGreet(reader, kPeer).ok());
  EXPECT_TRUE(Call(Token("team-b", "never-seen")).ok());
  Caller peer;
  peer.role = Role::kPeer;
  EXPECT_FALSE(auth_->May(peer, Verb::kRead, kPeer).ok());
  EXPECT_FALSE(auth_->MayGreet(peer, kPeer).ok());
  const AuthStats stats = auth_->Stats();
  EXPECT_EQ(stats.failures[static_cast<size_t>(AuthFault::kVerb)], 100u);
  EXPECT_EQ(stats.failures[static_cast<size_t>(AuthFault::kRole)], 2u);
}

TEST_F(AuthenticatorTest, TheThreadReloads) {
  options_.reload_nanos = 1'000'000;
  Start();
  const std::string token = Token("team-a");
  ASSERT_TRUE(Call(token).ok());
  Write("revoked", "token id-1\n");
  while (Call(token).ok()) std::this_thread::yield();
  EXPECT_EQ(auth_->Stats().reloads, 1u);
}

TEST_F(AuthenticatorTest, TrustedFiles) {
  Write("f", "text", 0640);
  const std::string path = folder_ + "/f";
  EXPECT_EQ(*ReadTrustedFile(path, 4, true), "text");
  EXPECT_EQ(ReadTrustedFile(path, 3, true).status().code(), absl::StatusCode::kInvalidArgument);
  Write("f", "text", 0644);
  EXPECT_TRUE(ReadTrustedFile(path, 4, false).ok());
  EXPECT_EQ(ReadTrustedFile(path, 4, true).status().code(), absl::StatusCode::kPermissionDenied);
  for (const mode_t mode : {0620, 0602, 0666}) {
    Write("f", "text", mode);
    EXPECT_EQ(ReadTrustedFile(path, 4, false).status().code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(ReadTrustedFile(folder_, 4, false).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTrustedFile(path + "x", 4, false).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvarve
