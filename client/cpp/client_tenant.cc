// Client's part that asks what a daemon knows about its tenant, and the same of Prefetch.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/client_rep.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int64_t kPrefetchHoldNanos = 1'000'000;

absl::Status NotOnTheSocket(std::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(ToAbsl(what),
                   ": unimplemented on the same-host plane; use the gRPC endpoint "
                   "(rpc.listen), kvarves://host:port"));
}

}  // namespace

// Whoever holds what he looked up means to read it: the daemon brings it.
absl::StatusOr<PrefetchResult> Client::Prefetch(ClientNamespace ns, std::span<const BlockKey> keys,
                                                uint64_t request_id) {
  PrefetchResult result;
  if (keys.empty()) return result;
  if (is_remote()) return rep_->remote->Prefetch(ns, keys, request_id);
  keys = keys.first(std::min(keys.size(), local::kMaxKeysPerLookup));
  KV_ASSIGN_OR_RETURN(const size_t here, Touch(ns, keys, request_id));
  KV_ASSIGN_OR_RETURN(const LookupResult found, Lookup(ns, keys, kPrefetchHoldNanos));
  if (found.hold != 0) Release(found.hold);
  result.hit_blocks = std::max(here, found.hit_blocks);
  result.started_blocks = result.hit_blocks - here;
  return result;
}

absl::StatusOr<TenantStats> Client::ReadTenantStats() {
  if (is_remote()) return rep_->remote->ReadTenantStats();
  return NotOnTheSocket("statistics of one tenant");
}

absl::StatusOr<std::unique_ptr<EventStream>> Client::WatchEvents(int64_t timeout_nanos,
                                                                 const EventCursor& from) {
  if (timeout_nanos <= 0) return absl::InvalidArgumentError("timeout_nanos must be positive");
  if (is_remote()) return rep_->remote->WatchEvents(timeout_nanos, from);
  return NotOnTheSocket("events");
}

}  // namespace kvarve
