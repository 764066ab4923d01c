// A real server on a loopback port, a real client, and a naive store behind the seam: who may call,
// limits, answers.
#include "services/rpc/rpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <string>

#include "client/frames/frames.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "services/rpc/fake_store_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "a-token-of-the-test-0123456789";

std::string Id(int i) { return std::string(16, static_cast<char>(0x10 + i)); }

class RpcServerTest : public ::testing::Test {
 protected:
  RpcServerTest() {
    char name[] = "/tmp/kvarve_rpc_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    options_.auth.token_file = folder_ + "/token";
    std::ofstream(options_.auth.token_file) << kToken << "\n";
    ::chmod(options_.auth.token_file.c_str(), 0600);
    options_.listen = *ParseListenAddress("127.0.0.1:0");
    options_.daemon_version = "9.8.7";
    options_.auth.default_tenant = "team";
  }
  ~RpcServerTest() override {
    ::unlink(options_.auth.token_file.c_str());
    ::rmdir(folder_.c_str());
  }
  void Start() {
    auto server = RpcServer::Start(options_, &store_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::KvCache::NewStub(channel_);
  }

  struct Call {
    const char* token = kToken;
    bool has_deadline = true;
  };
  static void Prepare(grpc::ClientContext* context, const Call& call) {
    if (call.token != nullptr)
      context->AddMetadata("authorization", std::string("Bearer ") + call.token);
    if (call.has_deadline)
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  grpc::Status Lookup(const std::string& ns, uint32_t key_bytes, const std::string& packed,
                      v1::LookupReply* reply, const Call& call) {
    grpc::ClientContext context;
    Prepare(&context, call);
    v1::LookupRequest request;
    request.set_ns_id(ns);
    request.mutable_keys()->set_key_bytes(key_bytes);
    request.mutable_keys()->set_packed(packed);
    return stub_->Lookup(&context, request, reply);
  }
  grpc::Status Lookup(const std::string& ns, uint32_t key_bytes, const std::string& packed,
                      v1::LookupReply* reply) {
    return Lookup(ns, key_bytes, packed, reply, Call());
  }
  grpc::Status Invalidate(const v1::InvalidateRequest& request, v1::InvalidateReply* reply) {
    grpc::ClientContext context;
    Prepare(&context, Call());
    return stub_->Invalidate(&context, request, reply);
  }

  std::string folder_;
  RpcServerOptions options_;
  FakeStore store_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvCache::Stub> stub_;
};

TEST_F(RpcServerTest, TokensAndDeadlines) {
  Start();
  v1::LookupReply reply;
  EXPECT_TRUE(Lookup(Id(0), 32, "", &reply).ok());
  EXPECT_EQ(Lookup(Id(0), 32, "", &reply, {.token = nullptr}).error_code(), grpc::UNAUTHENTICATED);
  EXPECT_EQ(Lookup(Id(0), 32, "", &reply, {.token = "wrong-token-0123456789"}).error_code(),
            grpc::UNAUTHENTICATED);
  const grpc::Status late = Lookup(Id(0), 32, "", &reply, {.has_deadline = false});
  EXPECT_EQ(late.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(late.error_message(), HasSubstr("deadline"));

  const RpcStats stats = server_->Stats();
  EXPECT_EQ(stats.auth.failures[static_cast<size_t>(AuthFault::kNoToken)], 1u);
  EXPECT_EQ(stats.auth.failures[static_cast<size_t>(AuthFault::kWrongToken)], 1u);
  const auto& lookups = stats.calls[static_cast<size_t>(RpcMethod::kLookup)];
  EXPECT_EQ(lookups[grpc::OK], 1u);
  EXPECT_EQ(lookups[grpc::UNAUTHENTICATED], 2u);
  EXPECT_EQ(lookups[grpc::INVALID_ARGUMENT], 1u);
}

TEST_F(RpcServerTest, TwoTokensAreNone) {
  Start();
  grpc::ClientContext context;
  Prepare(&context, Call());
  context.AddMetadata("authorization", "Bearer another-token-0123456789");
  v1::StatsReply reply;
  EXPECT_EQ(stub_->Stats(&context, {}, &reply).error_code(), grpc::UNAUTHENTICATED);
}

// Random chains with random holes: the server answers what the naive store answers.
TEST_F(RpcServerTest, LookupEqualsTheStore) {
  Start();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    const int ns = static_cast<int>(random() % 2);
    const uint32_t key_bytes = ns == 0 ? 32 : 16;
    const size_t count = random() % 100;
    std::string packed;
    size_t expected = 0;
    bool is_prefix = true;
    for (size_t i = 0; i < count; ++i) {
      std::string key(key_bytes, '\0');
      for (char& c : key) c = static_cast<char>(random());
      packed += key;
      if (random() % 20 != 0) {
        store_.Add(static_cast<NamespaceHandle>(ns), key);
        expected += is_prefix ? 1 : 0;
      } else {
        is_prefix = false;
      }
    }
    v1::LookupReply reply;
    ASSERT_TRUE(Lookup(Id(ns), key_bytes, packed, &reply).ok());
    EXPECT_EQ(reply.hit_blocks(), expected);
    EXPECT_EQ(reply.runs_size(), expected > 0 ? 1 : 0);
    if (expected > 0) {
      EXPECT_EQ(reply.runs(0).tier(), v1::TIER_HOST);
      EXPECT_EQ(reply.runs(0).blocks(), expected);
    }
  }
}

TEST_F(RpcServerTest, BadRequests) {
  Start();
  v1::LookupReply reply;
  EXPECT_EQ(Lookup("short", 32, "", &reply).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Lookup(Id(7), 32, "", &reply).error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Lookup(Id(0), 16, std::string(16, 'k'), &reply).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Lookup(Id(0), 0, std::string(16, 'k'), &reply).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Lookup(Id(0), 32, std::string(33, 'k'), &reply).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(Lookup(Id(0), 32, std::string(32 * kMaxKeysPerCall, 'k'), &reply).ok());
  const grpc::Status many = Lookup(Id(0), 32, std::string(32 * (kMaxKeysPerCall + 1), 'k'), &reply);
  EXPECT_EQ(many.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(many.error_message(), HasSubstr("at most 8192"));
  EXPECT_EQ(
      Lookup(Id(0), 32, std::string(options_.max_message_bytes + 1, 'k'), &reply).error_code(),
      grpc::RESOURCE_EXHAUSTED);
}

TEST_F(RpcServerTest, CompressedRequestsAreRefused) {
  Start();
  grpc::ClientContext context;
  Prepare(&context, Call());
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::LookupRequest request;
  request.set_ns_id(Id(0));
  request.mutable_keys()->set_key_bytes(32);
  request.mutable_keys()->set_packed(std::string(32 * 1000, 'k'));
  v1::LookupReply reply;
  EXPECT_FALSE(stub_->Lookup(&context, request, &reply).ok());
}

TEST_F(RpcServerTest, Invalidate) {
  Start();
  store_.Add(0, std::string(32, 'a'));
  store_.Add(0, std::string(32, 'b'));
  store_.Add(0, std::string(32, 'c'));
  v1::InvalidateRequest request;
  v1::InvalidateReply reply;
  request.set_ns_id(Id(0));
  EXPECT_EQ(Invalidate(request, &reply).error_code(), grpc::INVALID_ARGUMENT);
  request.set_whole_namespace(false);
  EXPECT_EQ(Invalidate(request, &reply).error_code(), grpc::INVALID_ARGUMENT);
  request.mutable_keys()->set_key_bytes(32);
  request.mutable_keys()->set_packed(std::string(32, 'a') + std::string(32, 'x'));
  ASSERT_TRUE(Invalidate(request, &reply).ok());
  EXPECT_EQ(reply.removed_blocks(), 1u);
  request.set_whole_namespace(true);
  ASSERT_TRUE(Invalidate(request, &reply).ok());
  EXPECT_EQ(reply.removed_blocks(), 2u);
}

TEST_F(RpcServerTest, StatsAndHello) {
  Start();
  {
    grpc::ClientContext context;
    Prepare(&context, Call());
    v1::StatsReply reply;
    ASSERT_TRUE(stub_->Stats(&context, {}, &reply).ok());
    EXPECT_EQ(reply.daemon_version(), "9.8.7");
    EXPECT_EQ(reply.incarnation(), 0x1122334455667788u);
    EXPECT_EQ(reply.host().capacity_bytes(), 1000u);
    EXPECT_EQ(reply.host().used_bytes(), 500u);
    EXPECT_EQ(reply.counters().hit_blocks(), 7u);
    EXPECT_EQ(reply.counters().stored_blocks(), 11u);
    ASSERT_EQ(reply.namespaces_size(), 2);
    EXPECT_EQ(reply.namespaces(1).ns_id(), Id(1));
    EXPECT_EQ(reply.namespaces(1).model(), "model-1");
    EXPECT_EQ(reply.namespaces(1).key_bytes(), 16u);
  }
  const auto hello = [&](uint32_t min, uint32_t max, v1::HelloReply* reply) {
    grpc::ClientContext context;
    Prepare(&context, Call());
    v1::HelloRequest request;
    request.set_version_min(min);
    request.set_version_max(max);
    return stub_->Hello(&context, request, reply);
  };
  v1::HelloReply reply;
  ASSERT_TRUE(hello(1, 5, &reply).ok());
  EXPECT_EQ(reply.version(), 1u);
  EXPECT_EQ(reply.limits().max_keys_per_call(), kMaxKeysPerCall);
  EXPECT_EQ(reply.limits().max_blocks_per_write_frame(), frames::kMaxBlocksPerFrame);
  EXPECT_EQ(hello(2, 5, &reply).error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(hello(0, 0, &reply).error_code(), grpc::FAILED_PRECONDITION);
}

TEST_F(RpcServerTest, RefusesToStart) {
  options_.listen = *ParseListenAddress("0.0.0.0:0");
  const absl::Status open = RpcServer::Start(options_, &store_).status();
  EXPECT_EQ(open.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(open.message()), HasSubstr("not loopback"));
  options_.listen = *ParseListenAddress("off");
  EXPECT_FALSE(RpcServer::Start(options_, &store_).ok());

  options_.listen = *ParseListenAddress("127.0.0.1:0");
  Start();
  options_.listen.port = server_->port();
  EXPECT_EQ(RpcServer::Start(options_, &store_).status().code(), absl::StatusCode::kUnavailable);

  options_.listen.port = 0;
  ::chmod(options_.auth.token_file.c_str(), 0644);
  EXPECT_EQ(RpcServer::Start(options_, &store_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  options_.auth.token_file.clear();
  EXPECT_THAT(std::string(RpcServer::Start(options_, &store_).status().message()),
              HasSubstr("rpc.token_file"));
  options_.auth.token_file = folder_ + "/token";
}

// Health and reflection, as raw calls: field 1 of a health reply is the status, 1 = SERVING.
TEST_F(RpcServerTest, HealthNeedsNoToken) {
  Start();
  grpc::ClientContext context;
  Prepare(&context, {.token = nullptr});
  const grpc::Slice service("\x0a\x11kvarve.v1.KvCache");
  const grpc::ByteBuffer request(&service, 1);
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->StartCall();
  call->Finish(&reply, &status, this);
  void* tag = nullptr;
  bool is_ok = false;
  ASSERT_TRUE(queue.Next(&tag, &is_ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice answer;
  ASSERT_TRUE(reply.DumpToSingleSlice(&answer).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(answer.begin()), answer.size()), "\x08\x01");
}

// Field 7 of a reflection request lists the services.
TEST_F(RpcServerTest, ReflectionListsTheService) {
  Start();
  grpc::ClientContext context;
  Prepare(&context, {.token = nullptr});
  const grpc::Slice list_services(std::string("\x3a\x00", 2));
  const grpc::ByteBuffer request(&list_services, 1);
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto wait = [&] {
    void* tag = nullptr;
    bool is_ok = false;
    return queue.Next(&tag, &is_ok) && is_ok;
  };
  call->StartCall(this);
  ASSERT_TRUE(wait());
  call->Write(request, this);
  ASSERT_TRUE(wait());
  grpc::ByteBuffer reply;
  call->Read(&reply, this);
  ASSERT_TRUE(wait());
  grpc::Slice answer;
  ASSERT_TRUE(reply.DumpToSingleSlice(&answer).ok());
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(answer.begin()), answer.size()),
              HasSubstr("kvarve.v1.KvCache"));
  grpc::Status status;
  call->WritesDone(this);
  ASSERT_TRUE(wait());
  call->Finish(&status, this);
  ASSERT_TRUE(wait());
  EXPECT_TRUE(status.ok());
}

TEST_F(RpcServerTest, StopsTwiceAndRefusesAfterwards) {
  Start();
  server_->Stop(1'000'000'000);
  server_->Stop(0);
  v1::LookupReply reply;
  EXPECT_EQ(Lookup(Id(0), 32, "", &reply).error_code(), grpc::UNAVAILABLE);
}

}  // namespace
}  // namespace kvarve
