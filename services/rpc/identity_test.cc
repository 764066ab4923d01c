// What a caller must not get who is somebody else, or nobody: every call, with every kind of wrong
// credentials, against a real server over a real cache and real salts.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "services/rpc/identity_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

class IdentityTest : public IdentityFixture {
 protected:
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
    AskOthers(token, note);
    call("Invalidate", &Stub::Invalidate, v1::InvalidateRequest(), v1::InvalidateReply(),
         [](const auto& reply) { return reply.removed_blocks(); });
    return answers;
  }
  // Those that name no namespace.
  template <typename Note>
  void AskOthers(const std::string& token, Note note) {
    grpc::ClientContext hello, unpin, stats, watch;
    for (grpc::ClientContext* const context : {&hello, &unpin, &stats, &watch})
      Show(context, token);
    v1::HelloRequest greeting;
    greeting.set_version_min(1);
    greeting.set_version_max(1);
    v1::HelloReply greeted;
    note("Hello", stub_->Hello(&hello, greeting, &greeted), 0);
    v1::UnpinRequest pin;
    pin.set_pin(pin_);
    v1::UnpinReply unpinned;
    const grpc::Status ended = stub_->Unpin(&unpin, pin, &unpinned);
    note("Unpin", ended, unpinned.was_pinned() ? 1 : 0);
    v1::StatsReply told;
    note("Stats", stub_->Stats(&stats, {}, &told), 0);
    const auto events = stub_->WatchEvents(&watch, {});
    v1::EventBatch batch;
    const bool watches = events->Read(&batch);
    if (watches) watch.TryCancel();  // it would go on
    const grpc::Status over = events->Finish();
    note("WatchEvents", watches ? grpc::Status() : over, 0);
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
  uint64_t PinAs(const std::string& token, const std::string& ns_id) {
    grpc::ClientContext context;
    Show(&context, token);
    v1::PinRequest request;
    request.set_ns_id(ns_id);
    SetKeys(request.mutable_keys());
    request.set_ttl_ms(60'000);
    v1::PinReply reply;
    EXPECT_TRUE(stub_->Pin(&context, request, &reply).ok());
    EXPECT_EQ(reply.pinned_blocks(), 4u);
    return reply.pin();
  }

  uint64_t pin_ = 12345;  // that AskAll gives back
};

using Counts = std::map<std::string, uint64_t>;
const std::set<std::string> kNoNamespace = {"Hello", "Unpin", "Stats", "WatchEvents"};

TEST_F(IdentityTest, AnotherTenantsBlocksDoNotExist) {
  Start();
  const std::string a = Token("a"), b = Token("b");
  const std::string ns_a = OpenAs(a);
  ASSERT_TRUE(PutAs(a, ns_a).ok());
  pin_ = PinAs(a, ns_a);  // which b cannot give back
  const std::string ns_b = OpenAs(b);
  EXPECT_NE(ns_a, ns_b);  // the same descriptor and keys: the salt makes other names of them

  // By its own name: misses, as of keys that nobody stored.
  for (const auto& [method, count] : AskAll(b, ns_b).counts) EXPECT_EQ(count, 0u) << method;
  // By a's name: what is said of a name that nobody opened, word for word.
  const Answers foreign = AskAll(b, ns_a), unknown = AskAll(b, std::string(16, 'x'));
  EXPECT_EQ(foreign.codes, unknown.codes);
  EXPECT_EQ(foreign.messages, unknown.messages);
  for (const auto& [method, code] : foreign.codes) {
    EXPECT_EQ(code, kNoNamespace.contains(method) ? grpc::OK : grpc::NOT_FOUND) << method;
  }
  EXPECT_EQ(PutAs(b, ns_a).error_code(), grpc::NOT_FOUND);

  // Nothing of a's was changed by all that.
  const Answers own = AskAll(a, ns_a);
  EXPECT_EQ(own.counts, (Counts{{"Lookup", 4},
                                {"Prefetch", 4},
                                {"Touch", 4},
                                {"Pin", 8},
                                {"Report", 0},
                                {"ReadRun", 4 * kBlock},
                                {"Hello", 0},
                                {"Unpin", 1},  // was its own to give back
                                {"Stats", 0},
                                {"WatchEvents", 0},
                                {"Invalidate", 4}}));
}

TEST_F(IdentityTest, StatsAreTheOwnTenants) {
  Start();
  const std::string a = Token("a"), b = Token("b");
  const std::string ns = OpenAs(a);
  ASSERT_TRUE(PutAs(a, ns).ok());
  AskAll(a, ns);
  const auto stats_of = [&](const std::string& token) {
    grpc::ClientContext context;
    Show(&context, token);
    v1::StatsReply reply;
    EXPECT_TRUE(stub_->Stats(&context, {}, &reply).ok());
    return reply;
  };
  const v1::StatsReply of_a = stats_of(a), of_b = stats_of(b);
  EXPECT_EQ(of_a.namespaces_size(), 1);
  EXPECT_EQ(of_a.counters().stored_blocks(), 4u);
  EXPECT_EQ(of_a.counters().hit_blocks(), 4u);
  EXPECT_EQ(of_b.namespaces_size(), 0);
  EXPECT_EQ(of_b.counters().SerializeAsString(), "");  // all are 0
  EXPECT_GT(of_a.host().chunk_bytes(), 0u);
  EXPECT_EQ(of_b.host().chunk_bytes(), 0u);  // they tell when others come
  EXPECT_EQ(of_b.host().used_bytes() + of_b.host().leased_bytes() + of_b.host().blocks(), 0u);
  EXPECT_EQ(of_b.host().capacity_bytes(), of_a.host().capacity_bytes());
}

// The table of docs/security.md.
TEST_F(IdentityTest, VerbsAreAllThatATokenAllows) {
  Start();
  const std::map<Verb, std::set<std::string>> allowed = {
      {Verb::kLookup, {"Lookup"}},
      {Verb::kRead, {"ReadRun", "Prefetch", "Touch", "Pin", "Unpin", "Report"}},
      {Verb::kWrite, {"WriteRun"}},
      {Verb::kInvalidate, {"Invalidate"}},
      {Verb::kStats, {"Stats", "WatchEvents"}}};
  const std::string all = Token("a");
  const std::string ns = OpenAs(all);
  uint64_t refused = 0;
  for (const auto& [verb, methods] : allowed) {
    VerbSet only;
    only.Add(verb);
    const std::string narrow = Token("a", only, std::string(VerbName(verb)));
    Answers answers = AskAll(narrow, ns);
    v1::WriteRunReply reply;
    answers.codes["WriteRun"] = PutAs(narrow, ns, &reply).error_code();
    ASSERT_EQ(answers.codes.size(), kRpcMethods);
    for (const auto& [method, code] : answers.codes) {
      const bool may = method == "Hello" || methods.contains(method);
      EXPECT_EQ(code, may ? grpc::OK : grpc::PERMISSION_DENIED) << VerbName(verb) << " " << method;
      refused += may ? 0 : 1;
    }
  }
  const AuthStats auth = server_->Stats().auth;
  EXPECT_EQ(auth.failures[static_cast<size_t>(AuthFault::kVerb)], refused);
  EXPECT_EQ(auth.failures[static_cast<size_t>(AuthFault::kThrottled)], 0u);
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
  claims.expires_at = UnixNow() + 600;
  const std::string forged = *SignToken(claims, "key-1", *NewPrivateKey());
  const std::pair<std::string, AuthFault> wrong[] = {
      {"", AuthFault::kNoToken},
      {revoked, AuthFault::kRevoked},
      {forged, AuthFault::kSignature},
      {"x.y.z", AuthFault::kMalformed},
      {Token("a", VerbSet::All(), "old", UnixNow() - 1), AuthFault::kExpired},
      {Token("c", VerbSet::All(), "stranger"), AuthFault::kTenant}};
  for (const auto& [token, fault] : wrong) {
    Serve();  // which has forgotten that this address guesses
    const Answers answers = AskAll(token, ns);
    for (const auto& [method, code] : answers.codes) {
      EXPECT_EQ(code, grpc::UNAUTHENTICATED) << AuthFaultName(fault) << " " << method;
    }
    EXPECT_EQ(PutAs(token, ns).error_code(), grpc::UNAUTHENTICATED) << AuthFaultName(fault);
    EXPECT_EQ(server_->Stats().auth.failures[static_cast<size_t>(fault)], answers.codes.size() + 1)
        << AuthFaultName(fault);
  }
  EXPECT_EQ(AskAll(good, ns).counts.at("Lookup"), 4u);
}

TEST_F(IdentityTest, TheStreamOfARevokedCallerIsCut) {
  Start();
  const std::string goes = Token("a", VerbSet::All(), "goes"), stays = Token("b");
  grpc::ClientContext cut, kept;
  Show(&cut, goes);
  Show(&kept, stays);
  const auto ends = stub_->WatchEvents(&cut, {}), lives = stub_->WatchEvents(&kept, {});
  v1::EventBatch batch;
  ASSERT_TRUE(ends->Read(&batch));
  ASSERT_TRUE(lives->Read(&batch));
  Write("revoked", "token goes\n");
  EXPECT_FALSE(ends->Read(&batch));
  EXPECT_EQ(ends->Finish().error_code(), grpc::CANCELLED);  // and not for want of time
  EXPECT_EQ(server_->Stats().streams.unwelcome, 1u);
  ASSERT_TRUE(PutAs(stays, OpenAs(stays)).ok());
  EXPECT_TRUE(lives->Read(&batch));
  kept.TryCancel();
  EXPECT_EQ(lives->Finish().error_code(), grpc::CANCELLED);
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
  const Issued authority = *NewAuthority("authority", UnixNow() - 60, UnixNow() + 3600);
  CertificateRequest request;
  request.name = "server";
  request.uris = {"kvarve://peer"};
  request.hosts = {"localhost", "127.0.0.1"};
  request.server = true;
  request.not_before = UnixNow() - 60;
  request.not_after = UnixNow() + 3600;
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
  uint64_t refused = 0;
  for (const char* uri : {"kvarve://admin", "kvarve://peer"}) {
    connect_as(uri);
    for (const auto& [method, code] : AskAll("", ns).codes) {
      EXPECT_EQ(code, grpc::PERMISSION_DENIED) << uri << " " << method;
      ++refused;
    }
  }
  EXPECT_EQ(server_->Stats().auth.failures[static_cast<size_t>(AuthFault::kRole)], refused);
  EXPECT_EQ(AskAll(Token("a"), ns).codes.at("Lookup"), grpc::UNAUTHENTICATED);
  connect_as("kvarve://client/b");
  EXPECT_EQ(AskAll("", ns).codes.at("Lookup"), grpc::NOT_FOUND);
  EXPECT_EQ(AskAll(Token("a"), ns).codes.at("Lookup"), grpc::UNAUTHENTICATED);
  Serve();  // which has forgotten that this address guesses
  connect_as("kvarve://client");
  EXPECT_EQ(AskAll("", ns).codes.at("Lookup"), grpc::UNAUTHENTICATED);
  EXPECT_EQ(AskAll(Token("a"), ns).counts.at("Lookup"), 4u);
}

}  // namespace
}  // namespace kvarve
