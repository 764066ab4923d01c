// A real server over a real cache on a loopback port, and what its tests say to it through plain
// generated stubs: any gRPC client can do the same.
#ifndef KVARVE_SERVICES_RPC_RPC_FIXTURE_TESTING_H_
#define KVARVE_SERVICES_RPC_RPC_FIXTURE_TESTING_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "services/rpc/rpc_server.h"
#include "storage/block/checksum.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve {

inline NamespaceDescriptor TestDescriptor(uint64_t block_bytes, std::string model = "model") {
  return OpaqueNamespace(std::move(model), block_bytes);
}

class RpcFixture : public ::testing::Test {
 protected:
  static constexpr char kToken[] = "a-token-of-the-test-0123456789";

  RpcFixture() {
    char name[] = "/tmp/kvarve_rpc_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    options_.auth.token_file = folder_ + "/token";
    std::ofstream(options_.auth.token_file) << kToken << "\n";
    ::chmod(options_.auth.token_file.c_str(), 0600);
    options_.listen = *ParseListenAddress("127.0.0.1:0");
    options_.auth.default_tenant = "team";
    cache_options_.arena.capacity_bytes = 128ull << 20;
    cache_options_.arena.chunk_bytes = 32ull << 20;
    cache_options_.arena.huge_pages = false;
    cache_options_.arena.prefault = false;
    cache_options_.event_window = 1024;
    store_options_.complete = [](const std::string& tenant, NamespaceDescriptor descriptor,
                                 const NamespaceDigest&) {
      descriptor.tenant = tenant;
      return descriptor;
    };
  }
  ~RpcFixture() override {
    server_.reset();
    store_.reset();
    if (cache_ != nullptr) {
      EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
      EXPECT_EQ(cache_->Stats().leased_bytes, 0u);
    }
    ::unlink(options_.auth.token_file.c_str());
    ::rmdir(folder_.c_str());
  }
  void Start() {
    cache_ = *Cache::Create(cache_options_);
    store_ = BlockStoreOf(cache_.get(), store_options_);
    Serve();
  }
  // A server with the options as they are now, in the place of the one before.
  void Serve() {
    server_.reset();
    auto server = RpcServer::Start(options_, store_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::KvCache::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                                     grpc::InsecureChannelCredentials()));
  }
  static void Prepare(grpc::ClientContext* context, int seconds = 20) {
    context->AddMetadata("authorization", std::string("Bearer ") + kToken);
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  }
  template <typename Method, typename Request, typename Reply>
  grpc::Status Call(Method method, const Request& request, Reply* reply) {
    grpc::ClientContext context;
    Prepare(&context);
    return (stub_.get()->*method)(&context, request, reply);
  }

  // Through Hello, as clients do.
  v1::Namespace Open(const NamespaceDescriptor& descriptor) {
    v1::HelloRequest request;
    request.set_version_min(1);
    request.set_version_max(1);
    v1::NamespaceClaim* const claim = request.add_namespaces();
    claim->set_canonical(EncodeDescriptor(descriptor));
    const NamespaceDigest digest = DigestOf(descriptor);
    claim->set_digest(digest.bytes.data(), digest.bytes.size());
    v1::HelloReply reply;
    const grpc::Status status = Call(&v1::KvCache::Stub::Hello, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.namespaces_size(), 1);
    EXPECT_EQ(reply.namespaces(0).code(), 0u) << reply.namespaces(0).message();
    return reply.namespaces(0).opened();
  }

  // Frames of at most `payload` bytes; stops when the server has heard enough.
  struct Written {
    grpc::Status status;
    std::vector<v1::PutResult> results;
    uint32_t retry_after_ms = 0;
  };
  Written Write(const v1::WriteRunOpen& open, const std::vector<std::string>& blocks,
                size_t payload = 1 << 20,
                const std::function<void(v1::WriteFrame*)>& spoil = nullptr) {
    grpc::ClientContext context;
    Prepare(&context);
    v1::WriteRunReply reply;
    const auto writer = stub_->WriteRun(&context, &reply);
    v1::WriteFrame frame;
    *frame.mutable_open() = open;
    if (spoil) spoil(&frame);
    bool more = writer->Write(frame);
    for (size_t i = 0; i < blocks.size() && more; ++i) {
      for (size_t at = 0; at < blocks[i].size() && more; at += payload) {
        frame.Clear();
        frame.set_index(static_cast<uint32_t>(i));
        frame.set_offset(at);
        frame.set_payload(blocks[i].substr(at, payload));
        if (spoil) spoil(&frame);
        more = writer->Write(frame);
      }
    }
    if (more) writer->WritesDone();
    Written written;
    written.status = writer->Finish();
    for (const int result : reply.results())
      written.results.push_back(static_cast<v1::PutResult>(result));
    written.retry_after_ms = reply.retry_after_ms();
    return written;
  }
  v1::WriteRunOpen OpenOf(const v1::Namespace& ns, const std::string& packed) {
    v1::WriteRunOpen open;
    open.set_ns_id(ns.ns_id());
    open.mutable_keys()->set_key_bytes(ns.key_bytes());
    open.mutable_keys()->set_packed(packed);
    return open;
  }

  struct Got {
    grpc::Status status;
    std::vector<std::string> blocks;
    std::string retry_after;  // the trailer
  };
  Got Read(const v1::Namespace& ns, const std::string& packed) {
    grpc::ClientContext context;
    Prepare(&context);
    v1::ReadRunRequest request;
    request.set_ns_id(ns.ns_id());
    request.mutable_keys()->set_key_bytes(ns.key_bytes());
    request.mutable_keys()->set_packed(packed);
    const auto reader = stub_->ReadRun(&context, request);
    Got got;
    v1::BlockFrame frame;
    while (reader->Read(&frame)) {
      EXPECT_EQ(frame.block_bytes(), ns.block_bytes());
      if (frame.offset() == 0) got.blocks.emplace_back();
      EXPECT_EQ(frame.index() + 1, got.blocks.size());
      EXPECT_EQ(frame.offset(), got.blocks.back().size());
      got.blocks.back() += frame.payload();
      if (got.blocks.back().size() == ns.block_bytes()) {
        EXPECT_EQ(frame.checksum(), ChecksumOf(ns, packed, frame.index(), got.blocks.back()));
      }
    }
    got.status = reader->Finish();
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto found = trailers.find("kvarve-retry-after-ms"); found != trailers.end())
      got.retry_after.assign(found->second.data(), found->second.size());
    return got;
  }
  static uint64_t ChecksumOf(const v1::Namespace& ns, const std::string& packed, size_t i,
                             const std::string& block) {
    NamespaceId id;
    std::memcpy(id.bytes.data(), ns.ns_id().data(), id.bytes.size());
    BlockKey key;
    std::memcpy(key.bytes.data(), packed.data() + i * ns.key_bytes(), ns.key_bytes());
    return BlockChecksum(ChecksumSeed(id, key, block.size()), block.data(), block.size());
  }

  static std::string RandomBytes(size_t size, std::mt19937_64& random) {
    std::string bytes(size, '\0');
    for (size_t at = 0; at < size; at += 8) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, size - at));
    }
    return bytes;
  }
  // Polls until `done`: what happens in threads of gRPC has no other end to wait for.
  static bool Eventually(const std::function<bool()>& done, int seconds = 60) {
    for (int i = 0; i < seconds * 200; ++i) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return done();
  }

  std::string folder_;
  RpcServerOptions options_;
  CacheOptions cache_options_;
  BlockStoreOptions store_options_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::KvCache::Stub> stub_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_RPC_FIXTURE_TESTING_H_
