// Requests on blocks, and ADMIN and BYE.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/local/session.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"

namespace kvarve {
namespace {

using local::Builder;
using local::Type;

constexpr uint32_t kNoSpaceRetryMillis = 100;
constexpr int64_t kNanosPerMilli = 1'000'000;
// How long an ACQUIRE waits for what is on devices. Well below what clients wait for an answer, so
// that they can tell a slow device from a daemon that hangs.
constexpr int64_t kLoadWaitNanos = 5 * kNanosPerMilli;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

void Unpack(std::span<const uint8_t> packed, uint32_t key_bytes, std::vector<BlockKey>* keys) {
  if (key_bytes == BlockKey::kMaxBytes) {
    keys->resize(packed.size() / key_bytes);
    std::memcpy(keys->data(), packed.data(), packed.size());
    return;
  }
  keys->assign(packed.size() / key_bytes, BlockKey{});
  for (size_t i = 0; i < keys->size(); ++i) {
    std::memcpy((*keys)[i].bytes.data(), packed.data() + i * key_bytes, key_bytes);
  }
}

}  // namespace

absl::StatusOr<const NamespaceInfo*> Session::Namespace(uint32_t handle) const {
  if (handle >= namespaces_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("namespace handle ", handle, " is not open in this session"));
  }
  return &namespaces_[handle];
}

absl::StatusOr<const NamespaceInfo*> Session::TakeKeys(const local::KeysView& view) {
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, Namespace(view.body.ns));
  if (view.body.key_bytes != ns->key_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("keys of ", view.body.key_bytes,
                                                   " bytes; the namespace's have ", ns->key_bytes));
  }
  Unpack(view.packed_keys, view.body.key_bytes, &keys_);
  return ns;
}

absl::StatusOr<std::vector<std::byte*>> Session::StagingOf(const local::KeysView& view,
                                                           uint64_t block_bytes) const {
  if (record_->staging == nullptr) {
    return absl::FailedPreconditionError("this session has no staging");
  }
  std::vector<std::byte*> places(view.body.keys);
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = record_->staging->At(view.Extra(i), block_bytes);
    if (places[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("block ", i, " at offset ", view.Extra(i),
                                                     " lies outside of the staging (",
                                                     record_->staging->bytes(), " bytes)"));
    }
  }
  return places;
}

std::pair<size_t, LeaseId> Session::Hold(NamespaceHandle ns, int64_t nanos) {
  absl::erase_if(holds_, [now = Now()](const auto& hold) { return hold.second < now; });
  if (holds_.size() < options_.max_holds_per_session) {
    const AcquireResult held = cache_.Acquire(ns, keys_, &record_->account, 0, nanos);
    // Kept a little longer than by the cache, which ends it by its own clock.
    if (held.lease != 0) holds_[held.lease] = Now() + nanos + 2 * options_.reaper_nanos;
    return {held.grants.size(), held.lease};
  }
  return {cache_.Lookup(ns, keys_), 0};
}

absl::Status Session::OnLookup(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::KeysView view, Parsed(local::ParseKeys(packet, 0)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, TakeKeys(view));
  local::LookupReplyBody reply;
  size_t hits = 0;
  if (view.body.hold_ms > 0) {
    const int64_t nanos = std::min(int64_t{view.body.hold_ms} * 1'000'000, options_.max_hold_nanos);
    std::tie(hits, reply.hold) = Hold(ns->handle, nanos);
    reply.host_blocks = static_cast<uint32_t>(hits);
    // Whoever holds means to read: what is on devices sets out now.
    if (hits < keys_.size() && cache_.has_devices() && cache_.WantsLoad(ns->handle, keys_)) {
      const size_t found = cache_.Lookup(ns->handle, keys_, nullptr, view.body.recompute_us);
      const auto missing = static_cast<int64_t>(found - std::min(found, hits));
      if (missing > 0) StartLoad(ns->handle, found, missing * view.body.recompute_us * 1000);
      hits = std::max(hits, found);
    }
  } else {
    size_t in_host = 0;
    hits = cache_.Lookup(ns->handle, keys_, &in_host, view.body.recompute_us);
    reply.host_blocks = static_cast<uint32_t>(in_host);
  }
  reply.hit_blocks = static_cast<uint32_t>(hits);
  Send(Builder(Type::kLookupReply, request).Add(reply));
  return absl::OkStatus();
}

void Session::StartLoad(NamespaceHandle ns, size_t keys, int64_t recompute_nanos) {
  const std::span<const BlockKey> wanted = std::span(keys_).first(keys);
  if (load_ != nullptr && load_->ns == ns && std::ranges::equal(load_->keys, wanted)) {
    MutexLock lock(&load_->mutex);
    if (!load_->done) return;
  }
  load_ = std::make_shared<PendingLoad>();
  load_->ns = ns;
  load_->keys.assign(wanted.begin(), wanted.end());
  if (recompute_nanos > 0 && cache_.prefers_recompute())
    load_->until_nanos = Now() + recompute_nanos;
  cache_.Load(ns, wanted, IoClass::kDemand, [load = load_](size_t) {
    MutexLock lock(&load->mutex);
    load->done = true;
    load->changed.notify_all();
  });
}

bool Session::AwaitLoad() {
  MutexLock lock(&load_->mutex);
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kLoadWaitNanos);
  while (!load_->done) {
    if (load_->changed.wait_until(load_->mutex, until) == std::cv_status::timeout) break;
  }
  return load_->done;
}

// Leases on the leading blocks, brought into memory if need be. Nothing is leased, and `is_loading`
// set, while they are on their way; but who could have computed them meanwhile gets what is there.
AcquireResult Session::AcquireLoaded(NamespaceHandle ns, uint64_t request_id, bool* is_loading) {
  if (cache_.has_devices() && cache_.WantsLoad(ns, keys_)) {
    StartLoad(ns, keys_.size(), 0);
    *is_loading = !AwaitLoad() && Now() < load_->until_nanos;
    if (*is_loading) return AcquireResult();
  }
  return cache_.Acquire(ns, keys_, &record_->account, request_id);
}

absl::Status Session::OnAcquire(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::KeysView view, Parsed(local::ParseKeys(packet, 0)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, TakeKeys(view));
  local::GrantBody body;
  body.incarnation = cache_.incarnation();
  body.block_bytes = ns->block_bytes;
  AcquireResult result;
  bool is_loading = false;
  if (leases_ < options_.max_leases_per_session) {
    result = AcquireLoaded(ns->handle, view.body.request_id, &is_loading);
  } else {
    result.over_lease_cap = true;
  }
  if (result.lease != 0) ++leases_;
  body.lease = result.lease;
  body.blocks = static_cast<uint32_t>(result.grants.size());
  if (result.over_lease_cap) body.flags = local::kOverLeaseCap;
  if (is_loading) body.flags = local::kLoading;
  Builder builder(Type::kGrant, request,
                  sizeof(body) + result.grants.size() * sizeof(local::GrantItem));
  builder.Add(body);
  uint8_t* at = builder.AddSpace(result.grants.size() * sizeof(local::GrantItem));
  uint64_t known_chunk = 0;  // ids begin at 1
  for (const Grant& grant : result.grants) {
    // The chunk stays as long as the lease does, so one look is enough.
    if (grant.chunk_id != known_chunk && !told_.contains(grant.chunk_id)) {
      AnnounceChunks(/*always=*/true);
    }
    known_chunk = grant.chunk_id;
    const local::GrantItem item{grant.chunk_id, grant.offset, grant.checksum};
    std::memcpy(at, &item, sizeof(item));
    at += sizeof(item);
  }
  Counters::Add(counters_.granted_bytes, result.grants.size() * ns->block_bytes);
  Counters::Add(of_tenant_.granted_bytes, result.grants.size() * ns->block_bytes);
  Send(builder);
  return absl::OkStatus();
}

absl::Status Session::OnRelease(Packet packet) {
  local::ReleaseBody body;
  Packet items;
  KV_RETURN_IF_ERROR(Parsed(local::ParseBody(packet, &body, &items)));
  for (size_t i = 0; i < body.leases; ++i) {
    const LeaseId lease = local::ItemAt<uint64_t>(items, i);
    // An unknown one (a hold that ended, another session's) is counted by the cache and ignored.
    const bool released = cache_.Release(lease, &record_->account);
    if (holds_.erase(lease) == 0 && released && leases_ > 0) --leases_;
  }
  return absl::OkStatus();
}

absl::Status Session::OnPut(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::KeysView view, Parsed(local::ParseKeys(packet, 1)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, TakeKeys(view));
  if (uint64_t{view.body.first_depth} + keys_.size() > kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat("a chain is at most ", kMaxDepth, " blocks"));
  }
  KV_ASSIGN_OR_RETURN(const std::vector<std::byte*> places, StagingOf(view, ns->block_bytes));
  const std::vector<const std::byte*> sources(places.begin(), places.end());
  PutRequest put;
  put.ns = ns->handle;
  if ((view.body.flags & local::kHasParent) != 0) {
    put.parent.emplace();
    std::memcpy(put.parent->bytes.data(), view.body.parent, ns->key_bytes);
  }
  put.first_depth = view.body.first_depth;
  put.keys = keys_;
  put.sources = sources;
  put.request_id = view.body.request_id;
  put.recompute_us = view.body.recompute_us;
  absl::Status over_quota;
  int64_t retry_nanos = 0;
  put.quota_status = &over_quota;
  put.retry_after_nanos = &retry_nanos;
  std::vector<PutResult> results(keys_.size());
  KV_RETURN_IF_ERROR(cache_.Put(put, results));
  const auto retry_millis =
      static_cast<uint32_t>((retry_nanos + kNanosPerMilli - 1) / kNanosPerMilli);
  // Nothing of the chain is there, and nobody waits until it can be: the reason says more than a
  // result.
  const bool is_awaited = retry_millis > 0 && retry_millis <= view.body.wait_ms;
  if (put.first_depth == 0 && results.front() == PutResult::kRejectedQuota && !is_awaited) {
    return over_quota;
  }

  local::PutReplyBody reply;
  reply.blocks = static_cast<uint32_t>(results.size());
  uint64_t stored = 0;
  for (const PutResult result : results) {
    stored += result == PutResult::kStored;
    if (result == PutResult::kShed || result == PutResult::kRejectedQuota) {
      reply.retry_after_ms = retry_millis;
    } else if (result == PutResult::kRejectedNoSpace) {
      reply.retry_after_ms = std::max(kNoSpaceRetryMillis, retry_millis);
    }
  }
  Counters::Add(counters_.put_bytes, stored * ns->block_bytes);
  Counters::Add(of_tenant_.put_bytes, stored * ns->block_bytes);
  static_assert(sizeof(PutResult) == 1);
  Send(Builder(Type::kPutReply, request).Add(reply).AddBytes(results.data(), results.size()));
  return absl::OkStatus();
}

// Leases are short and exempt from the caps: copy-out is what is left to a client that is over
// them.
absl::Status Session::OnRead(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::KeysView view, Parsed(local::ParseKeys(packet, 1)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, TakeKeys(view));
  KV_ASSIGN_OR_RETURN(const std::vector<std::byte*> places, StagingOf(view, ns->block_bytes));
  const size_t step = std::max<uint64_t>(1, kCopyOutBytes / ns->block_bytes);
  std::vector<uint64_t> checksums;
  for (bool more = true; more && checksums.size() < keys_.size();) {
    const size_t begin = checksums.size();
    const auto keys =
        std::span<const BlockKey>(keys_).subspan(begin).first(std::min(step, keys_.size() - begin));
    const AcquireResult found =
        cache_.Acquire(ns->handle, keys, &record_->copies, view.body.request_id);
    for (size_t i = 0; i < found.grants.size(); ++i) {
      StreamCopy(places[begin + i], cache_.Data(found.grants[i].slot), ns->block_bytes);
      checksums.push_back(found.grants[i].checksum);
    }
    if (found.lease != 0) cache_.Release(found.lease, &record_->copies);
    more = found.grants.size() == keys.size();
  }
  Counters::Add(counters_.read_bytes, checksums.size() * ns->block_bytes);
  Counters::Add(of_tenant_.read_bytes, checksums.size() * ns->block_bytes);
  local::ReadReplyBody reply;
  reply.blocks = static_cast<uint32_t>(checksums.size());
  Send(Builder(Type::kReadReply, request)
           .Add(reply)
           .AddBytes(checksums.data(), checksums.size() * sizeof(uint64_t)));
  return absl::OkStatus();
}

void Session::SendCount(Type type, uint64_t request, uint64_t count) {
  Send(Builder(type, request).Add(local::CountReplyBody{count}));
}

absl::Status Session::OnTouch(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::KeysView view, Parsed(local::ParseKeys(packet, 0)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, TakeKeys(view));
  SendCount(Type::kTouchReply, request, cache_.Touch(ns->handle, keys_, view.body.request_id));
  return absl::OkStatus();
}

absl::Status Session::OnInvalidate(uint64_t request, Packet packet) {
  local::InvalidateBody body;
  Packet items;
  KV_RETURN_IF_ERROR(Parsed(local::ParseBody(packet, &body, &items)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, Namespace(body.ns));
  uint64_t removed = 0;
  if (body.keys == 0) {
    removed = cache_.Invalidate(ns->handle);
  } else if (body.key_bytes != ns->key_bytes) {
    return absl::InvalidArgumentError("INVALIDATE: keys of another length than the namespace's");
  } else {
    Unpack(items, body.key_bytes, &keys_);
    removed = cache_.InvalidateKeys(ns->handle, keys_);
  }
  SendCount(Type::kInvalidateReply, request, removed);
  return absl::OkStatus();
}

absl::Status Session::OnReportCorrupt(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::KeysView view, Parsed(local::ParseKeys(packet, 0)));
  KV_ASSIGN_OR_RETURN(const NamespaceInfo* const ns, TakeKeys(view));
  if (keys_.size() > kMaxReportsPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("REPORT_CORRUPT: at most ", kMaxReportsPerMessage, " keys a message"));
  }
  uint64_t corrupt = 0;
  for (const BlockKey& key : keys_) corrupt += cache_.ReportCorrupt(ns->handle, key);
  SendCount(Type::kReportCorruptReply, request, corrupt);
  return absl::OkStatus();
}

bool Session::MayAdmin() const {
  const uid_t uid = record_->process->uid;
  const auto& admins = options_.admin_uids;
  return uid == 0 || uid == ::geteuid() ||
         std::find(admins.begin(), admins.end(), uid) != admins.end();
}

absl::Status Session::OnAdmin(uint64_t request, Packet packet) {
  local::AdminBody body;
  Packet text;
  KV_RETURN_IF_ERROR(Parsed(local::ParseBody(packet, &body, &text)));
  if (!MayAdmin()) {
    return absl::PermissionDeniedError(
        absl::StrCat("uid ", record_->process->uid, " may not administer this daemon"));
  }
  if (!options_.admin) return absl::UnimplementedError("this daemon has no administration");
  const std::string_view json(reinterpret_cast<const char*>(text.data()), text.size());
  KV_ASSIGN_OR_RETURN(const std::string answer, options_.admin(json, record_->process->uid));
  if (sizeof(local::Header) + sizeof(body) + answer.size() > max_reply_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", answer.size(), " bytes and does not fit a message"));
  }
  body = {static_cast<uint32_t>(answer.size()), 0};
  Send(Builder(Type::kAdminReply, request).Add(body).AddBytes(answer.data(), answer.size()));
  return absl::OkStatus();
}

absl::Status Session::OnBye(Packet packet) {
  local::ByeBody body;
  KV_RETURN_IF_ERROR(Parsed(local::ParseBody(packet, &body)));
  if (body.session == 0 || body.session == record_->id) {
    end_ = SessionEnd::kBye;
    return absl::OkStatus();
  }
  SessionToken token;
  std::memcpy(token.data(), body.token, token.size());
  return reaper_.ByeFor(record_->process->uid, body.session, token);
}

}  // namespace kvarve
