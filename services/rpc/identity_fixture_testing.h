// A server for the tenants "a" and "b", who show signed tokens, over a real cache and real salts.
#ifndef KVARVE_SERVICES_RPC_IDENTITY_FIXTURE_TESTING_H_
#define KVARVE_SERVICES_RPC_IDENTITY_FIXTURE_TESTING_H_

#include <sys/stat.h>

#include <filesystem>

#include "client/identity/certificate.h"
#include "client/identity/key_set.h"
#include "client/identity/token.h"
#include "services/local/tenants.h"
#include "services/rpc/rpc_fixture_testing.h"

namespace kvarve {

inline int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class IdentityFixture : public RpcFixture {
 protected:
  static constexpr uint64_t kBlock = 64 << 10;

  IdentityFixture() {
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
  ~IdentityFixture() override {
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
                    const std::string& id = "id", int64_t expires = UnixNow() + 600) {
    TokenClaims claims;
    claims.id = id;
    claims.tenant = tenant;
    claims.verbs = verbs;
    claims.audience = {"kvarve"};
    claims.expires_at = expires;
    return *SignToken(claims, "key-1", key_);
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

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_IDENTITY_FIXTURE_TESTING_H_
