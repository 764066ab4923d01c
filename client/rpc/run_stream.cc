#include "client/rpc/run_stream.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "client/rpc/grpc_status.h"
#include "client/rpc/remote_node.h"

namespace kvarve::client {
namespace {

constexpr char kRetryAfterTrailer[] = "kvarve-retry-after-ms";
constexpr int64_t kMaxRetryAfterMillis = 60'000;

}  // namespace

RunStream::RunStream(grpc::GenericStub* stub, const char* method, const std::string& token,
                     int64_t deadline_nanos) {
  PrepareContext(&context_, token, deadline_nanos);
  context_.set_initial_metadata_corked(true);
  call_ = stub->PrepareCall(&context_, method, &queue_);
  call_->StartCall(this);  // corked: it completes with the first write, not by itself
}

RunStream::~RunStream() {
  if (!finished_) {
    context_.TryCancel();
    Finish().IgnoreError();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

// One operation is under way at a time.
bool RunStream::Wait() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

bool RunStream::Write(const grpc::ByteBuffer& frame, bool is_last) {
  grpc::WriteOptions options;
  options.set_no_compression();
  if (is_last) options.set_last_message();
  call_->Write(frame, options, this);
  return Wait();
}

bool RunStream::Read(grpc::ByteBuffer* frame) {
  call_->Read(frame, this);
  return Wait();
}

absl::Status RunStream::Finish() {
  finished_ = true;
  grpc::Status status;
  call_->Finish(&status, this);
  Wait();
  return FromGrpc(status);
}

int64_t RunStream::retry_after_nanos() const {
  const auto& trailers = context_.GetServerTrailingMetadata();
  const auto found = trailers.find(kRetryAfterTrailer);
  if (found == trailers.end()) return 0;
  int64_t millis = 0;
  const char* const begin = found->second.data();
  std::from_chars(begin, begin + found->second.size(), millis);
  return std::clamp<int64_t>(millis, 0, kMaxRetryAfterMillis) * 1'000'000;
}

}  // namespace kvarve::client
