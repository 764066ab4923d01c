// What a daemon of another host tells of its blocks: events of the caller's tenant, in the order of
// their numbers, from now on or from a number that is still in the daemon's window on.
#ifndef KVARVE_CLIENT_CPP_EVENTS_H_
#define KVARVE_CLIENT_CPP_EVENTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve {

// Numbers of kvarve.v1.EventKind and kvarve.v1.Tier. A later daemon's are passed on as they are.
enum class EventKind : uint8_t {
  kUnknown = 0,
  kStored = 1,
  kRemoved = 2,
  kTierChanged = 3,
  kCleared = 4,  // the whole namespace was invalidated
};
enum class BlockTier : uint8_t { kNone = 0, kHost = 1, kNvme = 2 };
// "stored", "removed", "tier_changed", "cleared"; "host", "nvme"; others are "unknown" and "".
std::string_view EventKindName(EventKind kind);
std::string_view BlockTierName(BlockTier tier);

// Where to go on. {}: from now on.
struct EventCursor {
  uint64_t incarnation = 0;  // of the daemon: numbers begin anew when it is started again
  uint64_t sequence = 0;     // of the first event that is wanted
  bool operator==(const EventCursor&) const = default;
};

struct BlockEvent {
  uint64_t sequence = 0;  // of all events of the node: those of other tenants are left out
  EventKind kind = EventKind::kUnknown;
  NamespaceId ns;
  BlockKey key;            // not with kCleared
  uint32_t key_bytes = 0;  // of it; 0: none
  uint32_t depth = 0;
  BlockTier tier = BlockTier::kNone;  // where it was stored or moved to
};

struct EventBatch {
  EventCursor next;  // behind these events
  std::vector<BlockEvent> events;
};

// A watch. It goes on by itself, without a gap, after the connection was lost or credentials were
// renewed; it has no thread, and is over with its object. Outlives neither its Client nor a fork.
// THREADS: one; Cancel any.
class EventStream {
 public:
  virtual ~EventStream() = default;
  // BLOCKS: up to `nanos`. A batch without events: none came. OutOfRange: events were missed, since
  // the daemon's window has gone on without this watch, or it was started again: take stock anew
  // and watch from {}. DeadlineExceeded: the watch's time is over. Cancelled: by Cancel. After an
  // error the stream is over.
  virtual absl::StatusOr<EventBatch> Next(int64_t nanos) = 0;
  // Ends a Next under way, and all others.
  virtual void Cancel() = 0;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_EVENTS_H_
