#include "services/rpc/kv_cache_service.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/frames/frames.h"
#include "client/rpc/grpc_status.h"
#include "services/rpc/read_run.h"
#include "services/rpc/requests.h"
#include "services/rpc/write_run.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr size_t kMaxClientNameBytes = 128;
constexpr int kMaxNamespacesPerHello = 64;
constexpr size_t kMaxKeysPerReport = 64;  // each is checksummed

// A stream that ends before it begins.
template <typename Base>
class Refused final : public Base {
 public:
  explicit Refused(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

void FillNamespace(const NamespaceInfo& info, v1::Namespace* ns) {
  ns->set_ns_id(info.id.bytes.data(), info.id.bytes.size());
  ns->set_tenant(info.tenant);
  ns->set_model(info.model);
  ns->set_block_bytes(info.block_bytes);
  ns->set_key_bytes(info.key_bytes);
}

// A request's namespace and its keys.
struct Run {
  NamespaceInfo ns;
  std::vector<BlockKey> keys;
};
template <typename Request>
absl::StatusOr<Run> RunOf(BlockStore& store, const Caller& caller, const Request& request,
                          size_t most = kMaxKeysPerCall) {
  Run run;
  KV_ASSIGN_OR_RETURN(run.ns, NamespaceOf(store, caller, request.ns_id()));
  KV_ASSIGN_OR_RETURN(run.keys, KeysOf(request.keys(), run.ns, most));
  return run;
}

}  // namespace

std::string_view RpcMethodName(RpcMethod method) {
  static constexpr std::array<std::string_view, kRpcMethods> kNames = {
      "Hello",    "Lookup", "Invalidate", "Stats", "ReadRun", "WriteRun",
      "Prefetch", "Touch",  "Pin",        "Unpin", "Report",  "WatchEvents"};
  return kNames[static_cast<size_t>(method)];
}

KvCacheService::KvCacheService(const RpcServerOptions& options, const Callers& callers,
                               BlockStore* store)
    : daemon_version_(options.daemon_version),
      max_message_bytes_(options.max_message_bytes),
      max_pin_ms_(options.max_pin_ms),
      callers_(callers),
      store_(store),
      log_(options.slow_call_nanos),
      streams_(options.streams),
      watchers_(store) {}

absl::StatusOr<Caller> KvCacheService::Admit(const Context& context, std::optional<Verb> verb,
                                             RequestLog::Request* noted) {
  KV_ASSIGN_OR_RETURN(Caller caller, callers_.Of(context));
  noted->tenant = caller.tenant;
  KV_RETURN_IF_ERROR(callers_.May(context, caller, verb));
  KV_RETURN_IF_ERROR(CheckDeadline(context));
  return caller;
}

template <typename Request, typename Run>
KvCacheService::Unary* KvCacheService::Serve(RpcMethod method, std::optional<Verb> verb,
                                             Context* context, const Request& request, Run run) {
  RequestLog::Request noted = log_.Begin(method, *context);
  if constexpr (requires { request.request_id(); }) noted.id = request.request_id();
  const absl::Status status = [&] {
    KV_ASSIGN_OR_RETURN(const Caller caller, Admit(*context, verb, &noted));
    if (request.ByteSizeLong() > max_message_bytes_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "a request of %d bytes; at most %d", request.ByteSizeLong(), max_message_bytes_));
    }
    return absl::Status(run(caller));
  }();
  log_.End(noted, status);
  Unary* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

KvCacheService::Unary* KvCacheService::Hello(Context* context, const v1::HelloRequest* request,
                                             v1::HelloReply* reply) {
  return Serve(RpcMethod::kHello, std::nullopt, context, *request,
               [&](const Caller& caller) { return RunHello(caller, *request, reply); });
}

KvCacheService::Unary* KvCacheService::Lookup(Context* context, const v1::LookupRequest* request,
                                              v1::LookupReply* reply) {
  return Serve(RpcMethod::kLookup, Verb::kLookup, context, *request, [&](const Caller& caller) {
    KV_ASSIGN_OR_RETURN(const kvarve::Run run, RunOf(*store_, caller, *request));
    size_t in_host = 0;
    const size_t hits = store_->Lookup(run.ns.handle, run.keys, &in_host, request->recompute_us());
    reply->set_hit_blocks(static_cast<uint32_t>(hits));
    // Behind the first that is on a device only, others may be in memory: the slower tier is named.
    for (const auto& [tier, blocks] :
         {std::pair(v1::TIER_HOST, in_host), std::pair(v1::TIER_NVME, hits - in_host)}) {
      if (blocks == 0) continue;
      v1::TierRun* const run_of_tier = reply->add_runs();
      run_of_tier->set_tier(tier);
      run_of_tier->set_blocks(static_cast<uint32_t>(blocks));
    }
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KvCacheService::ReadRun(
    Context* context, const grpc::ByteBuffer* request) {
  kvarve::ReadRun read;
  RequestLog::Request noted = log_.Begin(RpcMethod::kReadRun, *context);
  const absl::Status status = [&] {
    KV_ASSIGN_OR_RETURN(const Caller caller, Admit(*context, Verb::kRead, &noted));
    v1::ReadRunRequest message;
    KV_RETURN_IF_ERROR(ParseMessage(*request, &message));
    KV_ASSIGN_OR_RETURN(kvarve::Run run, RunOf(*store_, caller, message, frames::kMaxBlocksPerRun));
    KV_ASSIGN_OR_RETURN(read.stream,
                        streams_.Open(context, caller.tenant, callers_.Again(*context)));
    read.ns = std::move(run.ns);
    read.keys = std::move(run.keys);
    read.request_id = noted.id = message.request_id();
    read.blocks_per_frame =
        std::clamp<size_t>(message.max_blocks_per_frame(), 1, frames::kMaxBlocksPerFrame);
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    log_.End(noted, status);
    return new Refused<grpc::ServerWriteReactor<grpc::ByteBuffer>>(status);
  }
  read.store = store_;
  read.context = context;
  read.ended = [this, noted = std::move(noted)](const absl::Status& end, uint64_t bytes) {
    log_.End(noted, end, bytes);
  };
  return StartReadRun(std::move(read));
}

grpc::ServerReadReactor<grpc::ByteBuffer>* KvCacheService::WriteRun(Context* context,
                                                                    grpc::ByteBuffer* response) {
  kvarve::WriteRun write;
  RequestLog::Request noted = log_.Begin(RpcMethod::kWriteRun, *context);
  const absl::Status status = [&] {
    KV_ASSIGN_OR_RETURN(write.caller, Admit(*context, Verb::kWrite, &noted));
    if (draining()) return absl::UnavailableError("the node drains and takes no new blocks");
    KV_ASSIGN_OR_RETURN(write.stream,
                        streams_.Open(context, write.caller.tenant, callers_.Again(*context)));
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    log_.End(noted, status);
    return new Refused<grpc::ServerReadReactor<grpc::ByteBuffer>>(status);
  }
  write.store = store_;
  write.response = response;
  write.ended = [this, noted = std::move(noted)](const absl::Status& end, uint64_t bytes,
                                                 uint64_t request_id) mutable {
    noted.id = request_id;  // of the opening, which came later
    log_.End(noted, end, bytes);
  };
  return StartWriteRun(std::move(write));
}

KvCacheService::Unary* KvCacheService::Prefetch(Context* context,
                                                const v1::PrefetchRequest* request,
                                                v1::PrefetchReply* reply) {
  return Serve(RpcMethod::kPrefetch, Verb::kRead, context, *request, [&](const Caller& caller) {
    KV_ASSIGN_OR_RETURN(const kvarve::Run run, RunOf(*store_, caller, *request));
    // Asking for what is in memory is an access.
    const size_t here = store_->Touch(run.ns.handle, run.keys, request->request_id());
    size_t hits = here;
    if (store_->WantsLoad(run.ns.handle, run.keys)) {
      hits = std::max(here, store_->Lookup(run.ns.handle, run.keys));
      store_->Load(run.ns.handle, run.keys, IoClass::kPrefetch, nullptr);
    }
    reply->set_hit_blocks(static_cast<uint32_t>(hits));
    reply->set_started_blocks(static_cast<uint32_t>(hits - here));
    return absl::OkStatus();
  });
}

KvCacheService::Unary* KvCacheService::Touch(Context* context, const v1::TouchRequest* request,
                                             v1::TouchReply* reply) {
  return Serve(RpcMethod::kTouch, Verb::kRead, context, *request, [&](const Caller& caller) {
    KV_ASSIGN_OR_RETURN(const kvarve::Run run, RunOf(*store_, caller, *request));
    const size_t touched = store_->Touch(run.ns.handle, run.keys, request->request_id());
    reply->set_touched_blocks(static_cast<uint32_t>(touched));
    return absl::OkStatus();
  });
}

KvCacheService::Unary* KvCacheService::Pin(Context* context, const v1::PinRequest* request,
                                           v1::PinReply* reply) {
  return Serve(RpcMethod::kPin, Verb::kRead, context, *request, [&](const Caller& caller) {
    KV_ASSIGN_OR_RETURN(const kvarve::Run run, RunOf(*store_, caller, *request));
    if (request->ttl_ms() == 0) return absl::InvalidArgumentError("a pin needs ttl_ms");
    const int64_t ttl = int64_t{std::min(request->ttl_ms(), max_pin_ms_)} * 1'000'000;
    const PinAnswer answer = store_->Pin(run.ns, run.keys, ttl, request->request_id());
    reply->set_pin(answer.pin);
    reply->set_hit_blocks(static_cast<uint32_t>(answer.hit_blocks));
    reply->set_pinned_blocks(static_cast<uint32_t>(answer.pinned_blocks));
    return absl::OkStatus();
  });
}

KvCacheService::Unary* KvCacheService::Unpin(Context* context, const v1::UnpinRequest* request,
                                             v1::UnpinReply* reply) {
  return Serve(RpcMethod::kUnpin, Verb::kRead, context, *request, [&](const Caller& caller) {
    reply->set_was_pinned(store_->Unpin(caller.tenant, request->pin()));
    return absl::OkStatus();
  });
}

KvCacheService::Unary* KvCacheService::Report(Context* context, const v1::ReportRequest* request,
                                              v1::ReportReply* reply) {
  return Serve(RpcMethod::kReport, Verb::kRead, context, *request, [&](const Caller& caller) {
    KV_ASSIGN_OR_RETURN(const kvarve::Run run, RunOf(*store_, caller, *request, kMaxKeysPerReport));
    const size_t removed = store_->ReportCorrupt(run.ns.handle, run.keys);
    reply->set_removed_blocks(static_cast<uint32_t>(removed));
    return absl::OkStatus();
  });
}

KvCacheService::Unary* KvCacheService::Invalidate(Context* context,
                                                  const v1::InvalidateRequest* request,
                                                  v1::InvalidateReply* reply) {
  return Serve(RpcMethod::kInvalidate, Verb::kInvalidate, context, *request,
               [&](const Caller& caller) { return RunInvalidate(caller, *request, reply); });
}

KvCacheService::Unary* KvCacheService::Stats(Context* context, const v1::StatsRequest* request,
                                             v1::StatsReply* reply) {
  return Serve(RpcMethod::kStats, Verb::kStats, context, *request, [&](const Caller& caller) {
    FillStats(caller, reply);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::EventBatch>* KvCacheService::WatchEvents(
    Context* context, const v1::WatchEventsRequest* request) {
  Watchers::Call call;
  RequestLog::Request noted = log_.Begin(RpcMethod::kWatchEvents, *context);
  const absl::Status status = [&] {
    KV_ASSIGN_OR_RETURN(call.caller, Admit(*context, Verb::kStats, &noted));
    KV_ASSIGN_OR_RETURN(call.from, FirstEvent(*request));
    KV_ASSIGN_OR_RETURN(call.stream,
                        streams_.Open(context, call.caller.tenant, callers_.Again(*context)));
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    log_.End(noted, status);
    return new Refused<grpc::ServerWriteReactor<v1::EventBatch>>(status);
  }
  call.ended = [this, noted](const absl::Status& end) { log_.End(noted, end); };
  return watchers_.Start(std::move(call));
}

absl::StatusOr<uint64_t> KvCacheService::FirstEvent(const v1::WatchEventsRequest& request) const {
  if (request.from_sequence() == 0) return store_->next_event();
  if (request.incarnation() != store_->incarnation()) {
    return absl::OutOfRangeError("the sequence is of another life of the node");
  }
  return request.from_sequence();
}

absl::Status KvCacheService::RunHello(const Caller& caller, const v1::HelloRequest& request,
                                      v1::HelloReply* reply) const {
  if (request.client().size() > kMaxClientNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("client name beyond %d bytes", kMaxClientNameBytes));
  }
  const uint32_t version = std::min(kRpcVersionMax, request.version_max());
  if (version < kRpcVersionMin || version < request.version_min()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "no common version: the daemon knows %d to %d, the client %d to %d", kRpcVersionMin,
        kRpcVersionMax, request.version_min(), request.version_max()));
  }
  if (request.namespaces_size() > kMaxNamespacesPerHello) {
    return absl::InvalidArgumentError(absl::StrFormat("%d namespaces in one call; at most %d",
                                                      request.namespaces_size(),
                                                      kMaxNamespacesPerHello));
  }
  reply->set_version(version);
  reply->set_incarnation(store_->incarnation());
  reply->set_daemon_version(daemon_version_);
  v1::Limits* const limits = reply->mutable_limits();
  limits->set_max_keys_per_call(kMaxKeysPerCall);
  limits->set_max_message_bytes(max_message_bytes_);
  limits->set_max_blocks_per_run(frames::kMaxBlocksPerRun);
  limits->set_max_frame_payload_bytes(frames::kMaxPayloadBytes);
  limits->set_max_pin_ms(max_pin_ms_);
  limits->set_max_namespaces_per_hello(kMaxNamespacesPerHello);
  limits->set_max_blocks_per_write_frame(frames::kMaxBlocksPerFrame);
  for (const v1::NamespaceClaim& claim : request.namespaces()) {
    OpenOne(caller, claim, reply->add_namespaces());
  }
  return absl::OkStatus();
}

void KvCacheService::OpenOne(const Caller& caller, const v1::NamespaceClaim& claim,
                             v1::OpenedNamespace* opened) const {
  const absl::StatusOr<NamespaceInfo> info = [&]() -> absl::StatusOr<NamespaceInfo> {
    KV_ASSIGN_OR_RETURN(const NamespaceDescriptor descriptor, DecodeDescriptor(claim.canonical()));
    NamespaceDigest digest;
    if (claim.digest().size() != digest.bytes.size()) {
      return absl::InvalidArgumentError("a namespace's digest has 32 bytes");
    }
    std::memcpy(digest.bytes.data(), claim.digest().data(), digest.bytes.size());
    return store_->OpenNamespace(caller.tenant, descriptor, digest);
  }();
  if (info.ok()) {
    FillNamespace(*info, opened->mutable_opened());
    return;
  }
  const grpc::Status refusal = ToGrpc(info.status());
  opened->set_code(static_cast<uint32_t>(refusal.error_code()));
  opened->set_message(refusal.error_message());
}

absl::Status KvCacheService::RunInvalidate(const Caller& caller,
                                           const v1::InvalidateRequest& request,
                                           v1::InvalidateReply* reply) const {
  KV_ASSIGN_OR_RETURN(const NamespaceInfo ns, NamespaceOf(*store_, caller, request.ns_id()));
  switch (request.what_case()) {
    case v1::InvalidateRequest::kKeys: {
      KV_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys,
                          KeysOf(request.keys(), ns, kMaxKeysPerCall));
      reply->set_removed_blocks(store_->InvalidateKeys(ns.handle, keys));
      return absl::OkStatus();
    }
    case v1::InvalidateRequest::kWholeNamespace:
      if (!request.whole_namespace()) break;
      reply->set_removed_blocks(store_->Invalidate(ns.handle));
      return absl::OkStatus();
    case v1::InvalidateRequest::WHAT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("say what: keys, or whole_namespace: true");
}

void KvCacheService::FillStats(const Caller& caller, v1::StatsReply* reply) const {
  const CacheStats stats = store_->Stats();
  const auto found = std::ranges::find(stats.pools, caller.tenant, &PoolStats::tenant);
  const PoolStats own = found != stats.pools.end() ? *found : PoolStats();
  reply->set_daemon_version(daemon_version_);
  reply->set_incarnation(store_->incarnation());
  v1::HostTier* const host = reply->mutable_host();
  host->set_capacity_bytes(stats.arena.capacity_bytes);
  host->set_chunk_bytes(own.chunk_bytes);
  host->set_used_bytes(own.used_bytes);
  host->set_leased_bytes(own.leased_bytes);
  host->set_blocks(own.entries);
  v1::Counters* const counters = reply->mutable_counters();
  counters->set_lookups(own.lookups);
  counters->set_lookup_keys(own.lookup_keys);
  counters->set_hit_blocks(own.hit_blocks);
  counters->set_miss_blocks(own.miss_blocks);
  counters->set_hit_bytes(own.hit_bytes);
  counters->set_stored_blocks(own.stored_blocks);
  counters->set_stored_bytes(own.stored_bytes);
  counters->set_evicted_blocks(own.evicted_blocks);
  for (const NamespaceInfo& info : store_->Namespaces()) {
    if (info.tenant == caller.tenant) FillNamespace(info, reply->add_namespaces());
  }
}

RpcStats KvCacheService::Counted() const {
  RpcStats stats;
  log_.AddTo(&stats);
  stats.streams = streams_.Stats();
  return stats;
}

}  // namespace kvarve
