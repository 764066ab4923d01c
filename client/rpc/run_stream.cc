#include "client/rpc/run_stream.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "client/rpc/grpc_status.h"
#include "client/rpc/remote_node.h"

namespace kvarve::client {
namespace {

constexpr char kRetryAfterTrailer[] = "kvarve-retry-after-ms";
constexpr int64_t kMaxRetryAfterMillis = 60'000;

}  // namespace

RunStream::RunStream(NodeLinkPtr link, const char* method, int64_t deadline_nanos)
    : link_(std::move(link)) {
  PrepareContext(&context_, link_->shown->token, deadline_nanos);
  context_.set_initial_metadata_corked(true);
  call_ = link_->generic.PrepareCall(&context_, method, &queue_);
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

bool RunStream::Write(const grpc::ByteBuffer& frame, bool is_last, absl::FunctionRef<bool()> work) {
  grpc::WriteOptions options;
  options.set_no_compression();
  if (is_last) options.set_last_message();
  call_->Write(frame, options, this);
  while (work()) {
    void* tag = nullptr;
    bool ok = false;
    const auto next = queue_.AsyncNext(&tag, &ok, gpr_inf_past(GPR_CLOCK_REALTIME));
    if (next == grpc::CompletionQueue::GOT_EVENT) return ok;
  }
  return Wait();
}

bool RunStream::Read(grpc::ByteBuffer* frame) {
  call_->Read(frame, this);
  return Wait();
}

void RunStream::StartRead(grpc::ByteBuffer* frame) {
  call_->Read(frame, this);
  reads_ = true;
}

std::optional<bool> RunStream::EndRead(int64_t nanos) {
  void* tag = nullptr;
  bool ok = false;
  const auto until = std::chrono::system_clock::now() + std::chrono::nanoseconds(nanos);
  if (queue_.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::TIMEOUT) return std::nullopt;
  reads_ = false;
  return ok;
}

absl::Status RunStream::Finish() {
  finished_ = true;
  if (std::exchange(reads_, false)) Wait();
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
