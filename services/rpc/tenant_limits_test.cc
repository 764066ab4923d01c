// What one tenant may take of what all share: connections by its quota, streams and the bytes of
// writes by what it leaves free.
#include <gmock/gmock.h>

#include "services/rpc/identity_fixture_testing.h"

namespace kvarve {
namespace {

class TenantLimitsTest : public IdentityFixture {
 protected:
  using Stub = v1::KvCache::Stub;

  // On a connection of its own.
  std::unique_ptr<Stub> Connect() {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::KvCache::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials(), own));
  }
  static grpc::Status Ask(Stub* stub, const std::string& token) {
    grpc::ClientContext context;
    Show(&context, token);
    v1::StatsReply reply;
    return stub->Stats(&context, {}, &reply);
  }
  uint64_t ConnectionsOf(const std::string& tenant) {
    for (const auto& [name, count] : server_->Stats().connections.of_tenants) {
      if (name == tenant) return count;
    }
    return 0;
  }
  // A write of blocks of kBlock that has been opened and sends nothing.
  struct OpenWrite {
    grpc::ClientContext context;
    v1::WriteRunReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::WriteFrame>> stream;
  };
  std::unique_ptr<OpenWrite> Write(const std::string& token, const std::string& ns_id) {
    auto write = std::make_unique<OpenWrite>();
    Show(&write->context, token);
    write->stream = stub_->WriteRun(&write->context, &write->reply);
    v1::WriteFrame frame;
    frame.mutable_open()->set_ns_id(ns_id);
    SetKeys(frame.mutable_open()->mutable_keys());
    EXPECT_TRUE(write->stream->Write(frame));
    return write;
  }
};

TEST_F(TenantLimitsTest, ConnectionsByQuota) {
  options_.connections.connections = 6;
  options_.connections.quotas["a"].of(Resource::kConnections) = {0, 2};
  options_.connections.quotas["c"].of(Resource::kConnections).floor = 3;  // away
  Start();
  const std::string a = Token("a"), b = Token("b");
  std::unique_ptr<Stub> first = Connect();
  const std::unique_ptr<Stub> second = Connect(), third = Connect();
  for (int i = 0; i < 3; ++i) {  // calls are not counted
    EXPECT_TRUE(Ask(first.get(), a).ok());
    EXPECT_TRUE(Ask(second.get(), a).ok());
  }
  EXPECT_EQ(ConnectionsOf("a"), 2u);
  const grpc::Status over = Ask(third.get(), a);
  EXPECT_EQ(over.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(over.error_message(),
            "tenant \"a\" is over its quota of connections: 2 in use of at most 2");
  EXPECT_EQ(server_->Stats().connections.over_quota, 1u);
  // What is c's stays free for it: of six, three.
  const std::unique_ptr<Stub> of_b = Connect();
  EXPECT_TRUE(Ask(of_b.get(), b).ok());
  const grpc::Status kept = Ask(third.get(), b);
  EXPECT_EQ(kept.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(kept.error_message(),
            "tenant \"b\" has 1 connections; of the 6 that there may be 3 are taken and the rest "
            "is kept for other tenants");
  first.reset();
  EXPECT_TRUE(Eventually([&] { return ConnectionsOf("a") == 1; }));
  EXPECT_TRUE(Ask(third.get(), a).ok());
  EXPECT_EQ(ConnectionsOf("a"), 2u);
}

TEST_F(TenantLimitsTest, FloorsThatDoNotFit) {
  options_.connections.connections = 6;
  options_.connections.quotas["a"].of(Resource::kConnections).floor = 7;
  cache_ = *Cache::Create(cache_options_);
  store_ = BlockStoreOf(cache_.get(), store_options_);
  EXPECT_EQ(RpcServer::Start(options_, store_.get()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Nine streams of ten: with nine of its own and one free, it has more than eight times what is
// left.
TEST_F(TenantLimitsTest, StreamsAreLeftToOthers) {
  options_.streams.streams = 10;
  Start();
  const std::string a = Token("a"), b = Token("b");
  const std::string ns_a = OpenAs(a), ns_b = OpenAs(b);
  std::vector<std::unique_ptr<OpenWrite>> open;
  for (uint64_t i = 1; i <= 9; ++i) {
    open.push_back(Write(a, ns_a));
    ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.open == i; }));
  }
  EXPECT_EQ(PutAs(a, ns_a).error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(server_->Stats().streams.refused, 1u);
  EXPECT_TRUE(PutAs(b, ns_b).ok());
  open.pop_back();
  ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.open == 8; }));
  EXPECT_TRUE(PutAs(a, ns_a).ok());
}

TEST_F(TenantLimitsTest, MemoryOfWritesIsLeftToOthers) {
  // A write of four holds a block and a frame, which may have all of them.
  constexpr uint64_t kHeld = 5 * kBlock;
  options_.streams.write_bytes = 10 * kHeld;
  Start();
  const std::string a = Token("a"), b = Token("b");
  const std::string ns_a = OpenAs(a), ns_b = OpenAs(b);
  std::vector<std::unique_ptr<OpenWrite>> open;
  for (uint64_t i = 1; i <= 9; ++i) {
    open.push_back(Write(a, ns_a));
    ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.write_bytes == i * kHeld; }));
  }
  v1::WriteRunReply reply;
  ASSERT_TRUE(PutAs(a, ns_a, &reply).ok());
  EXPECT_EQ(reply.results(0), v1::PUT_SHED);
  ASSERT_TRUE(PutAs(b, ns_b, &reply).ok());
  EXPECT_EQ(reply.results(0), v1::PUT_STORED);
}

}  // namespace
}  // namespace kvarve
