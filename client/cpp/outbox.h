// What this client owes the daemon and cannot always say at once: leases to end, chunks it has
// unmapped, earlier sessions of which no view is left. A View that dies writes here and never
// waits; whoever holds the connection next sends it.
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_CLIENT_CPP_OUTBOX_H_
#define KVARVE_CLIENT_CPP_OUTBOX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

// One connection as the daemon knows it. `users` counts the views and unreleased grants that read
// its leases.
struct Session {
  uint64_t id = 0;
  uint64_t incarnation = 0;
  std::array<uint8_t, 16> token{};
  std::atomic<int64_t> users{0};
};

class Outbox {
 public:
  // Earlier sessions with views that are remembered for their BYE; of more, the oldest waits for
  // this process's end.
  static constexpr size_t kMaxEarlierSessions = 64;
  // Grants that other processes read and that Release has not ended.
  static constexpr size_t kMaxGrants = 65536;

  // Makes `session` the one that what follows is sent on; the one before becomes an earlier one.
  void Begin(std::shared_ptr<Session> session);
  // The connection ended: what is owed on it is void. Earlier sessions stay. `left`: it ended with
  // BYE.
  void End(bool left = false);

  // A view died. The lease (0: another process's) ends if its session is still the current one.
  void EndView(Session* session, uint64_t lease);
  // A lease that nobody will use: a late answer's.
  void EndLease(const Session* session, uint64_t lease);
  // A chunk that the daemon dropped is unmapped now.
  void Unmapped(const Session* session, uint64_t chunk);

  // Remembers a lease that other processes read. False: too many.
  bool AddGrant(const std::shared_ptr<Session>& session, uint64_t lease);
  // Ends such a lease, or any other lease of the current session.
  void EndById(uint64_t lease);

  // Sends what is owed through `send`, until it fails: the rest stays owed. `send` must not call
  // this outbox.
  void Flush(const std::function<absl::Status(std::string_view)>& send);
  // A hint: something is owed.
  bool empty() const { return owed_.load(std::memory_order_relaxed) == 0; }

 private:
  void CountOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FlushLeases(const std::function<absl::Status(std::string_view)>& send)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::shared_ptr<Session> current_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> leases_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> unmapped_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Session>> earlier_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Session>> grants_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> owed_{0};
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_OUTBOX_H_
