#include "client/cpp/client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/client_rep.h"
#include "client/cpp/environment.h"
#include "client/cpp/link.h"
#include "client/cpp/locate.h"
#include "client/cpp/remote.h"
#include "client/cpp/requests.h"
#include "client/trace/trace.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"

namespace kvarve {

using client::ChunkMapping;
using client::Connection;
using client::Endpoint;
using client::Link;
using client::OpenNamespaceInfo;
using client::Session;

// What a View keeps alive: the mappings that it reads, and the lease behind them.
struct View::Hold {
  std::shared_ptr<Link> link;
  std::shared_ptr<Session> session;
  uint64_t lease = 0;  // 0: another process's
  std::vector<std::shared_ptr<const ChunkMapping>> chunks;

  Hold(std::shared_ptr<Link> owner, std::shared_ptr<Session> of, uint64_t id)
      : link(std::move(owner)), session(std::move(of)), lease(id) {
    session->users.fetch_add(1);
  }
  ~Hold() {
    if (!link->CheckProcess().ok()) return;  // the lease is the parent's
    chunks.clear();
    link->outbox().EndView(session.get(), lease);
    link->FlushOwed();
  }
};

std::byte* Staging::data() const { return region_ == nullptr ? nullptr : region_->data(); }

namespace {

// A lease short enough to leave room for others, long enough to make round trips rare.
constexpr uint64_t kGetPieceBytes = 32ull << 20;
constexpr uint64_t kPutPieceBytes = 16ull << 20;
// The connection, and its staging with it, may be exchanged while a piece is copied there.
constexpr int kStagingTries = 3;
constexpr int64_t kPollNanosMax = 1'000'000;

std::string MakeEngineId() {
  return absl::StrCat("pid-", ::getpid(), "-", SystemClock::Get()->NowNanos());
}

absl::Status CheckOptions(const ClientOptions& options) {
  if (options.engine_id.size() > local::kMaxEngineIdBytes ||
      options.client_name.size() > local::kMaxEngineIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine_id and client_name: at most ", local::kMaxEngineIdBytes, " bytes"));
  }
  if (options.timeout_nanos <= 0 || options.put_timeout_nanos <= 0) {
    return absl::InvalidArgumentError("timeout_nanos and put_timeout_nanos must be positive");
  }
  if (options.poll_nanos < 0 || options.poll_nanos > kPollNanosMax) {
    return absl::InvalidArgumentError("poll_nanos must be at most a millisecond");
  }
  if (options.breaker_failures < 1) {
    return absl::InvalidArgumentError("breaker_failures must be at least 1");
  }
  if (options.probe_interval_nanos < 1'000'000) {
    return absl::InvalidArgumentError("probe_interval_nanos must be at least a millisecond");
  }
  return absl::OkStatus();
}

uint64_t BlockSeed(const OpenNamespaceInfo& info, const BlockKey& key) {
  return ChecksumSeed(info.id, key, info.block_bytes);
}

// Copies a block and compares what was copied with its checksum.
bool CopyVerified(std::byte* to, const std::byte* from, uint64_t bytes, uint64_t seed,
                  uint64_t checksum) {
  // The bytes before the first aligned one go by themselves; the CRC goes on behind them.
  const uint64_t head = std::min<uint64_t>(-reinterpret_cast<uintptr_t>(to) % 64, bytes);
  std::memcpy(to, from, head);
  const uint64_t crc = BlockChecksum(seed, to, head);
  return CopyAndChecksum(to + head, from + head, bytes - head, crc) == checksum;
}

// Blocks of `chain` from `begin` on, at most `count`, as a chain of its own.
PutChain SubChain(const PutChain& chain, size_t begin, size_t count) {
  PutChain part = chain;
  part.keys = chain.keys.subspan(begin, count);
  if (begin > 0) {
    part.parent = chain.keys[begin - 1];
    part.first_depth = chain.first_depth + static_cast<uint32_t>(begin);
  }
  return part;
}

bool Stored(PutOutcome outcome) {
  return outcome == PutOutcome::kStored || outcome == PutOutcome::kExists;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  KV_RETURN_IF_ERROR(CheckOptions(options));
  ClientOptions complete = options;
  client::ResolveEndpoint(&complete);
  KV_ASSIGN_OR_RETURN(Endpoint endpoint, client::ParseEndpoint(complete.endpoint));
  if (complete.engine_id.empty()) complete.engine_id = MakeEngineId();
  auto rep = std::make_unique<Rep>();
  if (endpoint.is_remote()) {
    if (complete.staging_bytes > 0) {
      KV_ASSIGN_OR_RETURN(rep->staging,
                          client::StagingMemory::Private(complete.staging_bytes, complete.memory));
    }
    KV_ASSIGN_OR_RETURN(rep->remote, client::MakeRemotePlane(complete, endpoint));
    rep->remote->TakeTracesFrom(&TraceScope::Current);
    return std::unique_ptr<Client>(new Client(std::move(rep)));
  }
  rep->link = std::make_shared<Link>(std::move(complete), std::move(endpoint));
  KV_RETURN_IF_ERROR(rep->link->Start());
  return std::unique_ptr<Client>(new Client(std::move(rep)));
}

std::string_view PutOutcomeName(PutOutcome outcome) {
  switch (outcome) {
    case PutOutcome::kStored:
      return "stored";
    case PutOutcome::kExists:
      return "exists";
    case PutOutcome::kRejectedParent:
      return "rejected_parent";
    case PutOutcome::kRejectedNoSpace:
      return "rejected_no_space";
    case PutOutcome::kRejectedPolicy:
      return "rejected_policy";
    case PutOutcome::kRejectedInvalidated:
      return "rejected_invalidated";
    case PutOutcome::kRejectedQuota:
      return "rejected_quota";
    case PutOutcome::kShed:
      return "shed";
  }
  return "unknown";
}

Client::Client(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

Client::~Client() {
  if (rep_->stamp.InChild()) {
    static_cast<void>(rep_.release());  // locks, thread and memory are the parent's
    return;
  }
  if (rep_->link != nullptr) rep_->link->Stop();
}

bool Client::is_remote() const { return rep_->remote != nullptr; }

absl::Status Client::WaitReady(int64_t timeout_nanos) {
  if (is_remote()) return rep_->remote->WaitReady(timeout_nanos);
  return rep_->link->WaitReady(timeout_nanos);
}

ClientState Client::State() const {
  if (is_remote()) return rep_->stamp.InChild() ? ClientState() : rep_->remote->State();
  return rep_->link->CheckProcess().ok() ? rep_->link->State() : ClientState();
}

absl::StatusOr<ClientNamespace> Client::OpenNamespace(const NamespaceDescriptor& descriptor) {
  if (is_remote()) return rep_->remote->OpenNamespace(descriptor);
  return rep_->link->OpenNamespace(descriptor);
}

uint64_t Client::block_bytes(ClientNamespace ns) const {
  const absl::StatusOr<OpenNamespaceInfo> info = rep_->KnownNamespace(ns);
  return info.ok() ? info->block_bytes : 0;
}

uint32_t Client::key_bytes(ClientNamespace ns) const {
  const absl::StatusOr<OpenNamespaceInfo> info = rep_->KnownNamespace(ns);
  return info.ok() ? info->key_bytes : 0;
}

absl::StatusOr<LookupResult> Client::Lookup(ClientNamespace ns, std::span<const BlockKey> keys,
                                            int64_t hold_nanos, uint32_t recompute_us) {
  LookupResult result;
  if (keys.empty()) return result;
  if (is_remote()) return rep_->remote->Lookup(ns, keys, hold_nanos, recompute_us);
  KV_RETURN_IF_ERROR(rep_->link->Run([&](Link::Turn& turn) {
    return client::SendLookup(turn, ns, keys, {hold_nanos, recompute_us},
                              rep_->link->options().timeout_nanos, &result);
  }));
  return result;
}

absl::StatusOr<GrantSet> Client::AcquireGrants(ClientNamespace ns, std::span<const BlockKey> keys,
                                               uint64_t request_id) {
  GrantSet grants;
  if (keys.empty()) return grants;
  if (is_remote()) return rep_->remote->Keep(ns, keys, request_id);
  KV_RETURN_IF_ERROR(rep_->link->Run([&](Link::Turn& turn) {
    KV_RETURN_IF_ERROR(client::SendAcquire(turn, ns, keys, request_id,
                                           rep_->link->options().timeout_nanos, &grants));
    if (grants.lease == 0) return absl::OkStatus();
    const std::shared_ptr<Session>& session = turn.connection().session();
    if (rep_->link->outbox().AddGrant(session, grants.lease)) return absl::OkStatus();
    rep_->link->outbox().EndLease(session.get(), grants.lease);
    return absl::ResourceExhaustedError("too many grants that were not released");
  }));
  return grants;
}

absl::StatusOr<View> Client::Acquire(ClientNamespace ns, std::span<const BlockKey> keys,
                                     uint64_t request_id) {
  View view;
  if (keys.empty()) return view;
  if (is_remote()) return ReadView(ns, keys, request_id);
  const std::shared_ptr<Link>& link = rep_->link;
  const auto ask = [&](Link::Turn& turn) {
    const int64_t timeout = link->options().timeout_nanos;
    KV_RETURN_IF_ERROR(client::SendAcquire(turn, ns, keys, request_id, timeout, &view.grants_));
    if (view.grants_.lease == 0) return absl::OkStatus();
    const auto hold =
        std::make_shared<View::Hold>(link, turn.connection().session(), view.grants_.lease);
    view.hold_ = hold;
    return client::LocateOrSync(turn, timeout, view.grants_, &hold->chunks, &view.blocks_);
  };
  // The daemon waits a little before it says that blocks are still on their way, so this is no
  // busy loop; and each answer shows that it lives.
  const int64_t deadline = SystemClock::Get()->NowNanos() + link->options().load_timeout_nanos;
  do {
    KV_RETURN_IF_ERROR(link->Run(ask));
  } while (view.grants_.is_loading && SystemClock::Get()->NowNanos() < deadline);
  return view;
}

absl::StatusOr<View> Client::Map(const GrantSet& grants) {
  if (is_remote()) {
    return absl::FailedPreconditionError("blocks of another host are not mapped: acquire them");
  }
  const std::shared_ptr<Link>& link = rep_->link;
  KV_RETURN_IF_ERROR(link->CheckProcess());
  const std::shared_ptr<Connection> connection = link->Current();
  if (connection == nullptr) return absl::FailedPreconditionError("not connected to kvarved");
  if (connection->session()->incarnation != grants.incarnation) {
    return absl::FailedPreconditionError("the grants are of another kvarved's life");
  }
  View view;
  view.grants_ = grants;
  const auto hold = std::make_shared<View::Hold>(link, connection->session(), 0);
  view.hold_ = hold;
  absl::Status located = client::Locate(connection->pools(), grants, &hold->chunks, &view.blocks_);
  if (located.code() == absl::StatusCode::kNotFound) {
    hold->chunks.clear();
    located = link->Run([&](Link::Turn& turn) {
      if (turn.connection().session() != connection->session()) {
        return absl::FailedPreconditionError("the connection ended meanwhile");
      }
      return client::LocateOrSync(turn, link->options().timeout_nanos, grants, &hold->chunks,
                                  &view.blocks_);
    });
  }
  KV_RETURN_IF_ERROR(located);
  return view;
}

void Client::Release(uint64_t lease) {
  if (is_remote()) return rep_->remote->Release(lease);
  if (!rep_->link->CheckProcess().ok()) return;
  rep_->link->outbox().EndById(lease);
  rep_->link->FlushOwed();
}

bool Client::Verify(ClientNamespace ns, const BlockKey& key, const std::byte* block,
                    uint64_t checksum) {
  const absl::StatusOr<OpenNamespaceInfo> info = rep_->KnownNamespace(ns);
  if (!info.ok()) return false;
  if (BlockChecksum(BlockSeed(*info, key), block, info->block_bytes) == checksum) return true;
  if (is_remote()) {
    rep_->remote->ReportMismatch(ns, key);
  } else {
    client::ReportMismatch(*rep_->link, ns, key);
  }
  return false;
}

absl::StatusOr<size_t> Client::Get(ClientNamespace ns, std::span<const BlockKey> keys,
                                   std::span<std::byte* const> destinations, uint64_t request_id,
                                   bool verify) {
  if (destinations.size() != keys.size()) {
    return absl::InvalidArgumentError("Get: one destination a key");
  }
  if (is_remote()) {
    KV_ASSIGN_OR_RETURN(const std::vector<uint64_t> checksums,
                        rep_->remote->Read(ns, keys, destinations, request_id, verify));
    return checksums.size();
  }
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo known, rep_->link->KnownNamespace(ns));
  const size_t piece_blocks = std::max<uint64_t>(1, kGetPieceBytes / known.block_bytes);
  size_t copied = 0;
  while (copied < keys.size()) {
    const std::span<const BlockKey> piece =
        keys.subspan(copied, std::min(piece_blocks, keys.size() - copied));
    absl::StatusOr<View> view = Acquire(ns, piece, request_id);
    absl::Status status = view.status();
    size_t found = 0;
    bool mismatch = false;
    auto take = [&](size_t i, const std::byte* block, uint64_t checksum,
                    const OpenNamespaceInfo& info) {
      std::byte* const to = destinations[copied + i];
      if (!verify) {
        StreamCopy(to, block, info.block_bytes);
      } else if (!CopyVerified(to, block, info.block_bytes, BlockSeed(info, piece[i]), checksum)) {
        mismatch = true;
        return false;
      }
      ++found;
      return true;
    };
    const bool over_cap = status.ok() && view->grants().over_lease_cap;
    if (over_cap && view->size() == 0) {
      status = client::ReadPiece(*rep_->link, ns, piece, request_id, take);
    } else if (status.ok()) {
      KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, rep_->link->KnownNamespace(ns));
      for (size_t i = 0; i < view->size(); ++i) {
        if (!take(i, view->block(i), view->checksum(i), info)) break;
      }
    }
    if (mismatch) client::ReportMismatch(*rep_->link, ns, piece[found]);
    copied += found;
    // What was copied is a right answer, though a shorter one.
    if (!status.ok() && copied == 0) return status;
    if (!status.ok() || mismatch || found == 0 || (found < piece.size() && !over_cap)) break;
  }
  return copied;
}

absl::StatusOr<Staging> Client::Stage(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("Stage: 0 bytes");
  std::shared_ptr<client::StagingMemory> memory;
  if (is_remote()) {
    memory = rep_->staging;
  } else {
    KV_RETURN_IF_ERROR(rep_->link->CheckProcess());
    const std::shared_ptr<Connection> connection = rep_->link->Current();
    if (connection == nullptr) return absl::UnavailableError("not connected to kvarved");
    memory = connection->staging();
  }
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        is_remote() || rep_->link->options().staging_bytes == 0
            ? "this client asked for no staging memory (staging_bytes)"
            : "kvarved had no staging memory left for this client "
              "(limits.staging_total_bytes, limits.staging_process_bytes); it is asked again");
  }
  Staging staging;
  KV_ASSIGN_OR_RETURN(staging.region_, memory->Allocate(bytes));
  staging.size_ = bytes;
  return staging;
}

absl::StatusOr<std::vector<PutOutcome>> Client::PutStaged(ClientNamespace ns, const PutChain& chain,
                                                          Staging staging, std::string* reason) {
  if (reason != nullptr) reason->clear();
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo known, rep_->KnownNamespace(ns));
  if (!staging.valid() || staging.size() / known.block_bytes < chain.keys.size()) {
    return absl::InvalidArgumentError("PutStaged: the staging is shorter than the blocks");
  }
  if (chain.keys.empty()) return std::vector<PutOutcome>();
  if (is_remote()) return rep_->remote->Put(ns, chain, staging.data(), staging.region_, reason);
  std::vector<PutOutcome> outcomes;
  const int64_t timeout = rep_->link->options().put_timeout_nanos;
  const int64_t deadline = SystemClock::Get()->NowNanos() + timeout;
  while (outcomes.size() < chain.keys.size()) {
    const size_t begin = outcomes.size();
    int64_t retry_nanos = 0;
    KV_RETURN_IF_ERROR(rep_->link->Run([&](Link::Turn& turn) {
      return client::SendPut(turn, ns, SubChain(chain, begin, chain.keys.size() - begin),
                             staging.region_, begin * known.block_bytes, timeout, deadline,
                             &outcomes, &retry_nanos);
    }));
    // Shed, or beyond the rate of the tenant's puts.
    const auto later = std::ranges::find_if(outcomes, [retry_nanos](PutOutcome outcome) {
      return outcome == PutOutcome::kShed ||
             (outcome == PutOutcome::kRejectedQuota && retry_nanos > 0);
    });
    if (later != outcomes.end() && SystemClock::Get()->NowNanos() + retry_nanos < deadline) {
      outcomes.erase(later, outcomes.end());
      std::this_thread::sleep_for(std::chrono::nanoseconds(retry_nanos));
      continue;
    }
    if (!Stored(outcomes.back())) break;
  }
  outcomes.resize(chain.keys.size(), PutOutcome::kRejectedParent);
  return outcomes;
}

absl::StatusOr<std::vector<PutOutcome>> Client::Put(ClientNamespace ns, const PutChain& chain,
                                                    std::span<const std::byte* const> sources,
                                                    std::string* reason) {
  if (reason != nullptr) reason->clear();
  if (sources.size() != chain.keys.size()) {
    return absl::InvalidArgumentError("Put: one source a key");
  }
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo known, rep_->KnownNamespace(ns));
  std::vector<PutOutcome> outcomes;
  while (outcomes.size() < chain.keys.size()) {
    const size_t begin = outcomes.size();
    size_t count =
        std::clamp<uint64_t>(kPutPieceBytes / known.block_bytes, 1, chain.keys.size() - begin);
    absl::StatusOr<std::vector<PutOutcome>> piece = std::vector<PutOutcome>();
    for (int tries = 0; tries < kStagingTries; ++tries) {
      absl::StatusOr<Staging> staging = Stage(count * known.block_bytes);
      while (staging.status().code() == absl::StatusCode::kResourceExhausted && count > 1) {
        count = (count + 1) / 2;
        staging = Stage(count * known.block_bytes);
      }
      KV_RETURN_IF_ERROR(staging.status());
      for (size_t i = 0; i < count; ++i) {
        // Past this core's caches: the daemon may read it on another, for which dirty lines are
        // far.
        StreamCopy(staging->data() + i * known.block_bytes, sources[begin + i], known.block_bytes);
      }
      piece = PutStaged(ns, SubChain(chain, begin, count), *std::move(staging), reason);
      if (!absl::IsFailedPrecondition(piece.status())) break;
    }
    KV_RETURN_IF_ERROR(piece.status());
    outcomes.insert(outcomes.end(), piece->begin(), piece->end());
    if (!Stored(outcomes.back())) break;
  }
  outcomes.resize(chain.keys.size(), PutOutcome::kRejectedParent);
  return outcomes;
}

absl::StatusOr<size_t> Client::Touch(ClientNamespace ns, std::span<const BlockKey> keys,
                                     uint64_t request_id) {
  size_t touched = 0;
  if (keys.empty()) return touched;
  if (is_remote()) return rep_->remote->Touch(ns, keys, request_id);
  KV_RETURN_IF_ERROR(rep_->link->Run([&](Link::Turn& turn) {
    return client::SendTouch(turn, ns, keys, request_id, rep_->link->options().timeout_nanos,
                             &touched);
  }));
  return touched;
}

absl::StatusOr<uint64_t> Client::Invalidate(ClientNamespace ns, std::span<const BlockKey> keys) {
  if (is_remote()) return rep_->remote->Invalidate(ns, keys);
  uint64_t removed = 0;
  KV_RETURN_IF_ERROR(rep_->link->Run([&](Link::Turn& turn) {
    return client::SendInvalidate(turn, ns, keys, rep_->link->options().put_timeout_nanos,
                                  &removed);
  }));
  return removed;
}

absl::StatusOr<std::string> Client::Admin(std::string_view json) {
  if (is_remote()) return rep_->remote->Admin(json);
  std::string answer;
  KV_RETURN_IF_ERROR(rep_->link->Run([&](Link::Turn& turn) {
    return client::SendAdmin(turn, json, rep_->link->options().put_timeout_nanos, &answer);
  }));
  return answer;
}

}  // namespace kvarve
