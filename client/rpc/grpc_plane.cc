#include "client/rpc/grpc_plane.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/frames/frames.h"
#include "client/rpc/client_files.h"
#include "client/rpc/event_watch.h"
#include "client/rpc/grpc_status.h"
#include "client/rpc/hedge.h"
#include "client/rpc/hedged_read.h"
#include "client/rpc/pin_releases.h"
#include "client/rpc/remote_node.h"
#include "client/rpc/run_messages.h"
#include "client/rpc/run_reader.h"
#include "client/rpc/run_stream.h"
#include "client/rpc/run_writer.h"
#include "client/rpc/tenant_calls.h"
#include "proto/kvarve/v1/admin.grpc.pb.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {
namespace {

constexpr char kReadRun[] = "/kvarve.v1.KvCache/ReadRun";
constexpr size_t kMaxKeysPerCall = 8192;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

// Waits as long as the daemon asked for, and up to half as much again, so that those it sent away
// together come back apart. False: the deadline comes first.
bool WaitToRetry(int64_t nanos, int64_t deadline_nanos) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  nanos += static_cast<int64_t>(static_cast<double>(nanos) / 2 * (random() - random.min()) /
                                (random.max() - random.min()));
  if (nanos <= 0 || Now() + nanos >= deadline_nanos) return false;
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanos));
  return true;
}

bool Taken(PutOutcome outcome) {
  return outcome == PutOutcome::kStored || outcome == PutOutcome::kExists;
}

class GrpcPlane final : public RemotePlane {
 public:
  GrpcPlane(const ClientOptions& options, const Endpoint& endpoint,
            std::unique_ptr<ClientFiles> files)
      : options_(options), node_(options, endpoint, std::move(files)) {}

  void TakeTracesFrom(CurrentTrace current) override { node_.TakeTracesFrom(current); }
  absl::Status WaitReady(int64_t timeout_nanos) override { return node_.WaitReady(timeout_nanos); }
  ClientState State() const override {
    ClientState state = node_.State();
    state.hedged_reads = hedge_.hedges();
    return state;
  }
  absl::StatusOr<ClientNamespace> OpenNamespace(const NamespaceDescriptor& descriptor) override {
    return node_.AddNamespace(descriptor);
  }
  absl::StatusOr<OpenNamespaceInfo> KnownNamespace(ClientNamespace ns) const override {
    return node_.KnownNamespace(ns);
  }

  absl::StatusOr<LookupResult> Lookup(ClientNamespace ns, std::span<const BlockKey> keys,
                                      int64_t hold_nanos, uint32_t recompute_us) override;
  absl::StatusOr<GrantSet> Keep(ClientNamespace ns, std::span<const BlockKey> keys,
                                uint64_t request_id) override;
  void Release(uint64_t lease) override;
  absl::StatusOr<std::vector<uint64_t>> Read(ClientNamespace ns, std::span<const BlockKey> keys,
                                             std::span<std::byte* const> destinations,
                                             uint64_t request_id, bool verify) override;
  absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                              const std::byte* data, std::shared_ptr<void> hold,
                                              std::string* reason) override;
  void ReportMismatch(ClientNamespace ns, const BlockKey& key) override;
  absl::StatusOr<size_t> Touch(ClientNamespace ns, std::span<const BlockKey> keys,
                               uint64_t request_id) override;
  absl::StatusOr<uint64_t> Invalidate(ClientNamespace ns, std::span<const BlockKey> keys) override;
  absl::StatusOr<PrefetchResult> Prefetch(ClientNamespace ns, std::span<const BlockKey> keys,
                                          uint64_t request_id) override;
  absl::StatusOr<TenantStats> ReadTenantStats() override {
    return client::ReadTenantStats(&node_, Now() + options_.timeout_nanos);
  }
  absl::StatusOr<std::unique_ptr<EventStream>> WatchEvents(int64_t timeout_nanos,
                                                           const EventCursor& from) override {
    return client::WatchEvents(&node_, timeout_nanos, options_.timeout_nanos, from);
  }
  absl::StatusOr<std::string> Admin(std::string_view json) override;

 private:
  template <typename Method, typename Request, typename Reply>
  absl::Status Unary(Method method, const Request& request, Reply* reply, int64_t deadline) {
    grpc::ClientContext context;
    const NodeLinkPtr link = node_.link();
    PrepareContext(&context, link->shown->token, deadline);
    return FromGrpc((link->stub.get()->*method)(&context, request, reply));
  }
  absl::Status PinRun(const OpenNamespaceInfo& info, std::span<const BlockKey> keys, int64_t nanos,
                      uint64_t request_id, int64_t deadline, v1::PinReply* reply);
  // One ReadRun: adds checksums of blocks that came whole. `again_nanos`: when the daemon wants to
  // be asked for the rest.
  absl::Status ReadOnce(const OpenNamespaceInfo& info, std::span<const BlockKey> keys,
                        std::span<std::byte* const> destinations, uint64_t request_id, bool verify,
                        int64_t deadline, std::vector<uint64_t>* checksums, bool* mismatch,
                        int64_t* again_nanos);
  const ClientOptions options_;
  RemoteNode node_;
  Hedge hedge_;
  PinReleases releases_;
};

absl::StatusOr<LookupResult> GrpcPlane::Lookup(ClientNamespace ns, std::span<const BlockKey> keys,
                                               int64_t hold_nanos, uint32_t recompute_us) {
  LookupResult result;
  const int64_t deadline = Now() + options_.timeout_nanos;
  bool more = true;
  for (size_t begin = 0; more && begin < keys.size(); begin += kMaxKeysPerCall) {
    const auto part = keys.subspan(begin, std::min(kMaxKeysPerCall, keys.size() - begin));
    size_t hits = 0;
    KV_RETURN_IF_ERROR(node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) -> absl::Status {
      // A pin takes no costs: what is worth reading is asked first.
      hits = part.size();
      if (hold_nanos == 0 || recompute_us != 0) {
        v1::LookupRequest request;
        SetRun(info, part, &request);
        request.set_recompute_us(recompute_us);
        v1::LookupReply reply;
        KV_RETURN_IF_ERROR(Unary(&v1::KvCache::Stub::Lookup, request, &reply, deadline));
        hits = std::min<size_t>(reply.hit_blocks(), part.size());
      }
      if (hold_nanos == 0 || hits == 0) return absl::OkStatus();
      v1::PinReply pinned;
      KV_RETURN_IF_ERROR(PinRun(info, part.first(hits), hold_nanos, 0, deadline, &pinned));
      hits = pinned.hit_blocks();
      result.hold = pinned.pin();
      return absl::OkStatus();
    }));
    result.hit_blocks += std::min(hits, part.size());
    more = hits == part.size() && hold_nanos == 0;
  }
  result.host_blocks = result.hit_blocks;
  return result;
}

absl::Status GrpcPlane::PinRun(const OpenNamespaceInfo& info, std::span<const BlockKey> keys,
                               int64_t nanos, uint64_t request_id, int64_t deadline,
                               v1::PinReply* reply) {
  v1::PinRequest request;
  SetRun(info, keys, &request);
  request.set_ttl_ms(static_cast<uint32_t>(std::clamp<int64_t>(nanos / 1'000'000, 1, UINT32_MAX)));
  request.set_request_id(request_id);
  return Unary(&v1::KvCache::Stub::Pin, request, reply, deadline);
}

absl::StatusOr<GrantSet> GrpcPlane::Keep(ClientNamespace ns, std::span<const BlockKey> keys,
                                         uint64_t request_id) {
  keys = keys.first(std::min(keys.size(), local::kMaxBlocksPerAcquire));
  const int64_t deadline = Now() + options_.timeout_nanos;
  GrantSet grants;
  KV_RETURN_IF_ERROR(node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) {
    v1::PinReply reply;
    KV_RETURN_IF_ERROR(
        PinRun(info, keys, kGrantSeconds * 1'000'000'000, request_id, deadline, &reply));
    grants.lease = reply.pin();
    grants.block_bytes = info.block_bytes;
    // What may not be kept can be read all the same, if it is still there then.
    grants.over_lease_cap = reply.pinned_blocks() < reply.hit_blocks();
    grants.items.resize(std::min<size_t>(reply.hit_blocks(), keys.size()));
    return absl::OkStatus();
  }));
  grants.incarnation = node_.incarnation();
  return grants;
}

void GrpcPlane::Release(uint64_t lease) {
  if (lease != 0 && !node_.in_child()) releases_.Release(node_.link(), lease);
}

absl::StatusOr<std::vector<uint64_t>> GrpcPlane::Read(ClientNamespace ns,
                                                      std::span<const BlockKey> keys,
                                                      std::span<std::byte* const> destinations,
                                                      uint64_t request_id, bool verify) {
  const int64_t deadline = Now() + options_.put_timeout_nanos;
  std::vector<uint64_t> checksums;
  bool mismatch = false;
  while (checksums.size() < keys.size()) {
    const size_t begin = checksums.size();
    const size_t count = std::min(keys.size() - begin, frames::kMaxBlocksPerRun);
    int64_t again_nanos = 0;
    const absl::Status status = node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) {
      again_nanos = 0;
      checksums.resize(begin);
      return ReadOnce(info, keys.subspan(begin, count), destinations.subspan(begin, count),
                      request_id, verify, deadline, &checksums, &mismatch, &again_nanos);
    });
    if (mismatch) {
      ReportMismatch(ns, keys[checksums.size()]);
      break;
    }
    if (again_nanos > 0 && WaitToRetry(again_nanos, deadline)) continue;
    // What came is a right answer, though a shorter one.
    if (!status.ok() && checksums.empty()) return status;
    if (!status.ok() || checksums.size() < begin + count) break;
  }
  return checksums;
}

absl::Status GrpcPlane::ReadOnce(const OpenNamespaceInfo& info, std::span<const BlockKey> keys,
                                 std::span<std::byte* const> destinations, uint64_t request_id,
                                 bool verify, int64_t deadline, std::vector<uint64_t>* checksums,
                                 bool* mismatch, int64_t* again_nanos) {
  v1::ReadRunRequest request;
  SetRun(info, keys, &request);
  request.set_request_id(request_id);
  request.set_max_blocks_per_frame(frames::kMaxBlocksPerFrame);
  const grpc::ByteBuffer message = BufferOf(request.SerializeAsString());
  RunReader reader(info, keys, destinations, verify);
  absl::Status status;
  HedgedRead read(&node_, options_.hedge_reads ? &hedge_ : nullptr, kReadRun, message, deadline);
  grpc::ByteBuffer frame;
  bool more = read.First(&frame);
  while (more) {
    status = reader.Take(frame);
    frame.Clear();
    more = status.ok() && !reader.mismatch() && read.Next(&frame);
  }
  checksums->insert(checksums->end(), reader.checksums().begin(), reader.checksums().end());
  *mismatch = reader.mismatch();
  if (!status.ok() || *mismatch) return status;  // the stream is cancelled
  status = read.stream()->Finish();
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    *again_nanos = read.stream()->retry_after_nanos();
  }
  return status;
}

absl::StatusOr<std::vector<PutOutcome>> GrpcPlane::Put(ClientNamespace ns, const PutChain& chain,
                                                       const std::byte* data,
                                                       std::shared_ptr<void> hold,
                                                       std::string* reason) {
  const PutSource source{data, std::move(hold)};
  const int64_t deadline = Now() + options_.put_timeout_nanos;
  std::vector<PutOutcome> outcomes;
  PutAgain again;  // of the attempt before
  while (outcomes.size() < chain.keys.size()) {
    const size_t begin = outcomes.size();
    PutAgain now;
    const absl::Status status = node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) {
      const auto write = [&](size_t blocks_per_frame) {
        return WriteRun(node_.link(), info, chain, begin, source, blocks_per_frame, deadline,
                        &outcomes, &now);
      };
      const size_t together =
          BlocksTogether(info, chain.keys.size() - begin, node_.max_blocks_per_write_frame());
      const absl::Status written = write(together);
      if (together == 1 || !absl::IsInvalidArgument(written)) return written;
      const absl::Status singly = write(1);
      if (singly.ok()) node_.WriteSingleBlocks();
      return singly;
    });
    // Time that ran out on a put that was sent away before ran out for want of room.
    const bool no_room = again.nanos > 0 && absl::IsDeadlineExceeded(status);
    if (!no_room) {
      KV_RETURN_IF_ERROR(status);
      again = std::move(now);
    }
    if (again.nanos > 0 && !no_room && WaitToRetry(again.nanos, deadline)) continue;
    if (outcomes.empty() && chain.first_depth == 0 && !again.reason.empty()) {
      return absl::ResourceExhaustedError(again.reason);
    }
    if (outcomes.empty() && again.reason.empty()) {
      return absl::ResourceExhaustedError("the daemon has no room for this put now");
    }
    if (again.nanos > 0) {
      outcomes.push_back(again.reason.empty() ? PutOutcome::kShed : PutOutcome::kRejectedQuota);
    }
    if (outcomes.size() == begin || !Taken(outcomes.back())) break;
  }
  if (reason != nullptr) *reason = std::move(again.reason);
  outcomes.resize(chain.keys.size(), PutOutcome::kRejectedParent);
  return outcomes;
}

void GrpcPlane::ReportMismatch(ClientNamespace ns, const BlockKey& key) {
  node_.CountMismatch();
  const int64_t deadline = Now() + options_.timeout_nanos;
  // What becomes of it is the daemon's matter.
  node_
      .Ask(ns, deadline,
           [&](const OpenNamespaceInfo& info) {
             v1::ReportRequest request;
             SetRun(info, {&key, 1}, &request);
             v1::ReportReply reply;
             return Unary(&v1::KvCache::Stub::Report, request, &reply, deadline);
           })
      .IgnoreError();
}

absl::StatusOr<size_t> GrpcPlane::Touch(ClientNamespace ns, std::span<const BlockKey> keys,
                                        uint64_t request_id) {
  const int64_t deadline = Now() + options_.timeout_nanos;
  size_t touched = 0;
  bool more = true;
  for (size_t begin = 0; more && begin < keys.size(); begin += kMaxKeysPerCall) {
    const auto part = keys.subspan(begin, std::min(kMaxKeysPerCall, keys.size() - begin));
    v1::TouchReply reply;
    KV_RETURN_IF_ERROR(node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) {
      v1::TouchRequest request;
      SetRun(info, part, &request);
      request.set_request_id(request_id);
      return Unary(&v1::KvCache::Stub::Touch, request, &reply, deadline);
    }));
    touched += reply.touched_blocks();
    more = reply.touched_blocks() == part.size();
  }
  return touched;
}

absl::StatusOr<PrefetchResult> GrpcPlane::Prefetch(ClientNamespace ns,
                                                   std::span<const BlockKey> keys,
                                                   uint64_t request_id) {
  const int64_t deadline = Now() + options_.timeout_nanos;
  PrefetchResult result;
  bool more = true;
  for (size_t begin = 0; more && begin < keys.size(); begin += kMaxKeysPerCall) {
    const auto part = keys.subspan(begin, std::min(kMaxKeysPerCall, keys.size() - begin));
    v1::PrefetchReply reply;
    KV_RETURN_IF_ERROR(node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) {
      v1::PrefetchRequest request;
      SetRun(info, part, &request);
      request.set_request_id(request_id);
      return Unary(&v1::KvCache::Stub::Prefetch, request, &reply, deadline);
    }));
    result.hit_blocks += reply.hit_blocks();
    result.started_blocks += reply.started_blocks();
    more = reply.hit_blocks() == part.size();
  }
  return result;
}

absl::StatusOr<uint64_t> GrpcPlane::Invalidate(ClientNamespace ns, std::span<const BlockKey> keys) {
  const int64_t deadline = Now() + options_.put_timeout_nanos;
  uint64_t removed = 0;
  size_t begin = 0;
  do {
    const auto part = keys.subspan(begin, std::min(kMaxKeysPerCall, keys.size() - begin));
    v1::InvalidateReply reply;
    KV_RETURN_IF_ERROR(node_.Ask(ns, deadline, [&](const OpenNamespaceInfo& info) {
      v1::InvalidateRequest request;
      if (keys.empty()) {
        request.set_ns_id(info.id.bytes.data(), info.id.bytes.size());
        request.set_whole_namespace(true);
      } else {
        SetRun(info, part, &request);
      }
      return Unary(&v1::KvCache::Stub::Invalidate, request, &reply, deadline);
    }));
    removed += reply.removed_blocks();
    begin += part.size();
  } while (begin < keys.size());
  return removed;
}

absl::StatusOr<std::string> GrpcPlane::Admin(std::string_view json) {
  const NodeLinkPtr link = node_.link();
  grpc::ClientContext context;
  PrepareContext(&context, link->shown->token, Now() + options_.put_timeout_nanos);
  context.set_wait_for_ready(false);
  v1::AskRequest request;
  request.set_json(std::string(json));
  v1::AskReply reply;
  const absl::Status status =
      FromGrpc(v1::KvAdmin::NewStub(link->channel)->Ask(&context, request, &reply));
  if (absl::IsUnimplemented(status)) {
    return absl::UnimplementedError(
        "blocks are served there; administration has an address of its own (rpc.admin_listen)");
  }
  if (!status.ok()) return node_.Explained(status);
  return std::move(*reply.mutable_json());
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemotePlane>> MakeGrpcPlane(const ClientOptions& options,
                                                           const Endpoint& endpoint) {
  KV_ASSIGN_OR_RETURN(std::unique_ptr<ClientFiles> files, ClientFiles::Open(options, endpoint));
  return std::make_unique<GrpcPlane>(options, endpoint, std::move(files));
}

}  // namespace kvarve::client
