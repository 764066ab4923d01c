// One WriteRun: a piece of a chain as frames, and what became of it.
// THREADS: any.  BLOCKS: up to the deadline.
#ifndef KVARVE_CLIENT_RPC_RUN_WRITER_H_
#define KVARVE_CLIENT_RPC_RUN_WRITER_H_

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/namespace_info.h"
#include "client/rpc/remote_node.h"

namespace kvarve::client {

// What a put sends: blocks one after the other, in memory that lives until gRPC has let go of it.
struct PutSource {
  const std::byte* data = nullptr;
  std::shared_ptr<void> hold;

  grpc::Slice Slice(uint64_t offset, size_t bytes) const {
    using Held = std::shared_ptr<void>;
    return {const_cast<std::byte*>(data) + offset, bytes,
            [](void* held) { delete static_cast<Held*>(held); }, new Held(hold)};
  }
};

// What of a run was not taken, and when the daemon wants to be asked for it.
struct PutAgain {
  int64_t nanos = 0;   // 0: never
  std::string reason;  // of the tenant's quota that cut the run, with its numbers; else none did
};

// How many of so many blocks a frame holds, of a daemon that takes `max`.
size_t BlocksTogether(const OpenNamespaceInfo& info, size_t blocks, size_t max);

// Sends blocks of `chain` from `begin` on, as many as a run takes, up to `blocks_per_frame`
// (BlocksTogether) of them in a frame; adds outcomes of those that were decided.
absl::Status WriteRun(const NodeLinkPtr& link, const OpenNamespaceInfo& info, const PutChain& chain,
                      size_t begin, const PutSource& source, size_t blocks_per_frame,
                      int64_t deadline, std::vector<PutOutcome>* outcomes, PutAgain* again);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_RUN_WRITER_H_
