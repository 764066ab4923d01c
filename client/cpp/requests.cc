#include "client/cpp/requests.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {

using local::Builder;
using local::KeysBody;
using local::Type;

namespace {

using Packet = std::span<const uint8_t>;

// A request with keys and no extras.
std::string KeysMessage(Link::Turn& turn, Type type, const OpenNamespaceInfo& info,
                        std::span<const BlockKey> keys, KeysBody body) {
  body.ns = info.handle;
  body.keys = static_cast<uint32_t>(keys.size());
  body.key_bytes = info.key_bytes;
  Builder builder(type, turn.connection().NextRequest(),
                  sizeof(body) + keys.size() * info.key_bytes);
  builder.Add(body).AddKeys(keys, info.key_bytes);
  return std::move(builder).Finish();
}

absl::Status TooSmall() {
  return absl::FailedPreconditionError("the socket's send buffer is too small for one key");
}

size_t MaxBlocks(const Connection& connection, const OpenNamespaceInfo& info, size_t extra_bytes) {
  const size_t limit =
      std::min<size_t>(connection.welcome().body.max_blocks, local::kMaxBlocksPerAcquire);
  return connection.MaxKeys(info.key_bytes, extra_bytes, limit);
}

size_t MaxLookupKeys(const Connection& connection, const OpenNamespaceInfo& info) {
  const size_t limit =
      std::min<size_t>(connection.welcome().body.max_keys, local::kMaxKeysPerLookup);
  return connection.MaxKeys(info.key_bytes, 0, limit);
}

uint32_t Millis(int64_t nanos) {
  if (nanos <= 0) return 0;
  const int64_t millis = (nanos + 999'999) / 1'000'000;
  return static_cast<uint32_t>(std::min<int64_t>(millis, std::numeric_limits<uint32_t>::max()));
}

absl::StatusOr<uint64_t> CallForCount(Link::Turn& turn, const std::string& message, Type expected,
                                      int64_t timeout_nanos, uint64_t max) {
  KV_ASSIGN_OR_RETURN(const Packet packet, turn.Call(message, expected, timeout_nanos));
  local::CountReplyBody reply;
  if (!local::ParseBody(packet, &reply).ok() || reply.count > max) {
    return turn.Garbage("a count that cannot be");
  }
  return reply.count;
}

}  // namespace

absl::Status SendLookup(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                        const LookupWish& wish, int64_t timeout_nanos, LookupResult* result) {
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, turn.Namespace(ns));
  const size_t max = MaxLookupKeys(turn.connection(), info);
  if (max == 0) return TooSmall();
  const int64_t deadline = SystemClock::Get()->NowNanos() + timeout_nanos;
  *result = LookupResult();
  while (!keys.empty()) {
    const std::span<const BlockKey> part = keys.first(std::min(max, keys.size()));
    keys = wish.hold_nanos > 0 ? std::span<const BlockKey>() : keys.subspan(part.size());
    const std::string message =
        KeysMessage(turn, Type::kLookup, info, part,
                    {.hold_ms = Millis(wish.hold_nanos), .recompute_us = wish.recompute_us});
    KV_ASSIGN_OR_RETURN(const Packet packet, turn.Call(message, Type::kLookupReply, timeout_nanos));
    local::LookupReplyBody reply;
    if (!local::ParseBody(packet, &reply).ok() || reply.hit_blocks > part.size() ||
        reply.host_blocks > reply.hit_blocks) {
      return turn.Garbage("a LOOKUP_REPLY that cannot be");
    }
    result->hit_blocks += reply.hit_blocks;
    result->host_blocks += reply.host_blocks;
    result->hold = reply.hold;
    if (reply.hold != 0) {
      turn.connection().NoteHold(SystemClock::Get()->NowNanos() + wish.hold_nanos);
    }
    if (reply.hit_blocks < part.size()) break;
    if (keys.empty()) break;
    timeout_nanos = deadline - SystemClock::Get()->NowNanos();
    if (timeout_nanos <= 0) break;  // what was found is a right answer, though a shorter one
  }
  return absl::OkStatus();
}

absl::Status SendAcquire(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                         uint64_t request_id, int64_t timeout_nanos, GrantSet* grants) {
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, turn.Namespace(ns));
  const size_t max = MaxBlocks(turn.connection(), info, 0);
  if (max == 0) return TooSmall();
  keys = keys.first(std::min(max, keys.size()));
  const std::string message =
      KeysMessage(turn, Type::kAcquire, info, keys, {.request_id = request_id});
  KV_ASSIGN_OR_RETURN(const Packet packet, turn.Call(message, Type::kGrant, timeout_nanos));
  local::GrantBody body;
  Packet items;
  const bool parsed = local::ParseBody(packet, &body, &items).ok();
  const bool over_cap = (body.flags & local::kOverLeaseCap) != 0;
  if (!parsed || body.blocks > keys.size() || body.block_bytes != info.block_bytes ||
      body.incarnation != turn.connection().session()->incarnation ||
      (body.lease == 0) != (body.blocks == 0)) {
    return turn.Garbage("a GRANT that cannot be");
  }
  grants->incarnation = body.incarnation;
  grants->lease = body.lease;
  grants->block_bytes = body.block_bytes;
  grants->over_lease_cap = over_cap;
  grants->is_loading = (body.flags & local::kLoading) != 0;
  grants->items.resize(body.blocks);
  if (body.blocks > 0) std::memcpy(grants->items.data(), items.data(), items.size());
  return absl::OkStatus();
}

absl::Status SendPut(Link::Turn& turn, ClientNamespace ns, const PutChain& chain,
                     const std::shared_ptr<StagingRegion>& region, uint64_t region_offset,
                     int64_t timeout_nanos, int64_t deadline_nanos,
                     std::vector<PutOutcome>* outcomes, int64_t* retry_nanos) {
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, turn.Namespace(ns));
  if (region->memory() != turn.connection().staging().get()) {
    return absl::FailedPreconditionError("staged on an earlier connection");
  }
  const size_t max = MaxBlocks(turn.connection(), info, sizeof(uint64_t));
  if (max == 0) return TooSmall();
  const std::span<const BlockKey> keys = chain.keys.first(std::min(max, chain.keys.size()));
  KeysBody body{.ns = info.handle,
                .keys = static_cast<uint32_t>(keys.size()),
                .key_bytes = info.key_bytes,
                .request_id = chain.request_id,
                .first_depth = chain.first_depth,
                .recompute_us = chain.recompute_us,
                .wait_ms = Millis(deadline_nanos - SystemClock::Get()->NowNanos())};
  if (chain.parent.has_value()) {
    body.flags = local::kHasParent;
    std::memcpy(body.parent, chain.parent->bytes.data(), info.key_bytes);
  }
  Builder builder(Type::kPut, turn.connection().NextRequest(),
                  sizeof(body) + keys.size() * (info.key_bytes + sizeof(uint64_t)));
  builder.Add(body).AddKeys(keys, info.key_bytes);
  for (size_t i = 0; i < keys.size(); ++i) {
    builder.Add(region->offset() + region_offset + i * info.block_bytes);
  }
  KV_ASSIGN_OR_RETURN(const Packet packet, turn.Call(std::move(builder).Finish(), Type::kPutReply,
                                                     timeout_nanos, region));
  local::PutReplyBody reply;
  Packet results;
  constexpr uint8_t kLast = static_cast<uint8_t>(PutOutcome::kShed);
  if (!local::ParseBody(packet, &reply, &results).ok() || reply.blocks != keys.size() ||
      std::any_of(results.begin(), results.end(), [](uint8_t result) { return result > kLast; })) {
    return turn.Garbage("a PUT_REPLY that cannot be");
  }
  for (uint8_t result : results) outcomes->push_back(static_cast<PutOutcome>(result));
  *retry_nanos = int64_t{reply.retry_after_ms} * 1'000'000;
  return absl::OkStatus();
}

absl::Status SendTouch(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                       uint64_t request_id, int64_t timeout_nanos, size_t* touched) {
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, turn.Namespace(ns));
  const size_t max = MaxLookupKeys(turn.connection(), info);
  if (max == 0) return TooSmall();
  while (!keys.empty()) {
    const std::span<const BlockKey> part = keys.first(std::min(max, keys.size()));
    keys = keys.subspan(part.size());
    const std::string message =
        KeysMessage(turn, Type::kTouch, info, part, {.request_id = request_id});
    KV_ASSIGN_OR_RETURN(const uint64_t count,
                        CallForCount(turn, message, Type::kTouchReply, timeout_nanos, part.size()));
    *touched += count;
    if (count < part.size()) break;
  }
  return absl::OkStatus();
}

absl::Status SendInvalidate(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                            int64_t timeout_nanos, uint64_t* removed) {
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, turn.Namespace(ns));
  const size_t max = MaxLookupKeys(turn.connection(), info);
  if (max == 0) return TooSmall();
  do {
    const std::span<const BlockKey> part = keys.first(std::min(max, keys.size()));
    keys = keys.subspan(part.size());
    Builder builder(Type::kInvalidate, turn.connection().NextRequest());
    builder.Add(local::InvalidateBody{.ns = info.handle,
                                      .keys = static_cast<uint32_t>(part.size()),
                                      .key_bytes = info.key_bytes});
    builder.AddKeys(part, info.key_bytes);
    KV_ASSIGN_OR_RETURN(const uint64_t count,
                        CallForCount(turn, std::move(builder).Finish(), Type::kInvalidateReply,
                                     timeout_nanos, std::numeric_limits<uint64_t>::max()));
    *removed += count;
  } while (!keys.empty());
  return absl::OkStatus();
}

absl::Status SendAdmin(Link::Turn& turn, std::string_view json, int64_t timeout_nanos,
                       std::string* answer) {
  constexpr size_t kFixed = sizeof(local::Header) + sizeof(local::AdminBody);
  if (json.size() + kFixed > turn.connection().max_message_bytes()) {
    return absl::InvalidArgumentError("Admin: the request does not fit a message");
  }
  Builder builder(Type::kAdmin, turn.connection().NextRequest());
  builder.Add(local::AdminBody{.text_bytes = static_cast<uint32_t>(json.size())});
  builder.AddBytes(json.data(), json.size());
  KV_ASSIGN_OR_RETURN(const Packet packet,
                      turn.Call(std::move(builder).Finish(), Type::kAdminReply, timeout_nanos));
  local::AdminBody reply;
  Packet text;
  if (!local::ParseBody(packet, &reply, &text).ok()) {
    return turn.Garbage("an ADMIN_REPLY that does not parse");
  }
  answer->assign(reinterpret_cast<const char*>(text.data()), text.size());
  return absl::OkStatus();
}

absl::Status SendSync(Link::Turn& turn, int64_t timeout_nanos) {
  const std::string message = Builder(Type::kSync, turn.connection().NextRequest()).Finish();
  return CallForCount(turn, message, Type::kSyncReply, timeout_nanos,
                      std::numeric_limits<uint64_t>::max())
      .status();
}

namespace {

// The answer to a READ: the checksums of the leading blocks that lie in `region` now.
absl::Status SendRead(Link::Turn& turn, const OpenNamespaceInfo& info,
                      std::span<const BlockKey> keys, uint64_t request_id,
                      const std::shared_ptr<StagingRegion>& region, int64_t timeout_nanos,
                      std::vector<uint64_t>* checksums) {
  Builder builder(Type::kRead, turn.connection().NextRequest());
  builder.Add(KeysBody{.ns = info.handle,
                       .keys = static_cast<uint32_t>(keys.size()),
                       .key_bytes = info.key_bytes,
                       .request_id = request_id});
  builder.AddKeys(keys, info.key_bytes);
  for (size_t i = 0; i < keys.size(); ++i) builder.Add(region->offset() + i * info.block_bytes);
  KV_ASSIGN_OR_RETURN(const Packet packet, turn.Call(std::move(builder).Finish(), Type::kReadReply,
                                                     timeout_nanos, region));
  local::ReadReplyBody reply;
  Packet items;
  if (!local::ParseBody(packet, &reply, &items).ok() || reply.blocks > keys.size()) {
    return turn.Garbage("a READ_REPLY that cannot be");
  }
  for (size_t i = 0; i < reply.blocks; ++i) {
    checksums->push_back(local::ItemAt<uint64_t>(items, i));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StagedBlocks> ReadIntoStaging(Link& link, ClientNamespace ns,
                                             std::span<const BlockKey> keys, uint64_t request_id) {
  StagedBlocks read;
  KV_RETURN_IF_ERROR(link.Run([&](Link::Turn& turn) {
    KV_ASSIGN_OR_RETURN(read.info, turn.Namespace(ns));
    const std::shared_ptr<StagingMemory>& staging = turn.connection().staging();
    if (staging == nullptr) return absl::ResourceExhaustedError("no staging to copy through");
    read.asked = std::min(keys.size(), MaxBlocks(turn.connection(), read.info, sizeof(uint64_t)));
    if (read.asked == 0) return TooSmall();
    KV_ASSIGN_OR_RETURN(read.region, staging->AllocateBlocks(read.info.block_bytes, &read.asked));
    return SendRead(turn, read.info, keys.first(read.asked), request_id, read.region,
                    link.options().put_timeout_nanos, &read.checksums);
  }));
  return read;
}

absl::Status ReadPiece(Link& link, ClientNamespace ns, std::span<const BlockKey> keys,
                       uint64_t request_id,
                       absl::FunctionRef<bool(size_t i, const std::byte* block, uint64_t checksum,
                                              const OpenNamespaceInfo& info)>
                           take) {
  KV_ASSIGN_OR_RETURN(const StagedBlocks read, ReadIntoStaging(link, ns, keys, request_id));
  for (size_t i = 0; i < read.checksums.size(); ++i) {
    if (!take(i, read.region->data() + i * read.info.block_bytes, read.checksums[i], read.info))
      break;
  }
  return absl::OkStatus();
}

void ReportMismatch(Link& link, ClientNamespace ns, const BlockKey& key) {
  link.CountMismatch();
  link.Run([&](Link::Turn& turn) {
        KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, turn.Namespace(ns));
        const std::string message =
            KeysMessage(turn, Type::kReportCorrupt, info, std::span(&key, 1), {});
        return CallForCount(turn, message, Type::kReportCorruptReply, link.options().timeout_nanos,
                            1)
            .status();
      })
      .IgnoreError();  // the daemon will find it, or somebody will report it again
}

}  // namespace kvarve::client
