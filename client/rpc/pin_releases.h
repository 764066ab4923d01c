// Unpin messages in the background: nobody waits for them, and a pin ends by itself if its message
// is lost.
//
// A call holds its channel, and the last to let go of a channel waits for gRPC's own thread: that
// must not be a callback, which runs on that thread. What has ended is kept until the next release,
// or the end.
//
// THREADS: any.  BLOCKS: the destructor, for kEndTime and the answers to what it cancels.
#ifndef KVARVE_CLIENT_RPC_PIN_RELEASES_H_
#define KVARVE_CLIENT_RPC_PIN_RELEASES_H_

#include <cstdint>
#include <memory>

#include "client/rpc/remote_node.h"

namespace kvarve::client {

class PinReleases {
 public:
  PinReleases();
  ~PinReleases();
  PinReleases(const PinReleases&) = delete;
  PinReleases& operator=(const PinReleases&) = delete;

  void Release(const NodeLinkPtr& link, uint64_t pin);

 private:
  struct Calls;
  const std::shared_ptr<Calls> calls_;  // a callback's last step may come after the end
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_PIN_RELEASES_H_
