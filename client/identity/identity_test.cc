// Names of roles and tenants in certificates, and certificates made and read.
#include "client/identity/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/x509v3.h>

#include <string>
#include <vector>

#include "client/identity/certificate.h"
#include "client/identity/openssl_ptr.h"
#include "client/identity/revocations.h"

namespace kvarve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Uris = std::vector<std::string>;

absl::StatusOr<CertificateIdentity> Identity(const Uris& uris, std::string_view domain = "") {
  return IdentityOfUris(uris, domain);
}

TEST(IdentityTest, Roles) {
  EXPECT_EQ(Identity({"kvarve://peer"})->role, Role::kPeer);
  EXPECT_EQ(Identity({"kvarve://admin"})->role, Role::kAdmin);
  EXPECT_EQ(Identity({"kvarve://client"})->role, Role::kClient);
  EXPECT_EQ(Identity({"kvarve://client"})->tenant, "");
  EXPECT_EQ(Identity({"https://elsewhere", "kvarve://client/team-a"})->tenant, "team-a");
  EXPECT_EQ(Identity({"kvarve://client/a%20b%2Fc"})->tenant, "a b/c");
  const auto spiffe = Identity({"spiffe://corp.example/kvarve/client/t"}, "corp.example");
  ASSERT_TRUE(spiffe.ok()) << spiffe.status();
  EXPECT_EQ(spiffe->tenant, "t");
  EXPECT_EQ(Identity({"spiffe://corp.example/kvarve/admin"}, "corp.example")->role, Role::kAdmin);
}

TEST(IdentityTest, Refused) {
  for (const Uris& uris : {Uris{},
                           {"kvarve://"},
                           {"kvarve://root"},
                           {"kvarve://Admin"},
                           {"kvarve://admin/"},
                           {"kvarve://admin/team-a"},
                           {"kvarve://peer/x"},
                           {"kvarve://clients"},
                           {"kvarve://client/"},
                           {"kvarve://client/a/b"},
                           {"kvarve://client/a b"},
                           {"kvarve://client/%"},
                           {"kvarve://client/%0"},
                           {"kvarve://client/%61"},
                           {"kvarve://client/%0A"},
                           {"kvarve://client/%FF"},
                           {"kvarve://client/" + std::string(129, 'x')},
                           {std::string("kvarve://admin\0", 15)},
                           {"KVARVE://admin"},
                           {"spiffe://corp.example/kvarve/admin"},
                           {"kvarve://admin", "kvarve://admin"},
                           {"kvarve://client/a", "kvarve://client/b"}}) {
    const auto identity = Identity(uris);
    EXPECT_EQ(identity.status().code(), absl::StatusCode::kUnauthenticated)
        << (uris.empty() ? "" : uris[0]);
  }
  for (const char* uri :
       {"spiffe://corp.example.evil/kvarve/admin", "spiffe://corp.exampl/kvarve/admin",
        "spiffe://evil/corp.example/kvarve/admin", "spiffe://corp.example/other/admin",
        "spiffe://corp.example/kvarveadmin", "spiffe://corp.example"}) {
    EXPECT_FALSE(Identity({uri}, "corp.example").ok()) << uri;
  }
  EXPECT_FALSE(Identity({"spiffe://d/kvarve/peer", "kvarve://admin"}, "d").ok());
}

TEST(IdentityTest, UriRoundTrip) {
  std::string all;
  for (int c = 0x20; c < 0x7f; ++c) all.push_back(static_cast<char>(c));
  for (const CertificateIdentity& identity :
       {CertificateIdentity{Role::kClient, ""}, CertificateIdentity{Role::kClient, all},
        CertificateIdentity{Role::kClient, "équipe"}, CertificateIdentity{Role::kPeer, ""},
        CertificateIdentity{Role::kAdmin, ""}}) {
    const auto read = Identity({UriOfIdentity(identity)});
    ASSERT_TRUE(read.ok()) << read.status() << UriOfIdentity(identity);
    EXPECT_EQ(read->role, identity.role);
    EXPECT_EQ(read->tenant, identity.tenant);
  }
}

TEST(VerbSetTest, NamesAndParse) {
  EXPECT_EQ(VerbSet::All().Names().size(), kVerbs);
  EXPECT_EQ(*VerbSet::Parse(VerbSet::All().Names()), VerbSet::All());
  const auto bad = VerbSet::Parse(Uris{"read", "fly"});
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("\"fly\" is no verb"));
  EXPECT_FALSE(VerbSet::Parse(Uris{}).ok());
}

class CertificateTest : public ::testing::Test {
 protected:
  CertificateTest() : authority_(*NewAuthority("test authority", 1'000'000, 4'000'000'000)) {}
  Issued authority_;
};

TEST_F(CertificateTest, IssuesAndReads) {
  CertificateRequest request;
  request.name = "a server";
  request.uris = {"kvarve://peer", "kvarve://client/a%20b"};
  request.hosts = {"localhost", "127.0.0.1", "::1"};
  request.server = true;
  request.not_before = 1'500'000'000;
  request.not_after = 3'000'000'000;
  const auto issued = IssueCertificate(authority_, request);
  ASSERT_TRUE(issued.ok()) << issued.status();
  const auto facts = ReadCertificate(issued->certificate);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_THAT(facts->uris, ElementsAre("kvarve://peer", "kvarve://client/a%20b"));
  EXPECT_EQ(facts->not_before, request.not_before);
  EXPECT_EQ(facts->not_after, request.not_after);
  EXPECT_EQ(facts->fingerprint.size(), 64u);
  EXPECT_TRUE(CheckKeyPair(issued->certificate, issued->key).ok());
  EXPECT_FALSE(CheckKeyPair(issued->certificate, authority_.key).ok());
  EXPECT_FALSE(CheckKeyPair(authority_.certificate, issued->key).ok());

  const BioPtr mine = ReadOnly(issued->certificate), its = ReadOnly(authority_.certificate);
  const CertificatePtr leaf(PEM_read_bio_X509(mine.get(), nullptr, nullptr, nullptr));
  const CertificatePtr root(PEM_read_bio_X509(its.get(), nullptr, nullptr, nullptr));
  EXPECT_EQ(X509_verify(leaf.get(), X509_get0_pubkey(root.get())), 1);
  EXPECT_EQ(X509_check_issued(root.get(), leaf.get()), X509_V_OK);
  EXPECT_EQ(X509_check_ip_asc(leaf.get(), "127.0.0.1", 0), 1);
  EXPECT_EQ(X509_check_host(leaf.get(), "localhost", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(leaf.get(), "elsewhere", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_ca(leaf.get()), 0);
  EXPECT_EQ(X509_check_ca(root.get()), 1);
}

TEST_F(CertificateTest, Refuses) {
  CertificateRequest request;
  request.name = "x";
  request.not_after = 2'000'000'000;
  for (const char* host : {"a,DNS:b", "a b", "", "a\nb", "a;b", "@section"}) {
    request.hosts = {host};
    EXPECT_FALSE(IssueCertificate(authority_, request).ok()) << host;
  }
  request.hosts = {};
  EXPECT_TRUE(IssueCertificate(authority_, request).ok());
  const Issued other = *NewAuthority("another", 1'000'000, 4'000'000'000);
  EXPECT_FALSE(IssueCertificate({authority_.certificate, other.key}, request).ok());
  EXPECT_FALSE(ReadCertificate("").ok());
  EXPECT_FALSE(ReadCertificate(authority_.key).ok());
  EXPECT_FALSE(ReadCertificate(std::string(kMaxCertificateBytes + 1, 'x')).ok());
}

TEST(RevocationsTest, ParsesAndWrites) {
  const std::string hex(64, 'a');
  const auto list = ParseRevocations(
      "# remark\n\ntoken one\n  token two 500\r\ntoken two 700\n"
      "certificate " +
      hex + "\ncertificate " + std::string(62, 'B') + ":Cc");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->tokens.at("one"), 0);
  EXPECT_EQ(list->tokens.at("two"), 700);
  EXPECT_TRUE(list->certificates.contains(hex));
  EXPECT_TRUE(list->certificates.contains(std::string(62, 'b') + "cc"));
  EXPECT_EQ(*ParseRevocations(RevocationsText(*list, 700)), *list);
  const Revocations later = *ParseRevocations(RevocationsText(*list, 701));
  EXPECT_EQ(later.tokens.size(), 1u);
  EXPECT_EQ(later.certificates, list->certificates);
  EXPECT_TRUE(ParseRevocations("")->tokens.empty());
}

TEST(RevocationsTest, ABadLineIsNoList) {
  for (const std::string& line :
       {std::string("tokens x"), std::string("token"), std::string("token a b"),
        std::string("token a 1 2"), std::string("token a -1"), std::string("token \x80"),
        "token " + std::string(129, 'a'), std::string("certificate"),
        "certificate " + std::string(63, 'a'), "certificate " + std::string(64, 'g'),
        "certificate " + std::string(64, 'a') + " 1", std::string("\0", 1)}) {
    const auto list = ParseRevocations("token good\n" + line + "\n");
    ASSERT_FALSE(list.ok()) << line;
    EXPECT_THAT(std::string(list.status().message()), HasSubstr("line 2"));
  }
}

}  // namespace
}  // namespace kvarve
