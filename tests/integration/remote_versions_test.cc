// Goal: a client gets on with daemons of other versions, and what it sends is what protobuf reads.
// Method: real clients against small services of protobuf's own making.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>

#include "client/cpp/client.h"
#include "client/rpc/grpc_plane.h"
#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "storage/base/mutex.h"
#include "storage/block/checksum.h"
#include "storage/testing/block_generator.h"
#include "tests/integration/remote_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using testing::KeyChain;
using testing::MakeBlock;

class OtherDaemon final : public v1::KvCache::Service {
 public:
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override {
    if (newest_only) {
      return {grpc::FAILED_PRECONDITION, "no common version: the daemon knows 7 to 9, the client " +
                                             std::to_string(request->version_min())};
    }
    reply->set_version(1);
    reply->set_incarnation(5);
    reply->mutable_limits()->set_max_blocks_per_write_frame(blocks_per_write_frame);
    if (!opens) return grpc::Status::OK;  // as daemons did before they opened namespaces here
    for (const v1::NamespaceClaim& claim : request->namespaces()) {
      const absl::StatusOr<NamespaceDescriptor> descriptor = DecodeDescriptor(claim.canonical());
      v1::Namespace* const ns = reply->add_namespaces()->mutable_opened();
      ns->set_ns_id(std::string(16, 'n'));
      ns->set_block_bytes(descriptor->block_bytes);
      ns->set_key_bytes(descriptor->key_bytes);
    }
    return grpc::Status::OK;
  }
  // Whatever the test wants to be sent.
  grpc::Status ReadRun(grpc::ServerContext*, const v1::ReadRunRequest*,
                       grpc::ServerWriter<v1::BlockFrame>* writer) override {
    MutexLock lock(&mutex_);
    writer->Write(frame_);
    return grpc::Status::OK;
  }
  grpc::Status WriteRun(grpc::ServerContext*, grpc::ServerReader<v1::WriteFrame>* reader,
                        v1::WriteRunReply* reply) override {
    v1::WriteFrame frame;
    reader->Read(&frame);
    const size_t keys = frame.open().keys().packed().size() / 32;
    MutexLock lock(&mutex_);
    written_.clear();
    while (reader->Read(&frame)) {
      if (frame.more_checksums_size() > 0 && blocks_per_write_frame == 0) {
        return {grpc::INVALID_ARGUMENT, "a frame of more bytes than belong there"};
      }
      written_.push_back(frame);
    }
    for (size_t i = 0; i < keys; ++i) reply->add_results(v1::PUT_STORED);
    return grpc::Status::OK;
  }
  void Send(v1::BlockFrame frame) {
    MutexLock lock(&mutex_);
    frame_ = std::move(frame);
  }
  std::vector<v1::WriteFrame> written() {
    MutexLock lock(&mutex_);
    return written_;
  }
  std::atomic<bool> newest_only{false}, opens{true};  // a client says hello when it likes
  std::atomic<uint32_t> blocks_per_write_frame{0};    // 0: as daemons that did not know of it

 private:
  Mutex mutex_;
  v1::BlockFrame frame_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WriteFrame> written_ ABSL_GUARDED_BY(mutex_);
};

class OtherDaemonTest : public ::testing::Test {
 protected:
  OtherDaemonTest() {
    client::UseGrpc();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&daemon_);
    server_ = builder.BuildAndStart();
    options_.endpoint = "kvarve://127.0.0.1:" + std::to_string(port);
    options_.staging_bytes = 8 << 20;
    options_.timeout_nanos = options_.put_timeout_nanos = kLong;
    client_ = Client::Create(options_).value();
    ns_ = *client_->OpenNamespace(TestDescriptor(4096));
  }
  absl::StatusOr<size_t> Get() {
    std::vector<std::byte> block(4096);
    std::byte* const to = block.data();
    const BlockKey key = KeyChain(1, 1)[0];
    return client_->Get(ns_, {&key, 1}, {&to, 1});
  }
  OtherDaemon daemon_;
  std::unique_ptr<grpc::Server> server_;
  ClientOptions options_;
  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
};

// Small blocks share a frame where the daemon takes that; every frame is what protobuf reads.
TEST_F(OtherDaemonTest, FramesOfAPut) {
  NamespaceId id;
  id.bytes.fill('n');
  for (const uint64_t bytes : {4096, 100'000, 700'000}) {
    for (const uint32_t most : {0, 1, 7, 1000}) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes, " + std::to_string(most));
      daemon_.blocks_per_write_frame = most;
      const std::unique_ptr<Client> client = Client::Create(options_).value();
      const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(bytes));
      const std::vector<BlockKey> keys = KeyChain(1, bytes == 4096 ? 150 : 5);
      std::string all;
      for (const BlockKey& key : keys) {
        const std::vector<std::byte> block = MakeBlock(0, key, bytes);
        all.append(reinterpret_cast<const char*>(block.data()), block.size());
      }
      std::vector<const std::byte*> places;
      for (size_t i = 0; i < keys.size(); ++i) {
        places.push_back(reinterpret_cast<const std::byte*>(all.data()) + i * bytes);
      }
      ASSERT_TRUE(client->Put(ns, PutChain{.keys = keys}, places).ok());
      const size_t fit = std::max<size_t>((256 << 10) / bytes, 1);
      const size_t together = std::min({std::max<size_t>(most, 1), fit, size_t{64}});
      std::string got;
      size_t fullest = 0, sums = 0;
      for (const v1::WriteFrame& frame : daemon_.written()) {
        EXPECT_EQ(frame.index(), got.size() / bytes);
        EXPECT_EQ(frame.offset(), got.size() % bytes);
        got += frame.payload();
        if (got.size() % bytes != 0) continue;
        const auto more = static_cast<size_t>(frame.more_checksums_size());
        EXPECT_TRUE(more == 0 || frame.payload().size() == (1 + more) * bytes);
        fullest = std::max(fullest, 1 + more);
        for (size_t i = 0; i <= more; ++i, ++sums) {
          const uint64_t sum =
              i == 0 ? frame.checksum() : frame.more_checksums(static_cast<int>(i) - 1);
          EXPECT_EQ(sum, BlockChecksum(ChecksumSeed(id, keys[sums], bytes), places[sums], bytes));
        }
      }
      EXPECT_TRUE(got == all);
      EXPECT_EQ(sums, keys.size());
      EXPECT_EQ(fullest, std::min(together, keys.size()));
    }
  }
}

// One that takes no frames of several blocks comes in the place of one that does, and the client
// has no reason to say hello.
TEST_F(OtherDaemonTest, AnOlderOneComesInItsPlace) {
  daemon_.blocks_per_write_frame = 64;
  const std::unique_ptr<Client> client = Client::Create(options_).value();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(4096));
  const std::vector<BlockKey> keys = KeyChain(1, 6);
  const std::vector<std::byte> block(4096);
  const std::vector<const std::byte*> places(keys.size(), block.data());
  const auto frames_of_a_put = [&] {
    const auto put = client->Put(ns, PutChain{.keys = keys}, places);
    EXPECT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->size(), keys.size());
    return daemon_.written().size();
  };
  EXPECT_EQ(frames_of_a_put(), 1u);
  daemon_.blocks_per_write_frame = 0;
  EXPECT_EQ(frames_of_a_put(), 6u);
  EXPECT_EQ(frames_of_a_put(), 6u);
}

TEST_F(OtherDaemonTest, OlderAndNewerOnesAreTold) {
  daemon_.opens = false;
  absl::Status status = client_->WaitReady(kLong);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("older version"));
  daemon_.newest_only = true;
  status = client_->WaitReady(kLong);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no common version"));
  daemon_.newest_only = false;
  daemon_.opens = true;
  EXPECT_EQ(client_->WaitReady(kLong), absl::OkStatus());
  // A call that the daemon does not know.
  const BlockKey key = KeyChain(1, 1)[0];
  EXPECT_EQ(client_->Touch(ns_, {&key, 1}, 0).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(OtherDaemonTest, FramesOutOfPlaceAreNoBlocks) {
  v1::BlockFrame good;
  good.set_block_bytes(4096);
  good.set_payload(std::string(4096, 'x'));
  const auto refused = [&](const std::function<void(v1::BlockFrame*)>& spoil) {
    v1::BlockFrame frame = good;
    spoil(&frame);
    daemon_.Send(std::move(frame));
    const absl::StatusOr<size_t> got = Get();
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInternal);
  };
  refused([](v1::BlockFrame* f) { f->set_index(1); });
  refused([](v1::BlockFrame* f) { f->set_offset(1); });
  refused([](v1::BlockFrame* f) { f->set_block_bytes(8192); });
  refused([](v1::BlockFrame* f) { f->set_payload(std::string(4097, 'x')); });
  refused([](v1::BlockFrame* f) { f->clear_payload(); });
  // In its place, but of another checksum; and a stream that ends inside a block.
  daemon_.Send(good);
  EXPECT_EQ(*Get(), 0u);
  EXPECT_EQ(client_->State().checksum_mismatches, 1u);
  good.set_payload("x");
  daemon_.Send(good);
  EXPECT_EQ(*Get(), 0u);
}

}  // namespace
}  // namespace kvarve
