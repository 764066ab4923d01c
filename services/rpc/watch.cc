#include "services/rpc/watch.h"

#include <chrono>
#include <utility>
#include <vector>

#include "client/rpc/grpc_status.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

v1::EventKind KindOf(CacheEventKind kind) {
  switch (kind) {
    case CacheEventKind::kStored:
      return v1::EVENT_STORED;
    case CacheEventKind::kRemoved:
      return v1::EVENT_REMOVED;
    case CacheEventKind::kCleared:
      return v1::EVENT_CLEARED;
    case CacheEventKind::kTierChanged:
      return v1::EVENT_TIER_CHANGED;
  }
  return v1::EVENT_UNSPECIFIED;
}

v1::Tier TierOf(CacheTier tier) { return tier == CacheTier::kNvme ? v1::TIER_NVME : v1::TIER_HOST; }

}  // namespace

void FillEvent(const CacheEvent& event, const NamespaceInfo& ns, v1::Event* out) {
  out->set_sequence(event.sequence);
  out->set_kind(KindOf(event.kind));
  out->set_ns_id(ns.id.bytes.data(), ns.id.bytes.size());
  if (event.kind == CacheEventKind::kCleared) return;
  out->set_key(event.key.bytes.data(), ns.key_bytes);
  out->set_depth(event.depth);
  if (event.kind != CacheEventKind::kRemoved) out->set_tier(TierOf(event.tier));
}

// Waiting, writing, or ended. Only who changes the state under the mutex calls gRPC for it, after
// letting the mutex go: gRPC may call back from within.
class Watchers::Reactor final : public grpc::ServerWriteReactor<v1::EventBatch>,
                                public std::enable_shared_from_this<Reactor> {
 public:
  Reactor(Watchers* watchers, Call call)
      : watchers_(watchers), call_(std::move(call)), next_(call_.from) {}

  // Tells where the stream begins.
  void Begin() { Send(/*even_empty=*/true); }
  // Sends what is new, when the stream waits for it.
  void Poke() { Send(/*even_empty=*/false); }

  void OnWriteDone(bool ok) override {
    call_.stream->Works();
    {
      MutexLock lock(&mutex_);
      state_ = State::kWaiting;
      cancelled_ = cancelled_ || !ok;
    }
    if (EndIfCancelled()) return;
    Poke();
  }
  void OnCancel() override {
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    EndIfCancelled();
  }
  void OnDone() override {
    call_.ended(status_);
    call_.stream.reset();
    watchers_->Remove(shared_from_this());  // the last use of this
  }

 private:
  enum class State { kWaiting, kWriting, kEnded };

  bool EndIfCancelled() {
    {
      MutexLock lock(&mutex_);
      if (!cancelled_ || state_ != State::kWaiting) return state_ == State::kEnded;
      state_ = State::kEnded;
      status_ = absl::CancelledError("the watcher is gone");
    }
    Finish(ToGrpc(status_));
    return true;
  }

  void Send(bool even_empty) {
    absl::Status failed;
    {
      MutexLock lock(&mutex_);
      if (state_ != State::kWaiting || cancelled_) return;
      batch_.Clear();
      const absl::StatusOr<uint64_t> end = watchers_->Fill(call_.caller, next_, &batch_);
      if (!end.ok()) {
        state_ = State::kEnded;
        status_ = failed = end.status();
      } else {
        next_ = *end;
        if (batch_.events_size() == 0 && !even_empty) return;
        state_ = State::kWriting;
      }
    }
    if (!failed.ok()) return Finish(ToGrpc(failed));
    call_.stream->Waits();
    StartWrite(&batch_);
  }

  Watchers* const watchers_;
  Call call_;
  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kWaiting;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_ ABSL_GUARDED_BY(mutex_);
  v1::EventBatch batch_;
  absl::Status status_;
};

Watchers::Watchers(BlockStore* store) : store_(store) {
  thread_ = std::thread([this] { Run(); });
}

Watchers::~Watchers() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

grpc::ServerWriteReactor<v1::EventBatch>* Watchers::Start(Call call) {
  const auto reactor = std::make_shared<Reactor>(this, std::move(call));
  {
    MutexLock lock(&mutex_);
    reactors_.insert(reactor);
  }
  reactor->Begin();
  changed_.notify_all();
  return reactor.get();
}

void Watchers::Remove(const std::shared_ptr<Reactor>& reactor) {
  MutexLock lock(&mutex_);
  reactors_.erase(reactor);
}

void Watchers::Run() {
  uint64_t seen = 0;
  while (true) {
    std::vector<std::shared_ptr<Reactor>> waiting;
    {
      MutexLock lock(&mutex_);
      while (reactors_.empty() && !stopping_) changed_.wait(mutex_);
      if (!stopping_) changed_.wait_for(mutex_, std::chrono::nanoseconds(kLookNanos));
      if (stopping_) return;
      waiting.assign(reactors_.begin(), reactors_.end());
    }
    const uint64_t next = store_->next_event();
    if (next == seen) continue;
    seen = next;
    for (const std::shared_ptr<Reactor>& reactor : waiting) reactor->Poke();
  }
}

absl::StatusOr<uint64_t> Watchers::Fill(const Caller& caller, uint64_t from,
                                        v1::EventBatch* batch) {
  batch->set_incarnation(store_->incarnation());
  std::vector<CacheEvent> events;
  uint64_t next = from;
  // On, as long as all are others'; the window is bounded.
  do {
    events.clear();
    KV_ASSIGN_OR_RETURN(next, store_->Events(next, kEventsPerBatch, &events));
    AddVisible(events, caller, batch);
  } while (batch->events_size() == 0 && events.size() == kEventsPerBatch);
  batch->set_next_sequence(next);
  return next;
}

void Watchers::AddVisible(const std::vector<CacheEvent>& events, const Caller& caller,
                          v1::EventBatch* batch) {
  for (const CacheEvent& event : events) {
    if (event.ns->tenant == caller.tenant) FillEvent(event, *event.ns, batch->add_events());
  }
}

}  // namespace kvarve
