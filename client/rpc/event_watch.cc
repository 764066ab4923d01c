#include "client/rpc/event_watch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/backoff.h"
#include "client/cpp/fork_guard.h"
#include "client/rpc/run_stream.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {
namespace {

constexpr char kMethod[] = "/kvarve.v1.KvCache/WatchEvents";
constexpr int64_t kFirstPauseNanos = 50'000'000, kLongestPauseNanos = 1'000'000'000;
// Longer ones are as good as this, and their end is a number of nanoseconds.
constexpr int64_t kLongestWatchNanos = int64_t{365} * 24 * 3600 * 1'000'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

EventKind KindOf(int kind) {
  return kind >= 0 && kind <= static_cast<int>(EventKind::kCleared) ? static_cast<EventKind>(kind)
                                                                    : EventKind::kUnknown;
}
BlockTier TierOf(int tier) {
  return tier >= 0 && tier <= static_cast<int>(BlockTier::kNvme) ? static_cast<BlockTier>(tier)
                                                                 : BlockTier::kNone;
}

absl::StatusOr<EventBatch> BatchOf(const grpc::ByteBuffer& buffer) {
  v1::EventBatch told;
  grpc::Slice bytes;
  if (!buffer.DumpToSingleSlice(&bytes).ok() ||
      !told.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size()))) {
    return absl::InternalError("the daemon's events are none");
  }
  EventBatch batch;
  batch.next = {told.incarnation(), told.next_sequence()};
  for (const v1::Event& event : told.events()) {
    BlockEvent& of = batch.events.emplace_back();
    if (event.ns_id().size() != of.ns.bytes.size() || event.key().size() > of.key.bytes.size()) {
      return absl::InternalError("the daemon's events are none");
    }
    of.sequence = event.sequence();
    of.kind = KindOf(event.kind());
    std::memcpy(of.ns.bytes.data(), event.ns_id().data(), of.ns.bytes.size());
    std::memcpy(of.key.bytes.data(), event.key().data(), event.key().size());
    of.key_bytes = static_cast<uint32_t>(event.key().size());
    of.depth = event.depth();
    of.tier = TierOf(event.tier());
  }
  return batch;
}

class EventWatch final : public EventStream {
 public:
  EventWatch(RemoteNode* node, const EventCursor& from, int64_t deadline_nanos)
      : node_(node), deadline_(deadline_nanos), next_(from) {}
  ~EventWatch() override {
    if (!stamp_.InChild()) return;
    // Their locks and threads are the parent's.
    static_cast<void>(new (std::nothrow) std::shared_ptr<RunStream>(std::move(stream_)));
    static_cast<void>(new (std::nothrow) NodeLinkPtr(std::move(link_)));
  }

  // The daemon's first batch says where the stream begins.
  absl::Status Begin(int64_t nanos) {
    const int64_t end = Now() + nanos;
    if (!node_->in_child() && !IsConnected(nanos)) {
      const std::string error = node_->State().last_error;
      return absl::UnavailableError(error.empty() ? "not connected to kvarved" : error);
    }
    KV_RETURN_IF_ERROR(node_->Call([&]() -> absl::Status {
      Open();
      const std::optional<bool> came = stream_->EndRead(std::max<int64_t>(end - Now(), 0));
      if (!came) return absl::DeadlineExceededError("no answer");
      if (!*came) return Close();
      KV_ASSIGN_OR_RETURN(first_, Take());
      return absl::OkStatus();
    }));
    return absl::OkStatus();
  }

  absl::StatusOr<EventBatch> Next(int64_t nanos) override {
    if (stamp_.InChild()) {
      return absl::FailedPreconditionError(
          "a watch does not work in a forked child: begin another");
    }
    if (first_) return *std::exchange(first_, std::nullopt);
    if (!over_.ok()) return over_;
    const int64_t until = std::min(Now() + std::max<int64_t>(nanos, 0), deadline_);
    absl::StatusOr<std::optional<EventBatch>> batch = Await(until);
    if (!batch.ok()) {
      over_ = batch.status();
      return over_;
    }
    if (!batch->has_value()) return EventBatch{next_, {}};
    return **std::move(batch);
  }

  void Cancel() override {
    if (stamp_.InChild()) return;
    std::shared_ptr<RunStream> stream;
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
      stream = shared_;
    }
    changed_.notify_all();
    if (stream != nullptr) stream->Cancel();
  }

 private:
  // Nothing: it did not come by then.
  absl::StatusOr<std::optional<EventBatch>> Await(int64_t until) {
    while (true) {
      if (IsCancelled()) return absl::CancelledError("the watch was cancelled");
      if (stream_ == nullptr && !Reopen(until)) break;
      const std::optional<bool> came = stream_->EndRead(std::max<int64_t>(until - Now(), 0));
      if (!came) break;
      if (*came) {
        KV_ASSIGN_OR_RETURN(std::optional<EventBatch> batch, Take());
        return batch;
      }
      KV_RETURN_IF_ERROR(GoesOn(Close()));
    }
    if (Now() >= deadline_) return absl::DeadlineExceededError("the watch's time is over");
    return std::optional<EventBatch>();
  }

  void Open() {
    link_ = node_->link();
    auto stream = std::make_shared<RunStream>(link_, kMethod, deadline_);
    {
      MutexLock lock(&mutex_);
      shared_ = stream;
      if (cancelled_) stream->Cancel();
    }
    stream_ = std::move(stream);
    v1::WatchEventsRequest request;
    request.set_from_sequence(next_.sequence);
    request.set_incarnation(next_.incarnation);
    const grpc::Slice slice(request.SerializeAsString());
    stream_->Write(grpc::ByteBuffer(&slice, 1), /*is_last=*/true);
    stream_->StartRead(&frame_);
  }

  bool IsConnected(int64_t nanos) {
    return node_->link()->channel->WaitForConnected(std::chrono::system_clock::now() +
                                                    std::chrono::nanoseconds(nanos));
  }

  // After a pause, when there is a connection.
  bool Reopen(int64_t until) {
    while (true) {
      {
        MutexLock lock(&mutex_);
        const int64_t end = std::min(reopens_at_, until);
        for (int64_t now = Now(); !cancelled_ && now < end; now = Now()) {
          changed_.wait_for(mutex_, std::chrono::nanoseconds(end - now));
        }
        if (cancelled_) return false;
      }
      const int64_t left = until - Now();
      if (left <= 0) return false;
      if (!IsConnected(std::min(left, kFirstPauseNanos))) continue;
      Open();
      return true;
    }
  }

  // A frame that came; asks for the next.
  absl::StatusOr<EventBatch> Take() {
    KV_ASSIGN_OR_RETURN(EventBatch batch, BatchOf(frame_));
    frame_.Clear();
    next_ = batch.next;
    pauses_.Reset();
    stream_->StartRead(&frame_);
    return batch;
  }

  // Why the stream ended.
  absl::Status Close() {
    {
      MutexLock lock(&mutex_);
      shared_ = nullptr;
    }
    const std::shared_ptr<RunStream> stream = std::exchange(stream_, nullptr);
    const absl::Status status = stream->Finish();
    if (!absl::IsOutOfRange(status)) return status;
    return absl::OutOfRangeError(absl::StrCat("events were missed (", status.message(),
                                              "): take stock anew, and watch from now on"));
  }

  // OK: the stream is opened again, where it was.
  absl::Status GoesOn(const absl::Status& status) {
    if (Now() >= deadline_) return absl::DeadlineExceededError("the watch's time is over");
    if (IsCancelled()) return absl::CancelledError("the watch was cancelled");
    const bool renewed = absl::IsUnauthenticated(status) && node_->Renewed(link_);
    // Cancelled by the daemon: the credentials are over, or this watcher was slow.
    if (!renewed && !absl::IsUnavailable(status) && !absl::IsCancelled(status) && !status.ok() &&
        !absl::IsResourceExhausted(status)) {
      return status;
    }
    MutexLock lock(&mutex_);
    reopens_at_ = Now() + pauses_.Next();
    return absl::OkStatus();
  }

  bool IsCancelled() {
    MutexLock lock(&mutex_);
    return cancelled_;
  }

  RemoteNode* const node_;
  const int64_t deadline_;
  const ForkStamp stamp_;
  EventCursor next_;
  absl::Status over_;
  std::optional<EventBatch> first_;
  Backoff pauses_{kFirstPauseNanos, kLongestPauseNanos};
  NodeLinkPtr link_;  // of stream_
  grpc::ByteBuffer frame_;
  std::shared_ptr<RunStream> stream_;
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<RunStream> shared_ ABSL_GUARDED_BY(mutex_);  // for Cancel
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t reopens_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EventStream>> WatchEvents(RemoteNode* node, int64_t timeout_nanos,
                                                         int64_t begin_nanos,
                                                         const EventCursor& from) {
  const int64_t timeout = std::min(timeout_nanos, kLongestWatchNanos);
  auto watch = std::make_unique<EventWatch>(node, from, Now() + timeout);
  KV_RETURN_IF_ERROR(watch->Begin(std::min(begin_nanos, timeout)));
  return watch;
}

}  // namespace kvarve::client
