// One ReadRun or WriteRun of raw frames, driven by the caller's thread on a completion queue of its
// own: reading in bulk through gRPC's callbacks costs half as much CPU again.
//
// THREADS: one; Cancel any.  BLOCKS: each call, up to the deadline.
#ifndef KVARVE_CLIENT_RPC_RUN_STREAM_H_
#define KVARVE_CLIENT_RPC_RUN_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/rpc/remote_node.h"

namespace kvarve::client {

class RunStream {
 public:
  // Begins the call; its first write goes with it. `deadline_nanos`: SystemClock's.
  RunStream(NodeLinkPtr link, const char* method, int64_t deadline_nanos);
  ~RunStream();  // cancels what is not finished
  RunStream(const RunStream&) = delete;
  RunStream& operator=(const RunStream&) = delete;

  // False: the peer hears no more; Finish says why. While the frame is on its way, `work` is called
  // until it says that there is no more to do. It must be short: between two calls the socket is
  // looked after, which nobody else does.
  bool Write(
      const grpc::ByteBuffer& frame, bool is_last,
      absl::FunctionRef<bool()> work = [] { return false; });
  // False: nothing comes any more.
  bool Read(grpc::ByteBuffer* frame);
  // Read in two steps: `frame` outlives the second. Nothing: it has not come within `nanos`.
  void StartRead(grpc::ByteBuffer* frame);
  std::optional<bool> EndRead(int64_t nanos);
  void Cancel() { context_.TryCancel(); }
  // The call's end.
  absl::Status Finish();
  // Beside RESOURCE_EXHAUSTED, after Finish: when to ask again; 0: not said.
  int64_t retry_after_nanos() const;

 private:
  bool Wait();

  const NodeLinkPtr link_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false, reads_ = false;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_RUN_STREAM_H_
