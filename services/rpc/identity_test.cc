// What a caller must not get who is somebody else, or nobody: every call, with every kind of wrong
// credentials, against a real server over a real cache and real salts.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "client/identity/certificate.h"
#include "client/identity/key_set.h"
#include "client/identity/token.h"
#include "services/local/tenants.h"
#include "services/rpc/rpc_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = 64 << 10;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class IdentityTest : public RpcFixture {
 protected:
  IdentityTest() {
    Write("keys.json", KeySetJson({{"key-1", *PublicKeyOf(key_)}}));
    options_.auth.keys_file = folder_ + "/keys.json";
    options_.auth.revocations_file = folder_ + "/revoked";
    options_.auth.tenants = {"a", "b"};
    options_.auth.reload_nanos = 5'000'000;
    LocalServerOptions tenants;
    tenants.more_tenants = options_.auth.tenants;
    tenants_ = *Tenants::Create(tenants);
    store_options_.complete = [this](const std::string& tenant, const NamespaceDescriptor& part,
                                     const NamespaceDigest& digest) {
      return tenants_->Complete(tenant, part, digest);
    };
  }
  ~IdentityTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name, next = path + ".next";
    std::ofstream(next) << text;
    ASSERT_EQ(::chmod(next.c_str(), 0600), 0);
    std::filesystem::rename(next, path);
  }
  std::string Token(const std::string& tenant, VerbSet verbs = VerbSet::All(),
                    const std::string& id = "id", int64_t expires = Now() + 600) {
    TokenClaims claims;
    claims.id = id;
    claims.tenant = tenant;
    claims.verbs = verbs;
    claims.audience = {"kvarve"};
    claims.expires_at = expires;
    return *SignToken(claims, "key-1", key_);
  }

  // One call of each method that names a namespace, on four keys of it: method, code, answer.
  struct Answers {
    std::map<std::string, int> codes;
    std::map<std::string, std::string> messages;
    std::map<std::string, uint64_t> counts;  // blocks found, read, touched ...
  };
  Answers AskAll(const std::string& token, const std::string& ns_id) {
    Answers answers;
    const auto note = [&](const std::string& method, const grpc::Status& status, uint64_t count) {
      answers.codes[method] = status.error_code();
      answers.messages[method] = status.error_message();
      answers.counts[method] = count;
    };
    const auto call = [&](const std::string& name, auto method, auto request, auto reply,
                          auto count) {
      grpc::ClientContext context;
      Show(&context, token);
      request.set_ns_id(ns_id);
      SetKeys(request.mutable_keys());
      const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
      note(name, status, count(reply));
    };
    using Stub = v1::KvCache::Stub;
    call("Lookup", &Stub::Lookup, v1::LookupRequest(), v1::LookupReply(),
         [](const auto& reply) { return reply.hit_blocks(); });
    call("Prefetch", &Stub::Prefetch, v1::PrefetchRequest(), v1::PrefetchReply(),
         [](const auto& reply) { return reply.hit_blocks(); });
    call("Touch", &Stub::Touch, v1::TouchRequest(), v1::TouchReply(),
         [](const auto& reply) { return reply.touched_blocks(); });
    v1::PinRequest pin;
    pin.set_ttl_ms(1000);
    call("Pin", &Stub::Pin, pin, v1::PinReply(),
         [](const auto& reply) { return reply.hit_blocks() + reply.pinned_blocks(); });
    call("Report", &Stub::Report, v1::ReportRequest(), v1::ReportReply(),
         [](const auto& reply) { return reply.removed_blocks(); });
    AskRead(token, ns_id, note);
    call("Invalidate", &Stub::Invalidate, v1::InvalidateRequest(), v1::InvalidateReply(),
         [](const auto& reply) { return reply.removed_blocks(); });
    return answers;
  }
  template <typename Note>
  void AskRead(const std::string& token, const std::string& ns_id, Note note) {
    grpc::ClientContext context;
    Show(&context, token);
    v1::ReadRunRequest request;
    request.set_ns_id(ns_id);
    SetKeys(request.mutable_keys());
    const auto reader = stub_->ReadRun(&context, request);
    v1::BlockFrame frame;
    uint64_t bytes = 0;
    while (reader->Read(&frame)) bytes += frame.payload().size();
    note("ReadRun", reader->Finish(), bytes);
  }
  static void SetKeys(v1::Keys* keys) {
    keys->set_key_bytes(32);
    keys->set_packed(std::string(32, '1') + std::string(32, '2') + std::string(32, '3') +
                     std::string(32, '4'));
  }
  static void Show(grpc::ClientContext* context, const std::string& token) {
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  std::string OpenAs(const std::string& token) {
    grpc::ClientContext context;
    Show(&context, token);
    v1::HelloRequest request;
    request.set_version_min(1);
    request.set_version_max(1);
    v1::NamespaceClaim* const claim = request.add_namespaces();
    const NamespaceDescriptor descriptor = TestDescriptor(kBlock);
    claim->set_canonical(EncodeDescriptor(descriptor));
    const NamespaceDigest digest = DigestOf(descriptor);
    claim->set_digest(digest.bytes.data(), digest.bytes.size());
    v1::HelloReply reply;
    const grpc::Status status = stub_->Hello(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.namespaces(0).code(), 0u) << reply.namespaces(0).message();
    return reply.namespaces(0).opened().ns_id();
  }
  // Four blocks; with `answer` they need not be stored.
  grpc::Status PutAs(const std::string& token, const std::string& ns_id,
                     v1::WriteRunReply* answer = nullptr) {
    grpc::ClientContext context;
    Show(&context, token);
    v1::WriteRunReply reply;
    const auto writer = stub_->WriteRun(&context, &reply);
    v1::WriteFrame frame;
    frame.mutable_open()->set_ns_id(ns_id);
    SetKeys(frame.mutable_open()->mutable_keys());
    bool more = writer->Write(frame);
    for (uint32_t i = 0; i < 4 && more; ++i) {
      frame.Clear();
      frame.set_index(i);
      frame.set_payload(std::string(kBlock, static_cast<char>('a' + i)));
      more = writer->Write(frame);
    }
    if (more) writer->WritesDone();
    const grpc::Status status = writer->Finish();
    EXPECT_TRUE(!status.ok() || reply.results_size() == 4);
    if (answer != nullptr) {
      *answer = reply;
      return status;
    }
    for (const int result : reply.results()) EXPECT_EQ(result, v1::PUT_STORED);
    return status;
  }

  const std::string key_ = *NewPrivateKey();
  std::unique_ptr<Tenants> tenants_;
};

using Counts = std::map<std::string, uint64_t>;
using Codes = std::map<std::string, int>;

TEST_F(IdentityTest, AnotherTenantsBlocksDoNotExist) {
  Start();
  const std::string a = Token("a"), b = Token("b");
  const std::string ns_a = OpenAs(a);
  ASSERT_TRUE(PutAs(a, ns_a).ok());
  const std::string ns_b = OpenAs(b);
  EXPECT_NE(ns_a, ns_b);  // the same descriptor and keys: the salt makes other names of them

  // By its own name: misses, as of keys that nobody stored.
  for (const auto& [method, count] : AskAll(b, ns_b).counts) EXPECT_EQ(count, 0u) << method;
  // By a's name: what is said of a name that nobody opened, word for word.
  const Answers foreign = AskAll(b, ns_a), unknown = AskAll(b, std::string(16, 'x'));
  EXPECT_EQ(foreign.codes, unknown.codes);
  EXPECT_EQ(foreign.messages, unknown.messages);
  for (const auto& [method, code] : foreign.codes) EXPECT_EQ(code, grpc::NOT_FOUND) << method;
  EXPECT_EQ(PutAs(b, ns_a).error_code(), grpc::NOT_FOUND);

  // Nothing of a's was changed by all that.
  const Answers own = AskAll(a, ns_a);
  EXPECT_EQ(own.counts, (Counts{{"Lookup", 4},
                                {"Prefetch", 4},
                                {"Touch", 4},
                                {"Pin", 8},
                                {"Report", 0},
                                {"ReadRun", 4 * kBlock},
                                {"Invalidate", 4}}));
}

TEST_F(IdentityTest, StatsAreTheOwnTenants) {
  Start();
  const std::string a = Token("a"), b = Token("b");
  ASSERT_TRUE(PutAs(a, OpenAs(a)).ok());
  grpc::ClientContext context;
  Show(&context, b);
  v1::StatsReply reply;
  ASSERT_TRUE(stub_->Stats(&context, {}, &reply).ok());
  EXPECT_EQ(reply.namespaces_size(), 0);
}

TEST_F(IdentityTest, VerbsAreAllThatATokenAllows) {
  Start();
  const std::string all = Token("a");
  const std::string ns = OpenAs(all);
  ASSERT_TRUE(PutAs(all, ns).ok());
  VerbSet lookup;
  lookup.Add(Verb::kLookup);
  const std::string narrow = Token("a", lookup, "narrow");
  const Answers answers = AskAll(narrow, ns);
  EXPECT_EQ(answers.codes.at("Lookup"), grpc::OK);
  EXPECT_EQ(answers.counts.at("Lookup"), 4u);
  for (const char* method : {"ReadRun", "Pin", "Touch", "Report", "Invalidate"}) {
    EXPECT_EQ(answers.codes.at(method), grpc::PERMISSION_DENIED) << method;
  }
  EXPECT_EQ(PutAs(narrow, ns).error_code(), grpc::PERMISSION_DENIED);
}

TEST_F(IdentityTest, WrongTokensGetNothing) {
  Start();
  const std::string good = Token("a", VerbSet::All(), "good");
  const std::string ns = OpenAs(good);
  ASSERT_TRUE(PutAs(good, ns).ok());
  const std::string revoked = Token("a", VerbSet::All(), "revoked");
  ASSERT_EQ(AskAll(revoked, std::string(16, 'x')).codes.at("Lookup"), grpc::NOT_FOUND);
  Write("revoked", "token revoked\n");
  ASSERT_TRUE(Eventually([&] { return server_->Stats().auth.reloads > 0; }));
  TokenClaims claims;
  claims.id = "forged";
  claims.tenant = "a";
  claims.verbs = VerbSet::All();
  claims.audience = {"kvarve"};
  claims.expires_at = Now() + 600;
  const std::string forged = *SignToken(claims, "key-1", *NewPrivateKey());
  // "throttled" in the end, which is no more.
  for (const std::string& wrong : {std::string(), revoked, forged, std::string("x.y.z"),
                                   Token("a", VerbSet::All(), "old", Now() - 1),
                                   Token("c", VerbSet::All(), "stranger"), good + "x"}) {
    for (const auto& [method, code] : AskAll(wrong, ns).codes) {
      EXPECT_TRUE(code == grpc::UNAUTHENTICATED || code == grpc::RESOURCE_EXHAUSTED) << method;
    }
    EXPECT_FALSE(PutAs(wrong, ns).ok());
  }
  EXPECT_EQ(AskAll(good, ns).counts.at("Lookup"), 4u);
}

TEST_F(IdentityTest, OversizedMetadata) {
  Start();
  for (const size_t bytes : {16u << 10, 1u << 20}) {
    grpc::ClientContext context;
    Show(&context, Token("a"));
    context.AddMetadata("x-more", std::string(bytes, 'x'));
    v1::StatsReply reply;
    const grpc::Status status = stub_->Stats(&context, {}, &reply);
    EXPECT_FALSE(status.ok()) << bytes;
  }
  // The largest one cost the connection; the server goes on with others.
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::KvCache::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials(), own));
  OpenAs(Token("a"));
}

TEST_F(IdentityTest, QuotaOverTheWire) {
  cache_options_.quotas["a"].of(Resource::kEntries) = {0, 2};
  cache_options_.quotas["b"].of(Resource::kEntries) = {0, 0};
  Start();
  const std::string b = Token("b");
  v1::WriteRunReply reply;
  ASSERT_TRUE(PutAs(b, OpenAs(b), &reply).ok());
  EXPECT_EQ(reply.results(0), v1::PUT_REJECTED_QUOTA);
  EXPECT_EQ(
      reply.reason(),
      "tenant \"b\" is over its quota of entries: 0 in use of at most 0, and nothing of it can "
      "leave now");
}

// Mutual TLS: the role of the certificate decides, and a token cannot raise it.
TEST_F(IdentityTest, RolesAreNotConfused) {
  const Issued authority = *NewAuthority("authority", Now() - 60, Now() + 3600);
  CertificateRequest request;
  request.name = "server";
  request.uris = {"kvarve://peer"};
  request.hosts = {"localhost", "127.0.0.1"};
  request.server = true;
  request.not_before = Now() - 60;
  request.not_after = Now() + 3600;
  const Issued server = *IssueCertificate(authority, request);
  Write("server.pem", server.certificate);
  Write("server.key", server.key);
  Write("ca.pem", authority.certificate);
  options_.transport.certificate_file = folder_ + "/server.pem";
  options_.transport.key_file = folder_ + "/server.key";
  options_.transport.client_ca_file = folder_ + "/ca.pem";
  Start();
  const auto connect_as = [&](const std::string& uri) {
    request.uris = {uri};
    request.server = false;
    const Issued client = *IssueCertificate(authority, request);
    stub_ = v1::KvCache::NewStub(grpc::CreateChannel(
        "localhost:" + std::to_string(server_->port()),
        grpc::SslCredentials({authority.certificate, client.key, client.certificate})));
  };
  connect_as("kvarve://client/a");
  const std::string ns = OpenAs("");
  ASSERT_TRUE(PutAs("", ns).ok());
  for (const char* uri : {"kvarve://admin", "kvarve://peer"}) {
    connect_as(uri);
    for (const auto& [method, code] : AskAll("", ns).codes) {
      EXPECT_EQ(code, grpc::PERMISSION_DENIED) << uri << " " << method;
    }
  }
  EXPECT_EQ(AskAll(Token("a"), ns).codes.at("Lookup"), grpc::UNAUTHENTICATED);
  connect_as("kvarve://client/b");
  EXPECT_EQ(AskAll("", ns).codes.at("Lookup"), grpc::NOT_FOUND);
  EXPECT_EQ(AskAll(Token("a"), ns).codes.at("Lookup"), grpc::UNAUTHENTICATED);
  connect_as("kvarve://client");
  EXPECT_EQ(AskAll("", ns).codes.at("Lookup"), grpc::UNAUTHENTICATED);
  EXPECT_EQ(AskAll(Token("a"), ns).counts.at("Lookup"), 4u);
}

}  // namespace
}  // namespace kvarve
