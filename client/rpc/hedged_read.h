// One read of a run: asked for once, or, where reads are hedged, once more when its first frame
// takes long; the stream that answers first is read on, the other cancelled.
//
// THREADS: one.  BLOCKS: First, Next, up to the deadline.
#ifndef KVARVE_CLIENT_RPC_HEDGED_READ_H_
#define KVARVE_CLIENT_RPC_HEDGED_READ_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "client/rpc/hedge.h"
#include "client/rpc/remote_node.h"
#include "client/rpc/run_stream.h"

namespace kvarve::client {

class HedgedRead {
 public:
  // Begins it. `hedge` null: asked for once. What is passed outlives the read; `deadline_nanos` is
  // SystemClock's.
  HedgedRead(RemoteNode* node, Hedge* hedge, const char* method, const grpc::ByteBuffer& request,
             int64_t deadline_nanos);

  // The first frame, then each next one. False: nothing comes any more; stream()->Finish says why.
  bool First(grpc::ByteBuffer* frame);
  bool Next(grpc::ByteBuffer* frame) { return stream_->Read(frame); }
  // REQUIRES: First was called.
  RunStream* stream() { return stream_.get(); }

 private:
  // Asks once more; true when a frame has come, which is then in `frame_` and on stream_.
  std::optional<bool> Race();

  RemoteNode* const node_;
  Hedge* const hedge_;
  const char* const method_;
  const grpc::ByteBuffer& request_;
  const int64_t deadline_;
  grpc::ByteBuffer frame_, other_frame_;  // outlive the streams that read into them
  std::unique_ptr<RunStream> stream_;
  bool is_open_ = false;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_HEDGED_READ_H_
