// Watches of a daemon's events over gRPC (client/cpp/events.h).
// THREADS: any.  BLOCKS: WatchEvents, up to `begin_nanos`.
#ifndef KVARVE_CLIENT_RPC_EVENT_WATCH_H_
#define KVARVE_CLIENT_RPC_EVENT_WATCH_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/events.h"
#include "client/rpc/remote_node.h"

namespace kvarve::client {

// A watch that lasts `timeout_nanos` at most, and has begun: the daemon said where. `node` outlives
// it.
absl::StatusOr<std::unique_ptr<EventStream>> WatchEvents(RemoteNode* node, int64_t timeout_nanos,
                                                         int64_t begin_nanos,
                                                         const EventCursor& from);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_EVENT_WATCH_H_
