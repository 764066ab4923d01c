// Goal: with hedging on, a read whose first frame takes longer than most did is asked for once
// more, the first answer wins and the other stream is cancelled; with it off, it is not. Method: a
// gRPC server that hangs when told to.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "client/cpp/client.h"
#include "client/rpc/grpc_plane.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "storage/block/checksum.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve {
namespace {

constexpr int64_t kLong = 60'000'000'000;
constexpr uint64_t kBlock = 16384;

// Reads one block and compares; how many came.
size_t Get(Client& client, ClientNamespace ns, std::span<const BlockKey> keys) {
  std::vector<std::byte> memory(kBlock);
  std::byte* const to[] = {memory.data()};
  const absl::StatusOr<size_t> got = client.Get(ns, keys, to);
  EXPECT_TRUE(got.ok()) << got.status();
  if (got.value_or(0) == 1) {
    EXPECT_TRUE(testing::IsBlock(0, keys[0], memory));
  }
  return got.value_or(0);
}

bool Eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 12'000 && !done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return done();
}

// A daemon some of whose reads hang: one block for whatever is asked, with right checksums.
class SlowNode final : public v1::KvCache::Service {
 public:
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override {
    reply->set_version(1);
    reply->set_incarnation(1);
    for (int i = 0; i < request->namespaces_size(); ++i) {
      v1::Namespace* const ns = reply->add_namespaces()->mutable_opened();
      ns->set_ns_id(std::string(16, 'n'));
      ns->set_block_bytes(kBlock);
      ns->set_key_bytes(32);
    }
    return grpc::Status::OK;
  }
  grpc::Status ReadRun(grpc::ServerContext* context, const v1::ReadRunRequest* request,
                       grpc::ServerWriter<v1::BlockFrame>* writer) override {
    if (hang_next.exchange(false)) {
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++cancelled;
      return grpc::Status::CANCELLED;
    }
    NamespaceId id;
    id.bytes.fill('n');
    BlockKey key;
    std::memcpy(key.bytes.data(), request->keys().packed().data(), 32);
    const std::vector<std::byte> block = testing::MakeBlock(0, key, kBlock);
    v1::BlockFrame frame;
    frame.set_block_bytes(kBlock);
    frame.set_checksum(BlockChecksum(ChecksumSeed(id, key, kBlock), block.data(), kBlock));
    frame.set_payload(block.data(), block.size());
    writer->Write(frame);
    return grpc::Status::OK;
  }
  std::atomic<bool> hang_next{false};
  std::atomic<int> cancelled{0};
};

TEST(RemoteHedgeTest, AReadThatHangsIsAskedForOnceMore) {
  client::UseGrpc();
  SlowNode node;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&node);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ClientOptions options;
  options.endpoint = "kvarve://127.0.0.1:" + std::to_string(port);
  options.staging_bytes = 0;
  options.timeout_nanos = options.put_timeout_nanos = kLong;
  options.hedge_reads = true;
  const auto client = Client::Create(options).value();
  const ClientNamespace ns = *client->OpenNamespace(OpaqueNamespace("m", kBlock));
  const std::vector<BlockKey> keys = testing::KeyChain(1, 1);
  // So many that what takes long is known, and that some may be asked for twice.
  // A busy machine may have made some already.
  for (uint64_t i = 0; i < 60 || (client->State().hedged_reads + 2) * 10 > i; ++i) {
    ASSERT_LT(i, 5000u);
    ASSERT_EQ(Get(*client, ns, keys), 1u);
  }
  const uint64_t before = client->State().hedged_reads;
  node.hang_next = true;
  EXPECT_EQ(Get(*client, ns, keys), 1u);  // else it hangs for a minute
  EXPECT_GT(client->State().hedged_reads, before);
  EXPECT_TRUE(Eventually([&] { return node.cancelled == 1; }));  // the loser is told
  // Without being asked to, a client does not.
  options.hedge_reads = false;
  options.put_timeout_nanos = 300'000'000;
  const auto plain = Client::Create(options).value();
  const ClientNamespace same = *plain->OpenNamespace(OpaqueNamespace("m", kBlock));
  ASSERT_EQ(plain->WaitReady(kLong), absl::OkStatus());
  node.hang_next = true;
  std::vector<std::byte> memory(kBlock);
  std::byte* const to[] = {memory.data()};
  EXPECT_EQ(plain->Get(same, keys, to).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(plain->State().hedged_reads, 0u);
  EXPECT_TRUE(Eventually([&] { return node.cancelled == 2; }));
  server->Shutdown();
}

}  // namespace
}  // namespace kvarve
