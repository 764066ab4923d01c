#include "client/rpc/hedged_read.h"

#include <algorithm>

#include "storage/base/clock.h"

namespace kvarve::client {
namespace {

constexpr int64_t kRaceNanos = 200'000;  // how long each of two streams is listened to in turn
// gRPC ends a stream at its deadline by itself; nothing waits much longer.
constexpr int64_t kAfterDeadlineNanos = 2'000'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

}  // namespace

HedgedRead::HedgedRead(RemoteNode* node, Hedge* hedge, const char* method,
                       const grpc::ByteBuffer& request, int64_t deadline_nanos)
    : node_(node),
      hedge_(hedge),
      method_(method),
      request_(request),
      deadline_(deadline_nanos),
      stream_(std::make_unique<RunStream>(node->link(), method, deadline_nanos)) {
  is_open_ = stream_->Write(request_, /*is_last=*/true);
}

bool HedgedRead::First(grpc::ByteBuffer* frame) {
  if (!is_open_) return false;
  if (hedge_ == nullptr) return stream_->Read(frame);
  const int64_t begin = Now();
  stream_->StartRead(&frame_);
  const std::optional<int64_t> delay = hedge_->Delay();
  std::optional<bool> came = stream_->EndRead(delay.value_or(deadline_ - begin));
  if (!came && delay && hedge_->Take()) came = Race();
  if (!came) came = stream_->EndRead(std::max<int64_t>(deadline_ - Now(), 0) + kAfterDeadlineNanos);
  if (!came.value_or(false)) return false;
  hedge_->Answered(Now() - begin);
  *frame = frame_;
  frame_.Clear();
  return true;
}

std::optional<bool> HedgedRead::Race() {
  auto other = std::make_unique<RunStream>(node_->other_link(), method_, deadline_);
  if (!other->Write(request_, /*is_last=*/true)) return std::nullopt;
  other->StartRead(&other_frame_);
  std::optional<bool> first, second;
  // A stream that ends without a frame has not won while the other may still answer.
  while (!first || !second) {
    if (!first) first = stream_->EndRead(kRaceNanos);
    if (first.value_or(false)) break;
    if (!second) second = other->EndRead(kRaceNanos);
    if (!second.value_or(false)) continue;
    stream_.swap(other);
    other.reset();  // its read ends first: it has frame_ to write to
    frame_ = other_frame_;
    return true;
  }
  return first;
}

}  // namespace kvarve::client
