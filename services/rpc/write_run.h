// WriteRun: frames come and are copied, once and while they are hot, from gRPC's own slices to
// where their block will be in the cache. A stream holds one block's place and two frames at most,
// and pays for a block and a frame in advance: a node that has no room for that sheds the stream at
// its first frame.
//
// THREADS: gRPC's.  BLOCKS: for a frame's copy.
#ifndef KVARVE_SERVICES_RPC_WRITE_RUN_H_
#define KVARVE_SERVICES_RPC_WRITE_RUN_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>

#include "services/rpc/block_store.h"
#include "services/rpc/caller.h"
#include "services/rpc/streams.h"

namespace kvarve {

inline constexpr uint32_t kShedRetryMillis = 100;

struct WriteRun {
  BlockStore* store = nullptr;
  std::unique_ptr<Streams::Stream> stream;
  Caller caller;
  grpc::ByteBuffer* response = nullptr;
  // Counts the call.
  std::function<void(const absl::Status&, uint64_t bytes, uint64_t request_id)> ended;
};
grpc::ServerReadReactor<grpc::ByteBuffer>* StartWriteRun(WriteRun run);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_WRITE_RUN_H_
