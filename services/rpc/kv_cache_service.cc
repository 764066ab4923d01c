#include "services/rpc/kv_cache_service.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/rpc/grpc_status.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr size_t kMaxClientNameBytes = 128;

absl::StatusOr<NamespaceId> ParseNamespaceId(const std::string& bytes) {
  NamespaceId id;
  if (bytes.size() != id.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ns_id has %d bytes; it must have 16", bytes.size()));
  }
  std::memcpy(id.bytes.data(), bytes.data(), id.bytes.size());
  return id;
}

absl::StatusOr<std::vector<BlockKey>> ParseKeys(const v1::Keys& keys, const NamespaceInfo& ns) {
  if (keys.key_bytes() != ns.key_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "keys have %d bytes; this namespace's have %d", keys.key_bytes(), ns.key_bytes));
  }
  const std::string& packed = keys.packed();
  if (packed.size() % ns.key_bytes != 0) {
    return absl::InvalidArgumentError("packed keys end in the middle of one");
  }
  const size_t count = packed.size() / ns.key_bytes;
  if (count > kMaxKeysPerCall) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d keys in one call; at most %d", count, kMaxKeysPerCall));
  }
  std::vector<BlockKey> result(count);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(result[i].bytes.data(), packed.data() + i * ns.key_bytes, ns.key_bytes);
  }
  return result;
}

}  // namespace

std::string_view RpcMethodName(RpcMethod method) {
  switch (method) {
    case RpcMethod::kHello:
      return "Hello";
    case RpcMethod::kLookup:
      return "Lookup";
    case RpcMethod::kInvalidate:
      return "Invalidate";
    case RpcMethod::kStats:
      return "Stats";
  }
  return "";
}

KvCacheService::KvCacheService(const RpcServerOptions& options, BearerToken token,
                               BlockStore* store)
    : daemon_version_(options.daemon_version),
      max_message_bytes_(options.max_message_bytes),
      token_(token),
      store_(store) {}

absl::Status KvCacheService::Admit(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto [first, last] = metadata.equal_range(kAuthorization);
  if (first == last) {
    auth_missing_.fetch_add(1, std::memory_order_relaxed);
    return absl::UnauthenticatedError("no token; send the header authorization: Bearer TOKEN");
  }
  if (std::next(first) != last || !token_.Matches({first->second.data(), first->second.size()})) {
    auth_wrong_.fetch_add(1, std::memory_order_relaxed);
    return absl::UnauthenticatedError("wrong token");
  }
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return absl::InvalidArgumentError("no deadline; every call needs one");
  }
  if (deadline <= std::chrono::system_clock::now())
    return absl::DeadlineExceededError("came too late");
  return absl::OkStatus();
}

template <typename Run>
grpc::ServerUnaryReactor* KvCacheService::Serve(RpcMethod method,
                                                grpc::CallbackServerContext* context, Run run) {
  absl::Status status = Admit(*context);
  if (status.ok()) status = run();
  const auto code = static_cast<size_t>(ToGrpcCode(status.code()));
  calls_[static_cast<size_t>(method)][code].fetch_add(1, std::memory_order_relaxed);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* KvCacheService::Hello(grpc::CallbackServerContext* context,
                                                const v1::HelloRequest* request,
                                                v1::HelloReply* reply) {
  return Serve(RpcMethod::kHello, context, [&] { return RunHello(*request, reply); });
}

grpc::ServerUnaryReactor* KvCacheService::Lookup(grpc::CallbackServerContext* context,
                                                 const v1::LookupRequest* request,
                                                 v1::LookupReply* reply) {
  return Serve(RpcMethod::kLookup, context, [&] { return RunLookup(*request, reply); });
}

grpc::ServerUnaryReactor* KvCacheService::Invalidate(grpc::CallbackServerContext* context,
                                                     const v1::InvalidateRequest* request,
                                                     v1::InvalidateReply* reply) {
  return Serve(RpcMethod::kInvalidate, context, [&] { return RunInvalidate(*request, reply); });
}

grpc::ServerUnaryReactor* KvCacheService::Stats(grpc::CallbackServerContext* context,
                                                const v1::StatsRequest* request,
                                                v1::StatsReply* reply) {
  return Serve(RpcMethod::kStats, context, [&] {
    FillStats(reply);
    return absl::OkStatus();
  });
}

absl::Status KvCacheService::RunHello(const v1::HelloRequest& request,
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
  reply->set_version(version);
  reply->set_incarnation(store_->incarnation());
  reply->set_daemon_version(daemon_version_);
  reply->mutable_limits()->set_max_keys_per_call(kMaxKeysPerCall);
  reply->mutable_limits()->set_max_message_bytes(max_message_bytes_);
  return absl::OkStatus();
}

absl::Status KvCacheService::RunLookup(const v1::LookupRequest& request,
                                       v1::LookupReply* reply) const {
  KV_ASSIGN_OR_RETURN(const NamespaceId id, ParseNamespaceId(request.ns_id()));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo ns, store_->FindNamespace(id));
  KV_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, ParseKeys(request.keys(), ns));
  const auto hits = static_cast<uint32_t>(store_->Lookup(ns.handle, keys));
  reply->set_hit_blocks(hits);
  if (hits > 0) {
    v1::TierRun* const run = reply->add_runs();
    run->set_tier(v1::TIER_HOST);
    run->set_blocks(hits);
  }
  return absl::OkStatus();
}

absl::Status KvCacheService::RunInvalidate(const v1::InvalidateRequest& request,
                                           v1::InvalidateReply* reply) const {
  KV_ASSIGN_OR_RETURN(const NamespaceId id, ParseNamespaceId(request.ns_id()));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo ns, store_->FindNamespace(id));
  switch (request.what_case()) {
    case v1::InvalidateRequest::kKeys: {
      KV_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, ParseKeys(request.keys(), ns));
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

void KvCacheService::FillStats(v1::StatsReply* reply) const {
  const CacheStats stats = store_->Stats();
  reply->set_daemon_version(daemon_version_);
  reply->set_incarnation(store_->incarnation());
  v1::HostTier* const host = reply->mutable_host();
  host->set_capacity_bytes(stats.arena.capacity_bytes);
  host->set_chunk_bytes(stats.arena.chunk_bytes);
  host->set_used_bytes(stats.arena.used_bytes);
  host->set_leased_bytes(stats.leased_bytes);
  host->set_quarantined_bytes(stats.quarantined_bytes);
  host->set_blocks(stats.index.entries);
  host->set_index_bytes(stats.index.memory_bytes);
  v1::Counters* const counters = reply->mutable_counters();
  counters->set_lookups(stats.lookups);
  counters->set_lookup_keys(stats.lookup_keys);
  counters->set_hit_blocks(stats.hit_blocks);
  counters->set_miss_blocks(stats.miss_blocks);
  counters->set_hit_bytes(stats.hit_bytes);
  counters->set_stored_blocks(stats.put_blocks[static_cast<size_t>(PutResult::kStored)]);
  counters->set_stored_bytes(stats.put_bytes);
  counters->set_evicted_blocks(stats.evicted_blocks);
  counters->set_invalidated_blocks(stats.invalidated_blocks);
  counters->set_corrupt_blocks(stats.corrupt_blocks);
  for (const NamespaceInfo& info : store_->Namespaces()) {
    v1::Namespace* const ns = reply->add_namespaces();
    ns->set_ns_id(info.id.bytes.data(), info.id.bytes.size());
    ns->set_tenant(info.tenant);
    ns->set_model(info.model);
    ns->set_block_bytes(info.block_bytes);
    ns->set_key_bytes(info.key_bytes);
  }
}

RpcStats KvCacheService::Counted() const {
  RpcStats stats;
  for (size_t method = 0; method < kRpcMethods; ++method) {
    for (size_t code = 0; code < kRpcCodes; ++code) {
      stats.calls[method][code] = calls_[method][code].load(std::memory_order_relaxed);
    }
  }
  stats.auth_missing = auth_missing_.load(std::memory_order_relaxed);
  stats.auth_wrong = auth_wrong_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace kvarve
