// One function a request: builds it, has it answered in a turn, checks and unpacks the answer. What
// an answer may not be ends the connection (Turn::Garbage).
//
// THREADS: whoever has the turn.  BLOCKS: up to the time-out.
#ifndef KVARVE_CLIENT_CPP_REQUESTS_H_
#define KVARVE_CLIENT_CPP_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/link.h"

namespace kvarve::client {

// Splits keys beyond one message, and stops at the first short answer; with a hold, asks for one
// message's keys only.
struct LookupWish {
  int64_t hold_nanos = 0;     // 0: no hold
  uint32_t recompute_us = 0;  // Client::Lookup
};
absl::Status SendLookup(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                        const LookupWish& wish, int64_t timeout_nanos, LookupResult* result);

// Of the keys that fit one message.
absl::Status SendAcquire(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                         uint64_t request_id, int64_t timeout_nanos, GrantSet* grants);

// Puts the blocks that fit one message from `region` (block i at `region_offset` + i x block_bytes)
// and appends their outcomes; `retry_nanos` gets when it is worth trying again, if not all are in
// place. Until `deadline_nanos` the caller would wait for that. The region stays with the
// connection if the answer is late.
absl::Status SendPut(Link::Turn& turn, ClientNamespace ns, const PutChain& chain,
                     const std::shared_ptr<StagingRegion>& region, uint64_t region_offset,
                     int64_t timeout_nanos, int64_t deadline_nanos,
                     std::vector<PutOutcome>* outcomes, int64_t* retry_nanos);

absl::Status SendTouch(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                       uint64_t request_id, int64_t timeout_nanos, size_t* touched);
// No keys: the whole namespace.
absl::Status SendInvalidate(Link::Turn& turn, ClientNamespace ns, std::span<const BlockKey> keys,
                            int64_t timeout_nanos, uint64_t* removed);
absl::Status SendAdmin(Link::Turn& turn, std::string_view json, int64_t timeout_nanos,
                       std::string* answer);
// All chunks that the daemon has announced are mapped afterwards.
absl::Status SendSync(Link::Turn& turn, int64_t timeout_nanos);

// What the daemon copied into staging: block i at i x info.block_bytes of `region`.
struct StagedBlocks {
  OpenNamespaceInfo info;
  std::shared_ptr<StagingRegion> region;
  std::vector<uint64_t> checksums;
  size_t asked = 0;  // of the keys, from the first on
};
// Has the daemon copy leading blocks of `keys`, as many as staging and a message take now.
absl::StatusOr<StagedBlocks> ReadIntoStaging(Link& link, ClientNamespace ns,
                                             std::span<const BlockKey> keys, uint64_t request_id);

// Has the daemon copy leading blocks of `keys` (as many as staging takes now) into staging, and
// hands each to `take` after the turn, until it returns false.
absl::Status ReadPiece(Link& link, ClientNamespace ns, std::span<const BlockKey> keys,
                       uint64_t request_id,
                       absl::FunctionRef<bool(size_t i, const std::byte* block, uint64_t checksum,
                                              const OpenNamespaceInfo& info)>
                           take);

// Counts a block whose bytes are not those of its checksum, and tells the daemon.
void ReportMismatch(Link& link, ClientNamespace ns, const BlockKey& key);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_REQUESTS_H_
