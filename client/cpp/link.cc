#include "client/cpp/link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {

using local::Type;

namespace {

int64_t Now() { return SystemClock::Get()->NowNanos(); }

}  // namespace

absl::Status Link::CheckProcess() const {
  if (!stamp_.InChild()) return absl::OkStatus();
  return absl::FailedPreconditionError("a Client does not work in a forked child: make a new one");
}

// ---- Turns.

absl::Status Link::Admit() const {
  if (breaker_open_.load(std::memory_order_relaxed)) {
    return absl::UnavailableError("kvarved does not answer; not asked until it does again");
  }
  if (connected_.load(std::memory_order_relaxed)) return absl::OkStatus();
  MutexLock lock(&state_mutex_);
  return absl::UnavailableError(absl::StrCat(
      "not connected to kvarved: ",
      last_error_.empty() ? "the first attempt is under way (see WaitReady)" : last_error_));
}

absl::Status Link::Run(absl::FunctionRef<absl::Status(Turn&)> body) {
  KV_RETURN_IF_ERROR(CheckProcess());
  KV_RETURN_IF_ERROR(Admit());
  absl::Status result;
  {
    MutexLock lock(&turn_mutex_);
    KV_RETURN_IF_ERROR(Admit());  // it may have changed while others had their turn
    if (connection_ == nullptr) return absl::UnavailableError("not connected to kvarved");
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    Turn turn(*this, *connection_);
    result = body(turn);
    Settle();
  }
  FlushOwed();  // what was owed between the last flush and the end of the turn
  return result;
}

void Link::Settle() {
  if (connection_->TakeLateAnswer()) {
    breaker_.Answered();
    MirrorBreaker();
  }
  if (!connection_->broken()) {
    if (outbox_->empty()) return;
    outbox_->Flush([this](std::string_view message) { return connection_->SendOnly(message); });
    if (!connection_->broken()) return;
  }
  outbox_->End();
  breaker_.Answered();  // a new connection is asked afresh
  MirrorBreaker();
  {
    MutexLock lock(&state_mutex_);
    current_ = nullptr;
    connected_.store(false);
    last_error_ =
        absl::StrCat("the connection ended (", connection_->cause(), "); connecting again");
    for (Entry& entry : namespaces_) entry.resolved = false;
  }
  connection_ = nullptr;
  state_changed_.notify_all();
  Wake();
}

void Link::MirrorBreaker() { breaker_open_.store(breaker_.open(), std::memory_order_relaxed); }

void Link::FlushOwed() {
  if (outbox_->empty() || stamp_.InChild() || !turn_mutex_.TryLock()) return;
  if (connection_ != nullptr) Settle();
  turn_mutex_.Unlock();
}

absl::StatusOr<OpenNamespaceInfo> Link::Turn::Namespace(ClientNamespace ns) {
  MutexLock lock(&link_.state_mutex_);
  if (ns >= link_.namespaces_.size()) return absl::InvalidArgumentError("no such namespace");
  const Entry& entry = link_.namespaces_[ns];
  KV_RETURN_IF_ERROR(entry.refusal);
  if (!entry.resolved) return absl::UnavailableError("the namespace is not open yet");
  return entry.info;
}

absl::StatusOr<std::span<const uint8_t>> Link::Turn::Call(
    std::string_view message, Type expected, int64_t timeout_nanos,
    std::shared_ptr<StagingRegion> region) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  absl::StatusOr<std::span<const uint8_t>> answer =
      connection_.Call(message, expected, timeout_nanos, std::move(region));
  if (connection_.timed_out()) {
    link_.timeouts_.fetch_add(1, std::memory_order_relaxed);
    link_.breaker_.TimedOut(Now());
    link_.MirrorBreaker();
    if (link_.breaker_.open()) link_.Wake();
  } else if (!connection_.broken()) {
    link_.breaker_.Answered();
  }
  return answer;
}

absl::Status Link::Turn::Garbage(std::string_view what) { return connection_.Garbage(what); }

// ---- Namespaces.

absl::StatusOr<ClientNamespace> Link::OpenNamespace(const NamespaceDescriptor& descriptor) {
  KV_RETURN_IF_ERROR(CheckProcess());
  KV_RETURN_IF_ERROR(ValidateDescriptor(descriptor));
  if (!descriptor.tenant.empty() || !descriptor.tenant_salt.empty()) {
    return absl::InvalidArgumentError(
        "namespace descriptor: tenant and tenant_salt are the daemon's to write");
  }
  ClientNamespace ns = 0;
  {
    const NamespaceDigest digest = DigestOf(descriptor);
    MutexLock lock(&state_mutex_);
    for (ns = 0; ns < namespaces_.size(); ++ns) {
      if (namespaces_[ns].digest == digest) return ns;
    }
    if (ns >= kMaxNamespaces) return absl::ResourceExhaustedError("too many namespaces");
    Entry entry{.descriptor = descriptor, .digest = digest};
    entry.info.key_bytes = descriptor.key_bytes;
    entry.info.block_bytes = descriptor.block_bytes;
    namespaces_.push_back(std::move(entry));
  }
  // Without a connection, or when this fails, the watcher opens it.
  Run([&](Turn& turn) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    OpenOne(turn, ns);
    return absl::OkStatus();
  }).IgnoreError();
  return ns;
}

void Link::OpenOne(Turn& turn, ClientNamespace ns) {
  local::OpenNamespace open;
  {
    MutexLock lock(&state_mutex_);
    if (namespaces_[ns].resolved) return;
    open = {namespaces_[ns].descriptor, namespaces_[ns].digest};
  }
  const std::string message = local::BuildOpenNamespace(open, turn.connection().NextRequest());
  const absl::StatusOr<std::span<const uint8_t>> packet =
      turn.Call(message, Type::kNamespaceOpened, options_.timeout_nanos);
  if (!packet.ok()) {
    const bool asked = !turn.connection().timed_out() && !turn.connection().broken();
    if (asked) Refuse(ns, packet.status());
    return;
  }
  local::NamespaceOpenedBody opened;
  absl::Status parsed = local::ParseBody(*packet, &opened);
  if (parsed.ok()) parsed = Resolve(ns, opened);
  if (!parsed.ok()) turn.Garbage("another namespace than asked for").IgnoreError();
}

void Link::OpenMissing(Turn& turn) {
  size_t count = 0;
  {
    MutexLock lock(&state_mutex_);
    count = namespaces_.size();
  }
  for (ClientNamespace ns = 0; ns < count; ++ns) {
    if (turn.connection().broken() || turn.connection().timed_out()) return;
    OpenOne(turn, ns);
  }
}

absl::Status Link::Resolve(ClientNamespace ns, const local::NamespaceOpenedBody& opened) {
  {
    MutexLock lock(&state_mutex_);
    Entry& entry = namespaces_[ns];
    if (opened.code != 0 || opened.block_bytes != entry.descriptor.block_bytes ||
        opened.key_bytes != entry.descriptor.key_bytes) {
      return absl::UnavailableError("another namespace than asked for");
    }
    entry.info.handle = opened.handle;
    std::memcpy(entry.info.id.bytes.data(), opened.ns_id, entry.info.id.bytes.size());
    entry.refusal = absl::OkStatus();
    entry.resolved = true;
  }
  state_changed_.notify_all();
  return absl::OkStatus();
}

void Link::Refuse(ClientNamespace ns, const absl::Status& why) {
  {
    MutexLock lock(&state_mutex_);
    namespaces_[ns].refusal = why;
    namespaces_[ns].resolved = true;
  }
  state_changed_.notify_all();
}

absl::StatusOr<OpenNamespaceInfo> Link::KnownNamespace(ClientNamespace ns) const {
  MutexLock lock(&state_mutex_);
  if (ns >= namespaces_.size()) return absl::InvalidArgumentError("no such namespace");
  return namespaces_[ns].info;
}

// ---- State.

absl::Status Link::WaitReady(int64_t timeout_nanos) {
  KV_RETURN_IF_ERROR(CheckProcess());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_nanos);
  // The watcher may not have seen yet that a connection in use has ended.
  if (const std::shared_ptr<Connection> current = Current()) Tend(*current);
  MutexLock lock(&state_mutex_);
  while (true) {
    bool ready = connected_.load();
    for (const Entry& entry : namespaces_) {
      if (ready && entry.resolved) KV_RETURN_IF_ERROR(entry.refusal);
      ready = ready && entry.resolved;
    }
    if (ready) return absl::OkStatus();
    if (state_changed_.wait_until(state_mutex_, deadline) == std::cv_status::timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("not connected to kvarved in time: ",
                       last_error_.empty() ? std::string("still connecting") : last_error_));
    }
  }
}

ClientState Link::State() const {
  MutexLock lock(&state_mutex_);
  ClientState state;
  state.connected = connected_.load();
  state.breaker_open = breaker_open_.load();
  if (current_ != nullptr) state.incarnation = current_->session()->incarnation;
  state.daemon_version = daemon_version_;
  state.timeouts = timeouts_.load();
  state.reconnects = connects_ > 0 ? connects_ - 1 : 0;
  state.checksum_mismatches = mismatches_.load();
  state.last_error = last_error_;
  return state;
}

void Link::CountMismatch() { mismatches_.fetch_add(1); }

std::shared_ptr<Connection> Link::Current() const {
  MutexLock lock(&state_mutex_);
  return current_;
}

}  // namespace kvarve::client
