#include "services/rpc/streams.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"

namespace kvarve {
namespace {

constexpr int64_t kLooksPerStall = 8;
constexpr int64_t kMaxLookNanos = 500'000'000;
constexpr int64_t kMinLookNanos = 5'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

}  // namespace

void Streams::Stream::Waits() { waits_since_.store(Now(), std::memory_order_relaxed); }

bool Streams::Stream::TakeBytes(uint64_t bytes) {
  MutexLock lock(&streams_->mutex_);
  Use& use = streams_->of_tenant_[tenant_];
  const uint64_t free = streams_->limits_.write_bytes - streams_->bytes_;
  if (bytes > free || use.bytes > kTimesFree * (free - bytes)) {
    ++streams_->stats_.shed;
    return false;
  }
  streams_->bytes_ += bytes;
  use.bytes += bytes;
  bytes_ += bytes;
  return true;
}

Streams::Stream::~Stream() {
  MutexLock lock(&streams_->mutex_);
  // When the watch's own thread ends the call from within its cancelling, nobody else is waited
  // for.
  while (cancelling_ && std::this_thread::get_id() != streams_->watch_.get_id()) {
    streams_->changed_.wait(streams_->mutex_);
  }
  streams_->streams_.erase(place_);
  streams_->bytes_ -= bytes_;
  const auto use = streams_->of_tenant_.find(tenant_);
  use->second.bytes -= bytes_;
  if (--use->second.streams == 0) streams_->of_tenant_.erase(use);
}

Streams::Streams(const StreamLimits& limits) : limits_(limits) {
  watch_ = std::thread([this] { Watch(); });
}

Streams::~Streams() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watch_.join();
}

absl::StatusOr<std::unique_ptr<Streams::Stream>> Streams::Open(
    const grpc::CallbackServerContext* context, const std::string& tenant,
    std::function<bool()> welcome) {
  MutexLock lock(&mutex_);
  const uint64_t free = limits_.streams - streams_.size();
  const auto found = of_tenant_.find(tenant);
  const uint64_t own = found != of_tenant_.end() ? found->second.streams : 0;
  if (free == 0 || own >= kTimesFree * free) {
    ++stats_.refused;
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d streams are open of %d that there may be, %d of them this tenant's; "
                        "what is left is kept for others",
                        streams_.size(), limits_.streams, own));
  }
  ++of_tenant_[tenant].streams;
  std::unique_ptr<Stream> stream(new Stream(this, context, tenant, std::move(welcome)));
  stream->place_ = streams_.insert(streams_.end(), stream.get());
  return stream;
}

StreamStats Streams::Stats() const {
  MutexLock lock(&mutex_);
  StreamStats stats = stats_;
  stats.open = streams_.size();
  stats.write_bytes = bytes_;
  return stats;
}

void Streams::CancelStalled() {
  MutexLock lock(&mutex_);
  const int64_t oldest = Now() - limits_.stall_nanos;
  CancelEach(&stats_.stalled, [oldest](const Stream& stream) {
    const int64_t since = stream.waits_since_.load(std::memory_order_relaxed);
    return since != 0 && since < oldest;
  });
}

void Streams::CancelUnwelcome() {
  MutexLock lock(&mutex_);
  CancelEach(&stats_.unwelcome, [](const Stream& stream) { return !stream.welcome_(); });
}

void Streams::CancelEach(uint64_t* counter, absl::FunctionRef<bool(const Stream&)> ends) {
  std::vector<Stream*> ending;
  for (Stream* const stream : streams_) {
    if (!stream->cancelled_ && ends(*stream)) ending.push_back(stream);
  }
  for (Stream* const stream : ending) {
    // While nobody held the mutex it may have ended, and another one begun in its place.
    if (std::ranges::find(streams_, stream) == streams_.end() || stream->cancelled_ ||
        !ends(*stream)) {
      continue;
    }
    const grpc::CallbackServerContext* const context = stream->context_;
    ++*counter;
    stream->cancelling_ = stream->cancelled_ = true;
    stream->Works();
    // Callbacks of gRPC may run inside: never under a lock. The stream waits for cancelling_.
    mutex_.unlock();
    context->TryCancel();
    mutex_.lock();
    if (std::ranges::find(streams_, stream) != streams_.end()) stream->cancelling_ = false;
    changed_.notify_all();
  }
}

void Streams::Watch() {
  const int64_t nanos =
      std::clamp(limits_.stall_nanos / kLooksPerStall, kMinLookNanos, kMaxLookNanos);
  int64_t asked = Now();
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) changed_.wait_for(mutex_, std::chrono::nanoseconds(nanos));
      if (stopping_) return;
    }
    CancelStalled();
    if (Now() - asked < kWelcomeNanos) continue;
    asked = Now();
    CancelUnwelcome();
  }
}

}  // namespace kvarve
