// Real handshakes: who gets a connection, who gets through with a call, and files that change under
// calls.
#include "services/auth/grpc_credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "client/identity/certificate.h"
#include "client/identity/key_set.h"
#include "client/identity/openssl_ptr.h"
#include "client/identity/token.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kDeadline = std::chrono::seconds(30);

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Answers every call with who its caller is: "client team-a".
class WhoAmI final : public grpc::CallbackGenericService {
 public:
  explicit WhoAmI(Authenticator* auth) : auth_(auth) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Reactor(auth_, context);
  }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor(Authenticator* auth, grpc::GenericCallbackServerContext* context) {
      std::string pem;
      const std::string peer = context->peer();
      const auto caller = auth->Authenticate(PresentedBy(*context, peer, &pem));
      if (!caller.ok()) {
        Finish({static_cast<grpc::StatusCode>(caller.status().code()),
                std::string(caller.status().message())});
        return;
      }
      const std::string text = std::string(RoleName(caller->role)) + " " + caller->tenant;
      const grpc::Slice slice(text);
      reply_ = grpc::ByteBuffer(&slice, 1);
      StartWriteAndFinish(&reply_, {}, grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer reply_;
  };
  Authenticator* const auth_;
};

class GrpcCredentialsTest : public ::testing::Test {
 protected:
  GrpcCredentialsTest() {
    char name[] = "/tmp/kvarve_tls_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    Write("server.pem", server_.certificate, 0644);
    Write("server.key", server_.key, 0600);
    Write("ca.pem", authority_.certificate, 0644);
    transport_ = {.address = "0.0.0.0:1",
                  .certificate_file = folder_ + "/server.pem",
                  .key_file = folder_ + "/server.key",
                  .client_ca_file = folder_ + "/ca.pem",
                  .reload_seconds = 1};
    auth_options_.tls = true;
    auth_options_.tenants = {"team-a", "team-b"};
    auth_options_.revocations_file = folder_ + "/revoked";
  }
  ~GrpcCredentialsTest() override {
    if (grpc_ != nullptr) grpc_->Shutdown(std::chrono::system_clock::now());
    grpc_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Write(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = folder_ + "/" + name, next = path + ".next";
    std::ofstream(next, std::ios::binary) << text;
    ASSERT_EQ(::chmod(next.c_str(), mode), 0);
    std::filesystem::rename(next, path);
  }
  void Start() {
    auto auth = Authenticator::Create(auth_options_);
    ASSERT_TRUE(auth.ok()) << auth.status();
    auth_ = *std::move(auth);
    auto credentials = ServerCredentialsOf(transport_);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    service_ = std::make_unique<WhoAmI>(auth_.get());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", *credentials, &port_);
    builder.RegisterCallbackGenericService(service_.get());
    grpc_ = builder.BuildAndStart();
    ASSERT_NE(grpc_, nullptr);
  }
  static Issued Issue(const Issued& authority, const std::string& uri, int64_t begin = Now() - 60,
                      int64_t end = Now() + 3600) {
    CertificateRequest request;
    request.name = "client";
    request.uris = {uri};
    request.not_before = begin;
    request.not_after = end;
    return *IssueCertificate(authority, request);
  }
  static Issued IssueServer(const Issued& authority) {
    CertificateRequest request;
    request.name = "server";
    request.uris = {"kvarve://peer"};
    request.hosts = {"localhost", "127.0.0.1"};
    request.server = true;
    request.not_before = Now() - 60;
    request.not_after = Now() + 3600;
    return *IssueCertificate(authority, request);
  }
  std::string Target() const { return "127.0.0.1:" + std::to_string(port_); }
  // A connection of its own: gRPC would share one between equal channels.
  std::shared_ptr<grpc::Channel> Connect(std::shared_ptr<grpc::ChannelCredentials> credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(Target(), credentials, arguments);
  }
  std::shared_ptr<grpc::Channel> Connect(const Issued& client, const std::string& root) {
    return Connect(grpc::SslCredentials({root, client.key, client.certificate}));
  }
  // The answer, or "CODE: message".
  static std::string Ask(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& token = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    const grpc::ByteBuffer request;
    const auto call = stub.PrepareUnaryCall(&context, "/any/Call", request, &queue);
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->StartCall();
    call->Finish(&reply, &status, &reply);
    void* tag = nullptr;
    bool is_ok = false;
    EXPECT_TRUE(queue.Next(&tag, &is_ok));
    if (!status.ok()) {
      return std::to_string(status.error_code()) + ": " + status.error_message();
    }
    grpc::Slice answer;
    EXPECT_TRUE(reply.DumpToSingleSlice(&answer).ok());
    return {reinterpret_cast<const char*>(answer.begin()), answer.size()};
  }
  std::string Ask(const Issued& client, const std::string& token = "") {
    return Ask(Connect(client, authority_.certificate), token);
  }
  absl::Status Refusal() const { return ServerCredentialsOf(transport_).status(); }

  std::string folder_;
  const Issued authority_ = *NewAuthority("authority", Now() - 60, Now() + 3600);
  const Issued server_ = IssueServer(authority_);
  const Issued team_a_ = Issue(authority_, "kvarve://client/team-a");
  TransportOptions transport_;
  AuthOptions auth_options_;
  std::unique_ptr<Authenticator> auth_;
  std::unique_ptr<WhoAmI> service_;
  std::unique_ptr<grpc::Server> grpc_;
  int port_ = 0;
};

constexpr char kUnavailable[] = "14: ";
constexpr char kUnauthenticated[] = "16: ";

TEST_F(GrpcCredentialsTest, RolesOfCertificates) {
  Start();
  EXPECT_EQ(Ask(team_a_), "client team-a");
  EXPECT_EQ(Ask(Issue(authority_, "kvarve://admin")), "admin ");
  EXPECT_EQ(Ask(Issue(authority_, "kvarve://peer")), "peer ");
  EXPECT_EQ(Ask(server_), "peer ");
  EXPECT_THAT(Ask(Issue(authority_, "https://elsewhere")), StartsWith(kUnauthenticated));
  EXPECT_THAT(Ask(Issue(authority_, "kvarve://client/team-c")), StartsWith(kUnauthenticated));
}

TEST_F(GrpcCredentialsTest, TokensOverTls) {
  const std::string key = *NewPrivateKey();
  Write("keys.json", KeySetJson({{"k", *PublicKeyOf(key)}}), 0644);
  auth_options_.keys_file = folder_ + "/keys.json";
  Start();
  TokenClaims claims;
  claims.id = "1";
  claims.tenant = "team-b";
  claims.verbs = VerbSet::All();
  claims.audience = {"kvarve"};
  claims.expires_at = Now() + 600;
  const std::string token = *SignToken(claims, "k", key);
  const Issued any = Issue(authority_, "kvarve://client");
  EXPECT_EQ(Ask(any, token), "client team-b");
  EXPECT_THAT(Ask(any), StartsWith(kUnauthenticated));
  EXPECT_THAT(Ask(team_a_, token), HasSubstr("another tenant"));
}

TEST_F(GrpcCredentialsTest, NoConnectionWithoutARightCertificate) {
  Start();
  const Issued other = *NewAuthority("authority", Now() - 60, Now() + 3600);  // the same name
  EXPECT_THAT(Ask(Issue(other, "kvarve://admin")), StartsWith(kUnavailable));
  EXPECT_THAT(Ask(Connect(grpc::SslCredentials({authority_.certificate, "", ""}))),
              StartsWith(kUnavailable));
  EXPECT_THAT(Ask(Connect(grpc::InsecureChannelCredentials())), StartsWith(kUnavailable));
  EXPECT_THAT(Ask(Issue(authority_, "kvarve://admin", Now() - 600, Now() - 300)),
              StartsWith(kUnavailable));
  EXPECT_THAT(Ask(Issue(authority_, "kvarve://admin", Now() + 600, Now() + 900)),
              StartsWith(kUnavailable));
  // A certificate that another one signed, which is no authority.
  EXPECT_THAT(Ask(Issue(team_a_, "kvarve://admin")), StartsWith(kUnavailable));
  // And the client does not take another's server.
  EXPECT_THAT(Ask(Connect(team_a_, other.certificate)), StartsWith(kUnavailable));
  EXPECT_EQ(auth_->Stats().accepted, 0u);
}

// One byte comes back over TLS 1.3 (HTTP/2 begins with the server's settings); the handshake fails
// with TLS 1.2.
bool Handshake(const std::string& target, int version, const Issued& client) {
  using SslContextPtr = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;
  const SslContextPtr context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_clear_options(context.get(), SSL_OP_NO_TLSv1_2);  // this process has it for its servers
  SSL_CTX_set_min_proto_version(context.get(), version);
  SSL_CTX_set_max_proto_version(context.get(), version);
  const unsigned char alpn[] = "\x02h2";
  SSL_CTX_set_alpn_protos(context.get(), alpn, 3);
  const BioPtr text = ReadOnly(client.certificate);
  const CertificatePtr certificate(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr));
  const KeyPtr key = ReadPrivateKey(client.key);
  SSL_CTX_use_certificate(context.get(), certificate.get());
  SSL_CTX_use_PrivateKey(context.get(), key.get());
  const BioPtr bio(BIO_new_ssl_connect(context.get()));
  BIO_set_conn_hostname(bio.get(), target.c_str());
  char byte = 0;
  const bool is_connected = BIO_do_handshake(bio.get()) == 1 && BIO_read(bio.get(), &byte, 1) == 1;
  ERR_clear_error();
  return is_connected;
}

TEST_F(GrpcCredentialsTest, Tls13Only) {
  Start();
  EXPECT_TRUE(Handshake(Target(), TLS1_3_VERSION, team_a_));
  EXPECT_FALSE(Handshake(Target(), TLS1_2_VERSION, team_a_));
}

TEST_F(GrpcCredentialsTest, RevokedWhileConnected) {
  Start();
  const auto channel = Connect(team_a_, authority_.certificate);
  const Issued other = Issue(authority_, "kvarve://client/team-a");
  ASSERT_EQ(Ask(channel), "client team-a");
  Write("revoked", "certificate " + ReadCertificate(team_a_.certificate)->fingerprint + "\n", 0644);
  auth_->Reload();
  EXPECT_THAT(Ask(channel), HasSubstr("revoked"));
  EXPECT_EQ(Ask(other), "client team-a");
}

// The authority is replaced under calls: whoever is connected goes on, new connections of the old
// authority are refused in the end, those of the new one succeed, and no call fails in between.
TEST_F(GrpcCredentialsTest, RotatesUnderLoad) {
  Start();
  std::atomic<bool> stop{false};
  std::vector<std::future<std::string>> load;
  for (int i = 0; i < 2; ++i) {
    load.push_back(std::async(std::launch::async, [&] {
      const auto channel = Connect(team_a_, authority_.certificate);
      while (!stop) {
        const std::string answer = Ask(channel);
        if (answer != "client team-a") return answer;
      }
      return std::string("good");
    }));
  }
  const Issued next = *NewAuthority("next authority", Now() - 60, Now() + 3600);
  const Issued next_server = IssueServer(next);
  const Issued next_client = Issue(next, "kvarve://client/team-b");
  const std::string both = authority_.certificate + next.certificate;
  // First both authorities are believed, then the server changes, then the old one goes.
  Write("ca.pem", both, 0644);
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  const auto wait_for = [&](auto condition) {
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "gRPC did not read the files again";
      std::this_thread::yield();
    }
  };
  wait_for([&] { return Ask(next_client) == "client team-b"; });
  Write("server.key", next_server.key, 0600);
  Write("server.pem", next_server.certificate, 0644);
  wait_for([&] { return Ask(Connect(next_client, next.certificate)) == "client team-b"; });
  EXPECT_EQ(Ask(Connect(team_a_, next.certificate)), "client team-a");
  Write("ca.pem", next.certificate, 0644);
  wait_for([&] { return Ask(Connect(team_a_, next.certificate)).starts_with(kUnavailable); });
  EXPECT_EQ(Ask(Connect(next_client, next.certificate)), "client team-b");
  stop = true;
  for (auto& answer : load) EXPECT_EQ(answer.get(), "good");
}

TEST_F(GrpcCredentialsTest, PlaintextOnlyOnLoopback) {
  transport_ = {.address = "0.0.0.0:7410"};
  EXPECT_EQ(Refusal().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("0.0.0.0:7410, which is not loopback"));
  transport_.insecure_plaintext_off_loopback = true;
  EXPECT_TRUE(Refusal().ok());
  transport_ = {.address = "127.0.0.1:7410", .is_loopback = true};
  EXPECT_TRUE(Refusal().ok());
}

TEST_F(GrpcCredentialsTest, FilesThatAreRefused) {
  const TransportOptions good = transport_;
  EXPECT_TRUE(Refusal().ok());
  transport_.client_ca_file.clear();
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("needs all of"));
  transport_ = good;
  transport_.key_file = folder_ + "/none.key";
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("none.key"));
  transport_ = good;
  Write("server.key", server_.key, 0644);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("chmod 600"));
  Write("server.key", team_a_.key, 0600);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("another certificate's"));
  Write("server.key", server_.key, 0600);
  Write("ca.pem", "nothing", 0644);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("ca.pem"));
}

}  // namespace
}  // namespace kvarve
