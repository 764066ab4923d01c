// A server whose store counts without a lock, in one kind of call: `rpc_planted_race Lookup` (a
// unary call), `Acquire` (a stream that is written to), `BeginPut` (one that is read from). Two
// clients call once each, and the calls meet; ThreadSanitizer must say so. Built under it only.
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "services/rpc/fake_store_testing.h"
#include "services/rpc/rpc_server.h"

namespace kvarve {
namespace {

constexpr char kToken[] = "a-token-of-the-test-0123456789";
constexpr int kClients = 2;

class PlantedStore final : public FakeStore {
 public:
  size_t Lookup(NamespaceHandle, std::span<const BlockKey>, size_t*, uint32_t) override {
    Meet();
    ++counted_;  // the race
    return 0;
  }
  BlockLease Acquire(const NamespaceInfo&, std::span<const BlockKey>, uint64_t) override {
    Meet();
    ++counted_;  // the race
    return {};
  }
  absl::StatusOr<std::unique_ptr<BlockPut>> BeginPut(const PutRequest&) override {
    Meet();
    ++counted_;  // the race
    return absl::UnavailableError("it is planted");
  }

 private:
  // Waits for the other call without ordering the two: kvarve's locks around them would, if one
  // came after the other.
  void Meet() {
    inside_.fetch_add(1, std::memory_order_relaxed);
    while (inside_.load(std::memory_order_relaxed) < kClients) std::this_thread::yield();
  }

  std::atomic<int> inside_{0};
  uint64_t counted_ = 0;
};

class Client {
 public:
  explicit Client(int port)
      : stub_(v1::KvCache::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                       grpc::InsecureChannelCredentials()))) {}

  void CallOnce(std::string_view method) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (method == "Lookup") {
      v1::LookupRequest request;
      Fill(&request);
      v1::LookupReply reply;
      stub_->Lookup(&context, request, &reply);
    } else if (method == "Acquire") {
      v1::ReadRunRequest request;
      Fill(&request);
      v1::BlockFrame frame;
      const auto reader = stub_->ReadRun(&context, request);
      while (reader->Read(&frame)) {
      }
      reader->Finish();
    } else {
      Write(&context);
    }
  }

 private:
  template <typename Message>
  static void Fill(Message* message) {
    message->set_ns_id(std::string(16, 0x10));
    message->mutable_keys()->set_key_bytes(32);
    message->mutable_keys()->set_packed(std::string(32, 'k'));
  }
  void Write(grpc::ClientContext* context) {
    v1::WriteRunReply reply;
    const auto writer = stub_->WriteRun(context, &reply);
    v1::WriteFrame frame;
    Fill(frame.mutable_open());
    writer->Write(frame);
    frame.Clear();
    frame.set_payload(std::string(4096, 'z'));
    writer->Write(frame);
    writer->WritesDone();
    writer->Finish();
  }

  const std::unique_ptr<v1::KvCache::Stub> stub_;
};

int Run(std::string_view method) {
  char token_file[] = "/tmp/kvarve_race_XXXXXX";
  const int fd = ::mkstemp(token_file);  // mode 0600
  if (fd < 0) return 1;
  ::close(fd);
  std::ofstream(token_file) << kToken << "\n";
  RpcServerOptions options;
  options.auth.token_file = token_file;
  options.auth.default_tenant = "team";
  options.listen = *ParseListenAddress("127.0.0.1:0");
  PlantedStore store;
  auto server = RpcServer::Start(options, &store);
  ::unlink(token_file);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      Client client((*server)->port());
      client.CallOnce(method);
    });
  }
  for (std::thread& client : clients) client.join();
  return 0;
}

}  // namespace
}  // namespace kvarve

int main(int argc, char** argv) { return argc == 2 ? kvarve::Run(argv[1]) : 2; }
