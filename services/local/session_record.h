// What the daemon remembers of a client: its process, and each session of it until nothing of the
// session can be in use any more. Owned by the reaper, and guarded by its mutex where not said
// otherwise.
#ifndef KVARVE_SERVICES_LOCAL_SESSION_RECORD_H_
#define KVARVE_SERVICES_LOCAL_SESSION_RECORD_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "client/local/mailbox.h"
#include "services/local/counters.h"
#include "services/local/staging.h"
#include "storage/base/unique_fd.h"
#include "storage/cache/cache.h"

namespace kvarve {

using SessionId = uint64_t;
using SessionToken = std::array<uint8_t, 16>;

struct Process {
  explicit Process(uint64_t staging_bytes_max, StagingBudget* total)
      : staging(staging_bytes_max, total) {}

  // Set once, before anybody else sees it.
  uint64_t serial = 0;  // never reused
  pid_t pid = 0;
  uid_t uid = 0;
  uint64_t pidfd_inode = 0;
  UniqueFd pidfd;  // invalid: PidfdSource::kNone

  LeaseAccount account;  // the cap of (uid, process); the sessions' parent. THREADS: the cache's.
  StagingBudget staging;

  bool exited = false;
  uint32_t live = 0;   // sessions
  uint32_t ended = 0;  // sessions that ended without BYE and still hold something
  uint32_t waits = 0;  // ended sessions (of any process) that wait for this one's exit
  int64_t last_end_nanos = 0;
};

struct SessionRecord {
  // Set once, before anybody else sees it.
  SessionId id = 0;
  SessionToken token{};
  std::shared_ptr<Process> process;
  gid_t gid = 0;
  std::string tenant;

  LeaseAccount account;  // its leases and holds. THREADS: the cache's.
  LeaseAccount copies;   // short leases of copy-out. THREADS: the cache's.

  // Of the session's thread, and of the reaper once that has ended.
  UniqueFd
      socket;  // closed under the reaper's mutex, so that waking never meets another's descriptor
  std::unique_ptr<SessionStaging> staging;
  bool welcomed = false;

  std::shared_ptr<local::Mailbox> mailbox;  // null: none, or the session's thread has ended

  std::string engine_id;  // empty until HELLO, or for a process on its own
  bool live = true;
  bool stop = false;                     // the daemon stops
  bool bye = false;                      // by this session, or by a later one in its name
  absl::flat_hash_set<uint64_t> chunks;  // announced, and not yet given up by the client
  // Of an ended session: its own process maps staging and chunks until it exits; its leases may be
  // in use by any process of its engine.
  bool holds_memory = false;
  bool holds_leases = false;
  std::vector<std::shared_ptr<Process>> lease_waits;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_SESSION_RECORD_H_
