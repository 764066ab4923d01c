// kvarve_bare_stream PORT [FOLDER_OF_TLS]: the bare gRPC server of bare_stream.h, over gRPC's
// callbacks.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <string>

#include "storage/base/freed_memory.h"
#include "storage/base/status_macros.h"
#include "tests/perf/bare_stream.h"
#include "tests/perf/bare_stream_wire.h"

namespace kvarve::perf {
namespace {

class Reactor final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Reactor(std::byte* memory) : memory_(memory) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (request_.count == 0) {
      grpc::Slice slice;
      KV_CHECK(message_.DumpToSingleSlice(&slice).ok() && slice.size() == sizeof(request_));
      std::memcpy(&request_, slice.begin(), sizeof(request_));
      return request_.is_read != 0 ? Send() : StartRead(&message_);
    }
    sink_ = sink_ + TakeMessage(message_, Next(), request_.block_bytes);
    if (++done_ < request_.count) return StartRead(&message_);
    const grpc::Slice answer(std::string("done"));
    message_ = grpc::ByteBuffer(&answer, 1);
    StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || ++done_ == request_.count) return Finish(grpc::Status::OK);
    Send();
  }
  void OnDone() override { delete this; }

 private:
  void Send() {
    message_ = MakeMessage(Next(), request_.block_bytes);
    StartWrite(&message_);
  }
  std::byte* Next() {
    if (at_ + request_.block_bytes > BareStream::kServerBytes) at_ = 0;
    std::byte* const next = memory_ + at_;
    at_ += request_.block_bytes;
    return next;
  }

  std::byte* const memory_;
  size_t at_ = 0, done_ = 0;
  BareRequest request_;
  grpc::ByteBuffer message_;
  volatile uint64_t sink_ = 0;
};

class Service final : public grpc::CallbackGenericService {
 public:
  // Memory of the kind that the arena is.
  Service()
      : memory_(static_cast<std::byte*>(::mmap(nullptr, BareStream::kServerBytes,
                                               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                               -1, 0))) {
    KV_CHECK(memory_ != MAP_FAILED);
    ::madvise(memory_, BareStream::kServerBytes, MADV_HUGEPAGE);
    std::memset(memory_, 0x5a, BareStream::kServerBytes);
  }
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor(memory_);
  }

 private:
  std::byte* const memory_;
};

std::shared_ptr<grpc::ServerCredentials> Credentials(const std::string& tls) {
  if (tls.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = ReadText(tls + "/ca.pem");
  options.pem_key_cert_pairs = {{ReadText(tls + "/server.key"), ReadText(tls + "/server.pem")}};
  return grpc::SslServerCredentials(options);
}

int Main(int argc, char** argv) {
  KV_CHECK(argc == 2 || argc == 3);
  KeepFreedMemory();  // as kvarved does
  Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(std::string("127.0.0.1:") + argv[1],
                           Credentials(argc > 2 ? argv[2] : ""));
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace kvarve::perf

int main(int argc, char** argv) { return kvarve::perf::Main(argc, argv); }
