#include "tests/perf/bare_stream.h"

#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/testing/free_port.h"
#include "tests/perf/bare_stream_wire.h"

namespace kvarve::perf {
namespace {

constexpr auto kDeadline = std::chrono::seconds(120);

class ProcessStream final : public BareStream {
 public:
  ProcessStream(int pid, int port, const std::string& tls) : pid_(pid) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    const auto credentials =
        tls.empty()
            ? grpc::InsecureChannelCredentials()
            : grpc::SslCredentials({ReadText(tls + "/ca.pem"), ReadText(tls + "/client.key"),
                                    ReadText(tls + "/client.pem")});
    channel_ =
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), credentials, arguments);
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
  }
  ~ProcessStream() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool WaitConnected() {
    return channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  int pid() const override { return pid_; }

  void Read(size_t block_bytes, size_t count, std::span<std::byte> memory) override {
    Call call(stub_.get(), BareRequest{true, block_bytes, count});
    grpc::ByteBuffer message;
    size_t at = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
      KV_CHECK(call.Read(&message));
      if (at + block_bytes > memory.size()) at = 0;
      sum += TakeMessage(message, &memory[at], block_bytes);
      at += block_bytes;
    }
    KV_CHECK(!call.Read(&message));
    call.Finish();
    [[maybe_unused]] static std::atomic<uint64_t> used;  // the sums are
    used = sum;
  }
  void Write(size_t block_bytes, size_t count, std::span<const std::byte> memory) override {
    Call call(stub_.get(), BareRequest{false, block_bytes, count});
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      if (at + block_bytes > memory.size()) at = 0;
      KV_CHECK(call.Write(MakeMessage(&memory[at], block_bytes)));
      at += block_bytes;
    }
    grpc::ByteBuffer answer;
    KV_CHECK(call.Read(&answer));
    call.Finish();
  }

 private:
  // A stream on a completion queue of its own, polled by the caller: the cheapest client there is.
  class Call {
   public:
    Call(grpc::GenericStub* stub, const BareRequest& request) {
      context_.set_deadline(std::chrono::system_clock::now() + kDeadline);
      call_ = stub->PrepareCall(&context_, kBareMethod, &queue_);
      call_->StartCall(this);
      KV_CHECK(Wait());
      const grpc::Slice slice(&request, sizeof(request));
      KV_CHECK(Write(grpc::ByteBuffer(&slice, 1)));
    }
    ~Call() {
      queue_.Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue_.Next(&tag, &ok)) {
      }
    }
    bool Write(const grpc::ByteBuffer& message) {
      call_->Write(message, this);
      return Wait();
    }
    bool Read(grpc::ByteBuffer* message) {
      call_->Read(message, this);
      return Wait();
    }
    void Finish() {
      grpc::Status status;
      call_->Finish(&status, this);
      Wait();
      KV_CHECK(status.ok());
    }

   private:
    bool Wait() {
      void* tag = nullptr;
      bool ok = false;
      return queue_.Next(&tag, &ok) && ok;
    }
    grpc::ClientContext context_;
    grpc::CompletionQueue queue_;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  };

  const int pid_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

}  // namespace

double ProcessCpuSeconds(int pid) {
  clockid_t clock{};
  timespec used{};
  KV_CHECK(::clock_getcpuclockid(pid, &clock) == 0 && ::clock_gettime(clock, &used) == 0);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

absl::StatusOr<std::unique_ptr<BareStream>> BareStream::Start(const std::string& tls) {
  const int port = FreePort();
  if (port == 0) return absl::UnavailableError("no free port");
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program = (self.parent_path() / "kvarve_bare_stream").string();
  const std::string number = std::to_string(port);
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid < 0) return absl::UnavailableError("fork failed");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::execl(program.c_str(), program.c_str(), number.c_str(), tls.empty() ? nullptr : tls.c_str(),
            nullptr);
    ::_exit(127);
  }
  auto stream = std::make_unique<ProcessStream>(pid, port, tls);
  if (!stream->WaitConnected()) return absl::DeadlineExceededError("it does not answer");
  return stream;
}

}  // namespace kvarve::perf
