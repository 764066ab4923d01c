// libkvarve: put and get prefix KV through the kvarved of this host, or of another.
//
// A Client is one process's connection. It needs no daemon to be created: it joins when one appears
// and joins again after a restart, in the background; until then every call answers Unavailable at
// once. A daemon that hangs costs each call at most its timeout, and after `breaker_failures` such
// calls nothing (the breaker opens, a probe in the background closes it). A miss is an answer (0
// blocks), never an error.
//
// On the endpoint of another host ("kvarves://host:port": gRPC in TLS; "kvarve://": gRPC in
// plaintext, which stays on this host unless it is allowed by name) the calls are the same: what is
// read in place here is there copied into memory of the View's own, verified as it comes, and
// grants keep blocks for a bounded time without saying where they lie.
// The first such Client has the process's allocator keep more freed memory (KeepFreedMemory,
// storage/base/freed_memory.h).
//
// Zero-copy reads hold a lease; the daemon keeps the memory as long as a View lives, whatever
// happens to it. After a fork the child's copy of a Client is dead (FailedPrecondition): make a new
// one.
//
// THREADS: any; calls of several threads on one Client take turns: give threads that must not wait
// for each other a Client each.  BLOCKS: up to the timeout.
#ifndef KVARVE_CLIENT_CPP_CLIENT_H_
#define KVARVE_CLIENT_CPP_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/events.h"
#include "client/cpp/host_memory.h"
#include "client/cpp/tenant_stats.h"
#include "client/local/messages.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve {

// PEM files for "kvarves://" endpoints; read again when they change.
struct ClientTls {
  std::string ca_file;           // authorities of daemons' certificates; required
  std::string certificate_file;  // this client's, with the chain up to the authority
  std::string key_file;          // its key; nobody else may read it
  std::string server_name;       // that the daemon's certificate must have; empty: the endpoint's
};

struct ClientOptions {
  // Empty: KVARVE_ENDPOINT of the environment, with the credentials that stand beside it
  // (client/cpp/environment.h), else unix:///run/kvarve/kvarved.sock.
  std::string endpoint;
  std::string
      engine_id;  // processes of one engine share their leases' end; empty: made from pid and time
  local::Role role = local::Role::kTool;
  uint16_t dp_rank = 0, pp_rank = 0, tp_rank = 0;
  std::string client_name = "libkvarve";
  std::string token_file;  // its first line is shown to daemons of other hosts; of mode 0600
  ClientTls tls;
  bool insecure_plaintext_off_loopback = false;  // else "kvarve://" goes to this host only
  // For puts; 0: this process never puts. A daemon that has none left is asked again from time to
  // time, when nothing is being read.
  uint64_t staging_bytes = 64ull << 20;
  int64_t timeout_nanos = 20'000'000;  // of lookups, acquires, touches
  // How long an acquire goes on asking, each time within timeout_nanos, for blocks that are on
  // their way from a device; then it is a miss.
  int64_t load_timeout_nanos = 5'000'000'000;
  // Of puts and invalidations, and of reads over a network; a put that is shed, or over its
  // tenant's rate (ingest_bytes_per_second), is tried again within it.
  int64_t put_timeout_nanos = 5'000'000'000;
  // How long a call looks for its answer before it sleeps, while that pays off
  // (client/local/poll_wait.h); 0: never.
  int64_t poll_nanos = 50'000;
  // Reads over a network that take longer than most did are asked for once more, on a connection of
  // its own; the first answer wins.
  bool hedge_reads = false;
  // Told of the memory that comes from the daemon; null: nobody.
  std::shared_ptr<HostMemoryObserver> memory;
  int breaker_failures = 3;                    // consecutive time-outs that open the breaker
  int64_t probe_interval_nanos = 250'000'000;  // reconnects and breaker probes
};

// A namespace as this client knows it; valid for the Client's life, reopened by itself after a
// restart.
using ClientNamespace = uint32_t;

struct LookupResult {
  // In any tier. With a hold: as many as the lease cap allows to hold, and those behind them that a
  // device has, which are being brought into memory.
  size_t hit_blocks = 0;
  size_t host_blocks = 0;  // in memory; with a hold: held
  uint64_t hold = 0;       // lease id; give it to Release early, or let it end
};

struct PrefetchResult {
  size_t hit_blocks = 0;      // leading ones, in any tier
  size_t started_blocks = 0;  // of them, on their way into memory
};

// Where leased blocks lie, in a form that another process of the same engine can map (Client::Map).
struct GrantSet {
  uint64_t incarnation = 0;
  uint64_t lease = 0;
  uint64_t block_bytes = 0;
  std::vector<local::GrantItem> items;
  bool over_lease_cap = false;
  bool is_loading = false;  // nothing is leased yet: blocks are on their way from a device
};

// Leased blocks in place. Move-only; releases on destruction. Outlives neither its Client nor a
// fork.
class View {
 public:
  View() = default;
  View(View&&) noexcept = default;
  View& operator=(View&&) noexcept = default;
  size_t size() const { return blocks_.size(); }
  const std::byte* block(size_t i) const { return blocks_[i]; }
  uint64_t checksum(size_t i) const { return grants_.items[i].checksum; }
  const GrantSet& grants() const { return grants_; }

 private:
  friend class Client;
  struct Hold;                  // keeps the mappings and the lease
  std::shared_ptr<void> hold_;  // a Hold, or the memory itself
  GrantSet grants_;
  std::vector<const std::byte*> blocks_;
};

// Copies of blocks in staging memory, of as many as it took.
struct StagedView {
  View view;
  bool is_cut = false;  // more were asked for than it took: ask again from there on
};

namespace client {
class StagingRegion;
}

// A piece of the staging memory. Move-only; given back on destruction, or when its PUT was
// answered.
class Staging {
 public:
  Staging() = default;
  Staging(Staging&&) noexcept = default;
  Staging& operator=(Staging&&) noexcept = default;
  std::byte* data() const;
  size_t size() const { return size_; }
  bool valid() const { return region_ != nullptr; }

 private:
  friend class Client;
  std::shared_ptr<client::StagingRegion> region_;
  size_t size_ = 0;
};

enum class PutOutcome : uint8_t {  // storage/cache's PutResult, by number
  kStored = 0,
  kExists = 1,
  kRejectedParent = 2,
  kRejectedNoSpace = 3,
  kRejectedPolicy = 4,
  kRejectedInvalidated = 5,
  kRejectedQuota = 6,
  kShed = 7,  // the daemon's devices could not keep up within the put's time
};
// "stored", "exists", "rejected_parent" and so on: what people and other languages read.
std::string_view PutOutcomeName(PutOutcome outcome);

struct PutChain {
  std::optional<BlockKey> parent;
  uint32_t first_depth = 0;
  std::span<const BlockKey> keys;
  uint64_t request_id = 0;
  uint32_t recompute_us = 0;
};

struct ClientState {
  bool connected = false;
  bool breaker_open = false;
  uint64_t incarnation = 0;
  std::string daemon_version;
  uint64_t timeouts = 0, reconnects = 0, checksum_mismatches = 0, hedged_reads = 0;
  std::string last_error;  // of the last attempt to connect; says what to do
};

class Client {
 public:
  // InvalidArgument: a bad endpoint or option. ResourceExhausted: no descriptor or thread is left
  // to the process. Never fails because no daemon is there.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();  // BYE when no view is left

  // Waits until connected and all namespaces are open; DeadlineExceeded carries last_error.
  absl::Status WaitReady(int64_t timeout_nanos);
  ClientState State() const;

  // Client's part of a descriptor. A daemon that refuses it makes calls on it answer its error.
  absl::StatusOr<ClientNamespace> OpenNamespace(const NamespaceDescriptor& descriptor);

  // Of more keys than a message takes, a lookup with a hold asks for the first message's only.
  // `recompute_us`: what computing one block costs the caller; 0: unknown. Blocks that a device
  // would bring later than they are computed are left out of the answer.
  absl::StatusOr<LookupResult> Lookup(ClientNamespace ns, std::span<const BlockKey> keys,
                                      int64_t hold_nanos = 0, uint32_t recompute_us = 0);
  // Leases the leading blocks found (at most kMaxBlocksPerAcquire); an empty View is a miss, or,
  // with grants().over_lease_cap, found but over the cap: Get still works.
  absl::StatusOr<View> Acquire(ClientNamespace ns, std::span<const BlockKey> keys,
                               uint64_t request_id = 0);
  // Ends a hold, or the lease of a GrantSet.
  void Release(uint64_t lease);

  // Acquire for another process: grants without mapping them here; ended by Release.
  absl::StatusOr<GrantSet> AcquireGrants(ClientNamespace ns, std::span<const BlockKey> keys,
                                         uint64_t request_id);
  // Whether blocks come over a network: AcquireGrants then keeps them, and Acquire, not Map, reads
  // them in any process.
  bool is_remote() const;
  // Maps what a sibling process holds the lease of. FailedPrecondition: other incarnation, or not
  // connected; NotFound: an unknown chunk; InvalidArgument: outside its chunk.
  absl::StatusOr<View> Map(const GrantSet& grants);

  // Copy-out: the leading blocks found go to `destinations` (block_bytes each); verified when
  // asked, a mismatch ends the hit there, is reported and counted. Works beyond the lease cap too.
  // Returns how many.
  absl::StatusOr<size_t> Get(ClientNamespace ns, std::span<const BlockKey> keys,
                             std::span<std::byte* const> destinations, uint64_t request_id = 0,
                             bool verify = true);
  // Copy-out into staging: the daemon copies the leading blocks found there, as many as staging
  // takes now, whatever the lease cap. The View holds that staging. An empty View is a miss;
  // ResourceExhausted: no staging for one block now. Not verified.
  absl::StatusOr<StagedView> ReadStaged(ClientNamespace ns, std::span<const BlockKey> keys,
                                        uint64_t request_id = 0);
  // True when the block's bytes match its checksum; else counted and reported to the daemon.
  bool Verify(ClientNamespace ns, const BlockKey& key, const std::byte* block, uint64_t checksum);

  // Puts a chain, copying through staging in pieces. One outcome a block. ResourceExhausted, with
  // the numbers: a quota takes nothing of a chain that begins here, or not in the put's time.
  // `reason`, where it is wanted, is given the same of a quota that kept only a part out; empty:
  // none did, or, on the same host, where the outcomes alone say so.
  absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                              std::span<const std::byte* const> sources,
                                              std::string* reason = nullptr);
  // Staging for a caller that fills it itself. ResourceExhausted when there is none now; never
  // waits.
  absl::StatusOr<Staging> Stage(size_t bytes);
  // Puts blocks that lie one after the other in `staging`. The daemon finishes it though this
  // process dies.
  absl::StatusOr<std::vector<PutOutcome>> PutStaged(ClientNamespace ns, const PutChain& chain,
                                                    Staging staging, std::string* reason = nullptr);

  absl::StatusOr<size_t> Touch(ClientNamespace ns, std::span<const BlockKey> keys,
                               uint64_t request_id);
  // Has the daemon bring blocks into memory, and waits for none of them; one access to those that
  // are there. On the same host, of the keys that a message takes.
  absl::StatusOr<PrefetchResult> Prefetch(ClientNamespace ns, std::span<const BlockKey> keys,
                                          uint64_t request_id = 0);
  absl::StatusOr<uint64_t> Invalidate(ClientNamespace ns, std::span<const BlockKey> keys = {});
  // What this client's tenant has and did, and its events; the latter within timeout_nanos from
  // now, and from where a watch before it came to. Unimplemented on the same host's socket: use the
  // gRPC endpoint. WatchEvents fails as a call does; what happens later is EventStream's.
  absl::StatusOr<TenantStats> ReadTenantStats();
  absl::StatusOr<std::unique_ptr<EventStream>> WatchEvents(int64_t timeout_nanos,
                                                           const EventCursor& from = {});
  // JSON request and answer: {"op": "status" | "stats" | "resize" | ..., ...} (docs/operations.md).
  // Of another host's daemon at its rpc.admin_listen; Unimplemented elsewhere.
  absl::StatusOr<std::string> Admin(std::string_view json);

  // 0: no such namespace.
  uint64_t block_bytes(ClientNamespace ns) const;
  uint32_t key_bytes(ClientNamespace ns) const;

 private:
  struct Rep;
  explicit Client(std::unique_ptr<Rep> rep);
  absl::StatusOr<View> ReadView(ClientNamespace ns, std::span<const BlockKey> keys,
                                uint64_t request_id);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_CLIENT_H_
