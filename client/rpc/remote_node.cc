#include "client/rpc/remote_node.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/frames/frames.h"
#include "client/rpc/grpc_status.h"
#include "client/trace/trace.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/freed_memory.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {
namespace {

constexpr uint32_t kVersionMin = 1, kVersionMax = 1;
constexpr int kKeepaliveMs = 20'000, kKeepaliveTimeoutMs = 5'000;
// gRPC spreads each pause by a fifth, so that clients of one daemon do not come back in step.
constexpr int kFirstPauseMs = 50, kMaxPauseMs = 500;
// Of a run, on its way before this client asks for more: gRPC finds out by itself, anew for each
// run.
constexpr int kReadAheadBytes = 4 << 20;
constexpr int kMaxAttemptMs = 5'000;
constexpr size_t kMaxNamespacesPerHello = 64;
constexpr size_t kMaxHelloBytes = 32 << 10;     // and one descriptor more: under any daemon's limit
constexpr int64_t kQuietNanos = 3'000'000'000;  // well within a daemon's shortest rpc.greeting
constexpr int64_t kHelloNanos = 2'000'000'000;
constexpr int64_t kKeepNanos = 100'000'000;  // how often the connection is looked at
constexpr int64_t kWaitStepNanos = 20'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint, const std::string& server_name,
                                           const std::shared_ptr<grpc::ChannelCredentials>& tls) {
  static const bool once = (KeepFreedMemory(), true);
  static_cast<void>(once);
  grpc::ChannelArguments arguments;
  // Each Client has its own connection, as on the same host.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // a retry is this client's decision
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstPauseMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMaxAttemptMs);  // of one attempt
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxPauseMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  if (!server_name.empty()) arguments.SetSslTargetNameOverride(server_name);
  return grpc::CreateCustomChannel(
      endpoint.address, tls != nullptr ? tls : grpc::InsecureChannelCredentials(), arguments);
}

absl::Status Lost(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ? status : absl::OkStatus();
}

std::string NotServed(const Endpoint& endpoint) {
  return endpoint.address +
         " does not serve this; is it the port of administration (rpc.admin_listen; blocks are at "
         "rpc.listen), or a daemon of an older version?";
}

}  // namespace

void PrepareContext(grpc::ClientContext* context, const std::string& token,
                    int64_t deadline_nanos) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::nanoseconds(std::max<int64_t>(deadline_nanos - Now(), 0)));
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  const std::string_view trace = TraceScope::Current();
  context->AddMetadata("traceparent", trace.empty() ? NewTraceparent() : std::string(trace));
}

NodeLink::NodeLink(const Endpoint& endpoint, const std::string& server_name,
                   std::shared_ptr<const ClientFiles::Shown> with)
    : shown(std::move(with)),
      channel(MakeChannel(endpoint, server_name, shown->tls)),
      stub(v1::KvCache::NewStub(channel)),
      generic(channel) {
  channel->GetState(/*try_to_connect=*/true);
}

RemoteNode::RemoteNode(const ClientOptions& options, Endpoint endpoint,
                       std::unique_ptr<ClientFiles> files)
    : options_(options),
      endpoint_(std::move(endpoint)),
      files_(std::move(files)),
      link_(std::make_shared<NodeLink>(endpoint_, options_.tls.server_name, files_->Current())),
      breaker_(options.breaker_failures, options.probe_interval_nanos),
      keeper_([this] { KeepConnected(); }) {}

RemoteNode::~RemoteNode() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  keeper_.join();
}

bool RemoteNode::IsQuiet() const {
  MutexLock lock(&mutex_);
  return Now() - noted_ >= kQuietNanos;
}

// Whether it is; waits a moment for that.
bool RemoteNode::Connect(const NodeLink& link) {
  return link.channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY ||
         link.channel->WaitForConnected(std::chrono::system_clock::now() +
                                        std::chrono::nanoseconds(kKeepNanos));
}

void RemoteNode::KeepConnected() {
  int64_t other_greeted = 0;
  while (true) {
    NodeLinkPtr latest, other;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      latest = next_ != nullptr ? next_ : link_;
      other = other_;
    }
    const bool is_connected = Connect(*latest);
    if (is_connected && IsQuiet()) Note(Hello(link(), Now() + kHelloNanos));
    if (other != nullptr && Connect(*other) && Now() - other_greeted >= kQuietNanos) {
      other_greeted = Now();
      Hello(other, Now() + kHelloNanos).IgnoreError();
    }
    if (!is_connected) continue;
    latest.reset();
    other.reset();
    MutexLock lock(&mutex_);
    if (!stopping_) stopped_.wait_for(mutex_, std::chrono::nanoseconds(kKeepNanos));
  }
}

NodeLinkPtr RemoteNode::link() {
  const std::shared_ptr<const ClientFiles::Shown> shown = files_->Current();
  MutexLock lock(&mutex_);
  const NodeLinkPtr& latest = next_ != nullptr ? next_ : link_;
  if (latest->shown->version < shown->version) {
    next_ = std::make_shared<NodeLink>(endpoint_, options_.tls.server_name, shown);
  }
  // A daemon that does not take the new ones yet is asked with the old ones while it does these.
  if (next_ != nullptr && (next_->channel->GetState(false) == GRPC_CHANNEL_READY ||
                           link_->channel->GetState(false) != GRPC_CHANNEL_READY)) {
    link_ = std::move(next_);
  }
  return link_;
}

NodeLinkPtr RemoteNode::other_link() {
  const NodeLinkPtr now = link();
  MutexLock lock(&mutex_);
  if (other_ == nullptr || other_->shown != now->shown) {
    other_ = std::make_shared<NodeLink>(endpoint_, options_.tls.server_name, now->shown);
  }
  return other_;
}

bool RemoteNode::Renewed(const NodeLinkPtr& refused) {
  if (!files_->Changed(refused->shown->version)) return false;
  link();
  MutexLock lock(&mutex_);
  if (next_ != nullptr) link_ = std::move(next_);
  return true;
}

absl::StatusOr<ClientNamespace> RemoteNode::AddNamespace(const NamespaceDescriptor& descriptor) {
  KV_RETURN_IF_ERROR(ValidateDescriptor(descriptor));
  const NamespaceDigest digest = DigestOf(descriptor);
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    if (namespaces_[i].digest == digest) return static_cast<ClientNamespace>(i);
  }
  if (namespaces_.size() >= kMaxNamespaces) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a client opens at most ", kMaxNamespaces, " namespaces"));
  }
  Entry entry;
  entry.descriptor = descriptor;
  entry.digest = digest;
  entry.info.key_bytes = descriptor.key_bytes;
  entry.info.block_bytes = descriptor.block_bytes;
  namespaces_.push_back(std::move(entry));
  return static_cast<ClientNamespace>(namespaces_.size() - 1);
}

absl::StatusOr<OpenNamespaceInfo> RemoteNode::KnownNamespace(ClientNamespace ns) const {
  MutexLock lock(&mutex_);
  if (ns >= namespaces_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("namespace ", ns, " is not this client's"));
  }
  return namespaces_[ns].info;
}

absl::Status RemoteNode::Admit() {
  if (stamp_.InChild()) {
    return absl::FailedPreconditionError(
        "a Client does not work in a forked child: make a new one");
  }
  MutexLock lock(&mutex_);
  if (!breaker_.open() || breaker_.TakeProbe(Now())) return absl::OkStatus();
  return absl::UnavailableError("kvarved does not answer; not asked until it does again");
}

// What a call's end says about the daemon.
void RemoteNode::Note(const absl::Status& status) {
  MutexLock lock(&mutex_);
  noted_ = Now();
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    ++state_.timeouts;
    breaker_.TimedOut(Now());
  } else if (!Lost(status).ok()) {
    was_lost_ = true;
    state_.last_error = WhyLost(status);
  } else {
    breaker_.Answered();
    if (std::exchange(was_lost_, false)) ++state_.reconnects;
  }
}

// What gRPC says, and what it means where it says little.
std::string RemoteNode::WhyLost(const absl::Status& status) const {
  std::string text = absl::StrFormat("%s: %s", endpoint_.address, status.message());
  if (const std::string fault = files_->fault(); !fault.empty()) text += "; " + fault;
  if (hellos_ > 0) return text;
  const std::string_view said = ToStd(status.message());
  const auto says = [said](std::string_view words) { return said.find(words) != said.npos; };
  if (!endpoint_.tls && (says("Socket closed") || says("reset"))) {
    text += "; does it want TLS? Then write kvarves://" + endpoint_.address;
  } else if (endpoint_.tls && says("wrong version number")) {
    text += "; it speaks no TLS: kvarve://" + endpoint_.address + " is plaintext";
  } else if (endpoint_.tls && says("certificate verify failed")) {
    text += "; its certificate is of none of the authorities of " + options_.tls.ca_file;
  } else if (endpoint_.tls && says("not in peer certificate")) {
    text += "; its certificate has another name: set tls_server_name to one that it has";
  } else if (endpoint_.tls && (says("Socket closed") || says("reset") || says("Broken pipe"))) {
    text += options_.tls.certificate_file.empty()
                ? "; it wants a certificate: set tls_certificate_file and tls_key_file"
                : "; it does not take the certificate of " + options_.tls.certificate_file;
  }
  return text;
}

absl::Status RemoteNode::Explained(const absl::Status& status) const {
  if (Lost(status).ok()) return status;
  MutexLock lock(&mutex_);
  return absl::UnavailableError(WhyLost(status));
}

void RemoteNode::Forget() {
  MutexLock lock(&mutex_);
  for (Entry& entry : namespaces_) entry.resolved = false;
}

absl::Status RemoteNode::Call(absl::FunctionRef<absl::Status()> body) {
  KV_RETURN_IF_ERROR(Admit());
  // One trace, whatever is asked for it and however often.
  const std::string_view given = current_trace_();
  const TraceScope trace(given.empty() ? NewTraceparent() : std::string(given));
  absl::Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const NodeLinkPtr before = link();
    status = body();
    Note(status);
    // A stream under way whose credentials are over is cancelled by the daemon.
    const bool refused = absl::IsUnauthenticated(status) || absl::IsCancelled(status);
    if (!refused || !Renewed(before)) break;
  }
  if (absl::IsUnimplemented(status) && status.message().empty()) {
    return absl::UnimplementedError(NotServed(endpoint_));
  }
  if (absl::IsDeadlineExceeded(status)) {  // gRPC says that and no more
    return absl::DeadlineExceededError(absl::StrCat(endpoint_.address,
                                                    " did not answer in time (trace ",
                                                    ToAbsl(TraceOf(TraceScope::Current())), ")"));
  }
  return status;
}

absl::Status RemoteNode::Ask(ClientNamespace ns, int64_t deadline_nanos,
                             absl::FunctionRef<absl::Status(const OpenNamespaceInfo&)> body) {
  return Call([&] {
    absl::Status status;
    for (int attempt = 0; attempt < 2; ++attempt) {
      KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, Resolved(ns, deadline_nanos));
      status = body(info);
      if (status.code() != absl::StatusCode::kNotFound) break;
      Forget();
    }
    return status;
  });
}

absl::StatusOr<OpenNamespaceInfo> RemoteNode::Resolved(ClientNamespace ns, int64_t deadline_nanos) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    {
      MutexLock lock(&mutex_);
      if (ns >= namespaces_.size()) {
        return absl::InvalidArgumentError(absl::StrCat("namespace ", ns, " is not this client's"));
      }
      Entry& entry = namespaces_[ns];
      if (entry.resolved && entry.refusal.ok()) return entry.info;
      // There may be room by now.
      const bool again = attempt == 0 && absl::IsResourceExhausted(entry.refusal);
      if (entry.resolved && !again) return entry.refusal;
      entry.resolved = false;
    }
    KV_RETURN_IF_ERROR(Hello(link(), deadline_nanos));
  }
  return absl::UnavailableError("the daemon was started again meanwhile; ask again");
}

// Opens up to kMaxNamespacesPerHello namespaces that are not; the rest with the next one.
absl::Status RemoteNode::Hello(const NodeLinkPtr& on, int64_t deadline_nanos) {
  v1::HelloRequest request;
  request.set_version_min(kVersionMin);
  request.set_version_max(kVersionMax);
  request.set_client(options_.client_name.substr(0, 128));
  std::vector<ClientNamespace> named;
  {
    MutexLock lock(&mutex_);
    // The latest first: it is the one that a call waits for.
    for (size_t i = namespaces_.size(); i-- > 0 && named.size() < kMaxNamespacesPerHello &&
                                        request.ByteSizeLong() < kMaxHelloBytes;) {
      if (namespaces_[i].resolved) continue;
      v1::NamespaceClaim* const claim = request.add_namespaces();
      claim->set_canonical(EncodeDescriptor(namespaces_[i].descriptor));
      claim->set_digest(namespaces_[i].digest.bytes.data(), namespaces_[i].digest.bytes.size());
      named.push_back(static_cast<ClientNamespace>(i));
    }
  }
  grpc::ClientContext context;
  PrepareContext(&context, on->shown->token, deadline_nanos);
  v1::HelloReply reply;
  const absl::Status status = FromGrpc(on->stub->Hello(&context, request, &reply));
  if (absl::IsUnimplemented(status)) {
    return absl::UnimplementedError(NotServed(endpoint_));
  }
  KV_RETURN_IF_ERROR(status);
  if (static_cast<size_t>(reply.namespaces_size()) != named.size()) {
    return absl::FailedPreconditionError(
        "the daemon opens no namespaces over gRPC: it is of an older version; update it");
  }
  MutexLock lock(&mutex_);
  TakeHello(reply, named);
  return absl::OkStatus();
}

void RemoteNode::TakeHello(const v1::HelloReply& reply, const std::vector<ClientNamespace>& named) {
  if (state_.incarnation != reply.incarnation()) {
    for (Entry& entry : namespaces_) entry.resolved = false;
  }
  state_.incarnation = reply.incarnation();
  state_.daemon_version = reply.daemon_version();
  max_pin_ms_ = reply.limits().max_pin_ms();
  max_blocks_per_write_frame_ = std::clamp<size_t>(reply.limits().max_blocks_per_write_frame(), 1,
                                                   frames::kMaxBlocksPerFrame);
  ++hellos_;
  for (size_t i = 0; i < named.size(); ++i) {
    Entry& entry = namespaces_[named[i]];
    const v1::OpenedNamespace& answer = reply.namespaces(static_cast<int>(i));
    entry.resolved = true;
    const auto& opened = answer.opened();
    if (answer.code() != 0) {
      entry.refusal =
          FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(answer.code()), answer.message()));
    } else if (opened.ns_id().size() != entry.info.id.bytes.size() ||
               opened.block_bytes() != entry.descriptor.block_bytes ||
               opened.key_bytes() != entry.descriptor.key_bytes) {
      entry.refusal = absl::InternalError("the daemon opened another namespace than was claimed");
    } else {
      entry.refusal = absl::OkStatus();
      std::memcpy(entry.info.id.bytes.data(), opened.ns_id().data(), opened.ns_id().size());
    }
  }
}

absl::Status RemoteNode::WaitReady(int64_t timeout_nanos) {
  const int64_t deadline = Now() + timeout_nanos;
  while (true) {
    if (stamp_.InChild()) return Admit();
    const NodeLinkPtr before = link();
    const absl::Status status = Hello(link(), deadline);
    Note(status);
    if (status.code() == absl::StatusCode::kUnauthenticated && Renewed(before)) continue;
    if (status.ok()) {
      MutexLock lock(&mutex_);
      if (std::ranges::all_of(namespaces_, [](const Entry& entry) { return entry.resolved; }))
        return absl::OkStatus();
      continue;
    }
    // Who refuses now refuses for good: a token, a version.
    if (Lost(status).ok() && status.code() != absl::StatusCode::kDeadlineExceeded) return status;
    if (Now() + kWaitStepNanos >= deadline) {
      MutexLock lock(&mutex_);
      return absl::DeadlineExceededError(
          state_.last_error.empty() ? endpoint_.address + " does not answer" : state_.last_error);
    }
    before->channel->GetState(/*try_to_connect=*/true);
    std::this_thread::sleep_for(std::chrono::nanoseconds(kWaitStepNanos));
  }
}

ClientState RemoteNode::State() const {
  MutexLock lock(&mutex_);
  const bool connected = link_->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  ClientState state = state_;
  state.connected = connected && hellos_ > 0;
  state.breaker_open = breaker_.open();
  return state;
}

void RemoteNode::CountMismatch() {
  MutexLock lock(&mutex_);
  ++state_.checksum_mismatches;
}

uint64_t RemoteNode::incarnation() const {
  MutexLock lock(&mutex_);
  return state_.incarnation;
}

size_t RemoteNode::max_blocks_per_write_frame() const {
  MutexLock lock(&mutex_);
  return max_blocks_per_write_frame_;
}

void RemoteNode::WriteSingleBlocks() {
  MutexLock lock(&mutex_);
  max_blocks_per_write_frame_ = 1;
}

uint32_t RemoteNode::max_pin_ms() const {
  MutexLock lock(&mutex_);
  return max_pin_ms_;
}

}  // namespace kvarve::client
