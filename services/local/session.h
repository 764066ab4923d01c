// One client's connection, served by one thread: reads a request, does it (copies included),
// answers. Calls come through the session's mailbox, where the client takes one, and through the
// socket; between calls the thread then waits on the mailbox, which the client rings for the socket
// too.
//
// Everything a message says is checked against this session's own limits: its namespaces, its
// staging, its leases. A bad request gets an ERROR; too many malformed ones end the session. No
// descriptor is taken from a client: the receive offers no room for any.
//
// Chunks are announced (POOL_ADD) before the first GRANT that names them, on SYNC, and within a
// tick when idle; only those of the session's own pools, which are its tenant's. THREADS: Run in
// one; it ends when the socket ends (the reaper shuts it down to wake it). BLOCKS: on the socket,
// and for copies; a client that does not read its answers is given up.
#ifndef KVARVE_SERVICES_LOCAL_SESSION_H_
#define KVARVE_SERVICES_LOCAL_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/local/mailbox.h"
#include "client/local/messages.h"
#include "client/local/poll_wait.h"
#include "client/local/socket.h"
#include "services/local/counters.h"
#include "services/local/options.h"
#include "services/local/outbox.h"
#include "services/local/reaper.h"
#include "services/local/session_record.h"
#include "services/local/tenants.h"
#include "storage/base/mutex.h"
#include "storage/cache/cache.h"

namespace kvarve {

// What all sessions share; outlives them.
struct SessionContext {
  const LocalServerOptions& options;
  Cache* cache = nullptr;
  Tenants* tenants = nullptr;
  Counters* counters = nullptr;
  Reaper* reaper = nullptr;
};

inline constexpr size_t kMaxNamespacesPerSession = 256;
inline constexpr size_t kMaxMalformedPerSession = 16;
inline constexpr size_t kMaxReportsPerMessage = 64;  // REPORT_CORRUPT: each verifies a block
inline constexpr uint64_t kCopyOutBytes = 4ull
                                          << 20;  // leased at a time by READ; at least one block

class Session {
 public:
  Session(const SessionContext& context, std::shared_ptr<SessionRecord> record);
  ~Session();

  // From HELLO to the end.
  void Run();

 private:
  using Packet = std::span<const uint8_t>;
  enum class Told : uint8_t { kAdded, kDropping };

  // ---- session.cc
  // The next packet; empty when only time passed. Sets end_ when nothing more comes.
  Packet NextPacket();
  // `came`: something did, be it bad or the end.
  Packet ReceivePacket(local::Wait wait, bool* came = nullptr);
  // What the mailbox holds or tells of, without waiting.
  Packet LookAtMailbox(bool* came);
  Packet AwaitMailbox();
  void WaitForRoom();
  void SetReceiveTimeout(int64_t nanos);
  void Serve();
  void ServePacket(Packet packet);
  absl::Status Dispatch(const local::Header& header, Packet packet);
  void NoteRequest(size_t type, bool ok, int64_t nanos, size_t bytes);
  // An answer, the way that the request came if it can.
  void Send(std::string message);
  // Finishes the message; `message` is a chain of Adds.
  void Send(local::Builder& message) { Send(std::move(message).Finish()); }
  // Through the socket, at once or queued; sets end_ when the client does not take it.
  void SendPacket(std::string message, Outbox::Fds fds = {});
  void CheckSent(const absl::Status& sent);
  void SendError(uint64_t request, const absl::Status& status);
  // Counts a message that does not parse.
  template <typename T>
  T Parsed(T result) {
    if (!result.ok()) NoteMalformed();
    return result;
  }
  void NoteMalformed();

  // ---- session_open.cc
  // False: refused, and the client was told why.
  bool ServeHello();
  absl::StatusOr<local::Hello> ReadHello(uint64_t* request, Refusal* refusal);
  void Welcome(const local::Hello& hello, uint64_t request, uint16_t version);
  // Each gives what could be had to the client, in `welcome` and with a descriptor.
  void GiveStaging(const local::Hello& hello, local::Welcome* welcome, Outbox::Fds* fds);
  void GiveMailbox(const local::Hello& hello, local::Welcome* welcome, Outbox::Fds* fds);
  local::NamespaceOpenedBody OpenNamespace(const NamespaceDescriptor& descriptor,
                                           const NamespaceDigest& digest, absl::Status* status);
  absl::Status OnOpenNamespace(uint64_t request, Packet packet);
  // Tells the client of chunks that came and went since the last time.
  void AnnounceChunks(bool always);
  std::map<uint64_t, ChunkInfo> PresentChunks() const;
  absl::Status OnSync(uint64_t request, Packet packet);
  absl::Status OnPoolDropped(Packet packet);

  // ---- session_blocks.cc
  absl::StatusOr<const NamespaceInfo*> Namespace(uint32_t handle) const;
  // Checks namespace and key size, and unpacks the keys into keys_.
  absl::StatusOr<const NamespaceInfo*> TakeKeys(const local::KeysView& view);
  // Staging address of each block, by the extras.
  absl::StatusOr<std::vector<std::byte*>> StagingOf(const local::KeysView& view,
                                                    uint64_t block_bytes) const;
  absl::Status OnLookup(uint64_t request, Packet packet);
  absl::Status OnAcquire(uint64_t request, Packet packet);
  absl::Status OnRelease(Packet packet);
  absl::Status OnPut(uint64_t request, Packet packet);
  absl::Status OnRead(uint64_t request, Packet packet);
  absl::Status OnTouch(uint64_t request, Packet packet);
  absl::Status OnInvalidate(uint64_t request, Packet packet);
  absl::Status OnReportCorrupt(uint64_t request, Packet packet);
  absl::Status OnAdmin(uint64_t request, Packet packet);
  absl::Status OnBye(Packet packet);
  void SendCount(local::Type type, uint64_t request, uint64_t count);
  // Holds the leading keys found that the lease cap allows, for at most `nanos`; their number and
  // the lease. Beyond the number of holds: those found, and no lease.
  std::pair<size_t, LeaseId> Hold(NamespaceHandle ns, int64_t nanos);
  bool MayAdmin() const;
  // Blocks on their way from devices: the last that were asked for, which are asked for again until
  // they are there.
  struct PendingLoad {
    NamespaceHandle ns = 0;
    std::vector<BlockKey> keys;
    int64_t until_nanos = INT64_MAX;  // later the client has computed them
    Mutex mutex;
    CondVar changed;
    bool done ABSL_GUARDED_BY(mutex) = false;
  };
  // `recompute_nanos`: what computing the blocks that are not in memory costs; 0: unknown.
  void StartLoad(NamespaceHandle ns, size_t keys, int64_t recompute_nanos);
  bool AwaitLoad();  // for a moment; whether it is done
  AcquireResult AcquireLoaded(NamespaceHandle ns, uint64_t request_id, bool* is_loading);

  const LocalServerOptions& options_;
  Cache& cache_;
  Tenants& tenants_;
  Counters& counters_;
  Reaper& reaper_;
  const std::shared_ptr<SessionRecord> record_;
  Counters::Tenant& of_tenant_;
  const int socket_;
  Outbox outbox_;
  local::PollWait poll_;
  std::shared_ptr<local::Mailbox> mailbox_;  // null: the client takes none
  bool answers_mailbox_ = false;             // the request being served came there, and is open
  bool claimed_ = false;                     // the call in the mailbox, not yet read
  uint32_t socket_rings_ = 0;                // of the mailbox, that were looked after
  int64_t next_look_nanos_ = 0;              // at the socket, beside a mailbox
  int rings_in_vain_ = 0;                    // in a row
  uint32_t packets_sent_ = 0;                // through the socket, beside a mailbox
  std::unique_ptr<uint8_t[]> buffer_;

  std::optional<SessionEnd> end_;  // set: the session shall end so
  int ends_seen_ = 0;              // by the receive, in a row
  bool deaf_ = false;              // takes no answers any more; what it sent before is still served
  size_t malformed_ = 0;
  size_t max_reply_bytes_ = 0;
  std::vector<NamespaceInfo> namespaces_;  // by the session's own handle
  std::set<PoolId> pools_;
  std::vector<BlockKey> keys_;
  std::shared_ptr<PendingLoad> load_;

  uint64_t leases_ = 0;                          // not holds; to limit their number
  absl::flat_hash_map<LeaseId, int64_t> holds_;  // until when
  absl::flat_hash_map<uint64_t, Told> told_;     // chunks the client knows
  std::optional<uint64_t> announced_epoch_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_SESSION_H_
