// Loads under way, by block: whoever wants a block that is being loaded waits for that load. A
// flight belongs to the daemon and not to who began it: it goes on when its waiters leave, and what
// it brings is there for the next. One that fails ends for all its waiters, with a miss.
//
// THREADS: any.  BLOCKS: Cancel, while a callback of that waiter runs; no callback may call Cancel.
#ifndef KVARVE_STORAGE_CACHE_FLIGHTS_H_
#define KVARVE_STORAGE_CACHE_FLIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve {

class Flights {
 public:
  using WaiterId = uint64_t;
  // `loaded`: the block is in the host tier. Called once, without a lock.
  using Landed = std::function<void(bool loaded)>;

  struct Limits {
    size_t flights = 16384;
    size_t waiters = 1024;  // of one flight
  };
  explicit Flights(const Limits& limits) : limits_(limits) {}

  enum class Joined : uint8_t {
    kLeads,    // the caller loads the block, and calls Land when it has, or cannot
    kWaits,    // somebody loads it
    kRefused,  // a limit: a miss. `landed` is not called
  };
  // One waiter may wait for many blocks, and for one block several times.
  Joined Join(const NamespaceId& ns, const BlockKey& key, WaiterId waiter, Landed landed);

  bool Has(const NamespaceId& ns, const BlockKey& key) const;

  // Ends the flight: tells those that wait. REQUIRES: the block's flight was begun by Join.
  void Land(const NamespaceId& ns, const BlockKey& key, bool loaded);

  // The waiter wants nothing any more. When this returns, no callback of it runs or will. Returns
  // how many were taken away; their flights go on.
  size_t Cancel(WaiterId waiter);

  struct Stats {
    size_t flights = 0;  // under way
    size_t waiting = 0;
    uint64_t begun = 0, joined = 0, failed = 0, cancelled = 0, refused = 0;  // since the start
  };
  Stats stats() const;

 private:
  using Name = std::pair<NamespaceId, std::array<uint8_t, BlockKey::kMaxBytes>>;
  struct Waiter {
    WaiterId id = 0;
    Landed landed;
  };

  const Limits limits_;
  mutable Mutex mutex_;
  CondVar told_;
  std::map<Name, std::vector<Waiter>> flights_ ABSL_GUARDED_BY(mutex_);
  std::map<WaiterId, size_t> telling_
      ABSL_GUARDED_BY(mutex_);  // callbacks that run or are about to
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_FLIGHTS_H_
