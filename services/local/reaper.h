// Who is connected, and what may still be in use by those who are not.
//
// A session ends with BYE: its leases end at once. Without BYE they are quarantined until the
// session's process has exited (its pidfd says so) and, when the session named an engine, all
// processes of that engine (same uid) that were known when it ended: a worker may be reading what
// its scheduler leased. Staging and announced chunks are given up when the session's own process
// has exited. A later session may say BYE for an earlier one, with its token. When a process exits
// whose socket something else keeps open, its sessions are closed from here.
//
// One thread watches the pidfds, and every `reaper_nanos` ends holds and forgets dropped chunks
// that no client maps any more. THREADS: any.  BLOCKS: Stop, until all sessions' threads have
// ended; End, for unmapping.
#ifndef KVARVE_SERVICES_LOCAL_REAPER_H_
#define KVARVE_SERVICES_LOCAL_REAPER_H_

#include <pthread.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/local/counters.h"
#include "services/local/options.h"
#include "services/local/peer.h"
#include "services/local/session_record.h"
#include "storage/base/mutex.h"
#include "storage/cache/cache.h"

namespace kvarve {

inline constexpr size_t kMaxEndedSessions = 4096;

class Reaper {
 public:
  // All outlive the reaper.
  Reaper(const LocalServerOptions* options, Cache* cache, Counters* counters);
  ~Reaper();

  absl::Status Start();
  // Wakes all sessions, joins their threads, then lets go of everything.
  void Stop();

  // A new session of the peer; takes `socket` if it succeeds. ResourceExhausted: a limit; `refusal`
  // says which.
  absl::StatusOr<std::shared_ptr<SessionRecord>> Admit(Peer peer, UniqueFd* socket,
                                                       std::string tenant, Refusal* refusal);
  // The record's thread, to be joined after End; before that End may have been called already.
  void Adopt(const std::shared_ptr<SessionRecord>& record, pthread_t thread);

  void SetEngine(SessionRecord* record, std::string engine_id);
  // Rung from then on when the session shall end.
  void SetMailbox(SessionRecord* record, std::shared_ptr<local::Mailbox> mailbox);
  // The last act of a session's thread (or of the acceptor, when there is none). Returns how it
  // really ended: a hangup may be the reaper's own doing.
  SessionEnd End(const std::shared_ptr<SessionRecord>& record, SessionEnd how);

  // BYE for another session. NotFound: no such session; PermissionDenied: wrong token or user.
  absl::Status ByeFor(uid_t uid, SessionId id, const SessionToken& token);

  // Counted before the client is told, and until it says POOL_DROPPED or is gone.
  void AddChunks(SessionRecord* record, std::span<const uint64_t> chunks);
  void RemoveChunk(SessionRecord* record, uint64_t chunk);

  const StagingBudget& staging() const { return staging_; }
  void CopyTo(LocalStats* stats) const;

 private:
  using RecordPtr = std::shared_ptr<SessionRecord>;
  using ProcessPtr = std::shared_ptr<Process>;
  // What is let go outside the mutex.
  struct Released {
    std::vector<RecordPtr> leases;
    std::vector<RecordPtr> staging;
  };

  void Run();
  void Wake();
  void Finish(const Released& released);
  void SweepChunks();
  void CheckProcessesWithoutPidfd(Released* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void JoinEnded();

  absl::Status CheckLimits(uid_t uid, Refusal* refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ProcessPtr ProcessOf(Peer peer, uint64_t lease_bytes_max) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnExit(const ProcessPtr& process, Released* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<ProcessPtr> EngineOf(const SessionRecord& record) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of what the ended record need not keep; true when nothing is left of it.
  bool Settle(const RecordPtr& record, Released* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpMemory(const RecordPtr& record, Released* released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpLeases(const RecordPtr& record, Released* released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetIfUnused(const ProcessPtr& process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LocalServerOptions& options_;
  Cache* const cache_;
  Counters* const counters_;
  StagingBudget staging_;
  UniqueFd epoll_, wake_;
  pthread_t thread_{};
  bool started_ = false;

  mutable Mutex mutex_;
  CondVar changed_;                                // a session ended
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // admits nobody
  bool done_ ABSL_GUARDED_BY(mutex_) = false;      // the thread ends
  SessionId next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_process_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<SessionId, RecordPtr> live_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, RecordPtr> ended_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, pthread_t> threads_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, ProcessPtr> processes_ ABSL_GUARDED_BY(mutex_);  // by serial
  std::map<uid_t, uint32_t> live_of_uid_ ABSL_GUARDED_BY(mutex_);
  ConnectionUse live_of_tenant_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, uint32_t> chunk_users_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_REAPER_H_
