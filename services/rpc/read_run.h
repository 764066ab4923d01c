// ReadRun: blocks leave as they lie in the arena. A frame is a header slice and a slice over the
// block's own memory, leased until gRPC has let go of it; a run is leased in pieces, so that a slow
// reader holds little.
//
// THREADS: gRPC's.  BLOCKS: never.
#ifndef KVARVE_SERVICES_RPC_READ_RUN_H_
#define KVARVE_SERVICES_RPC_READ_RUN_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <vector>

#include "client/frames/frames.h"
#include "services/rpc/block_store.h"
#include "services/rpc/streams.h"

namespace kvarve {

// When to ask again, in a trailer beside RESOURCE_EXHAUSTED.
inline constexpr char kRetryAfterTrailer[] = "kvarve-retry-after-ms";
inline constexpr uint32_t kRetryAfterMillis = 50;
// Payload of a frame: of a block, or of several where the reader takes several. A message costs
// gRPC about the same whatever its size.
inline constexpr uint64_t kFrameBytes = frames::kMaxPayloadBytes;
// Of a run's first: readers ask another node when it does not come soon (client/rpc/hedge.h).
inline constexpr uint64_t kFirstFrameBytes = 256ull << 10;
// Leased at once for one stream: a block at least.
inline constexpr uint64_t kReadPieceBytes = 16ull << 20;

struct ReadRun {
  BlockStore* store = nullptr;
  grpc::CallbackServerContext* context = nullptr;
  std::unique_ptr<Streams::Stream> stream;
  NamespaceInfo ns;
  std::vector<BlockKey> keys;
  uint64_t request_id = 0;
  size_t blocks_per_frame = 1;                                     // at most
  std::function<void(const absl::Status&, uint64_t bytes)> ended;  // counts the call
};
// The call's reactor; it ends itself.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartReadRun(ReadRun run);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_READ_RUN_H_
