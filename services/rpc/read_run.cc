#include "services/rpc/read_run.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <string>
#include <utility>

#include "client/frames/frames.h"
#include "client/rpc/grpc_status.h"

namespace kvarve {
namespace {

using Hold = std::shared_ptr<void>;

// The arena's bytes as a slice that keeps their lease. gRPC only reads them.
grpc::Slice LeasedSlice(const std::byte* data, size_t bytes, const Hold& hold) {
  return {const_cast<std::byte*>(data), bytes, [](void* held) { delete static_cast<Hold*>(held); },
          new Hold(hold)};
}

class Reactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit Reactor(ReadRun run) : run_(std::move(run)) { Next(); }

  void OnWriteDone(bool ok) override {
    run_.stream->Works();
    if (ok) {
      Next();
    } else {
      End(absl::CancelledError("the reader is gone"));
    }
  }
  void OnDone() override {
    run_.ended(status_, bytes_);
    delete this;
  }

 private:
  void Next() {
    if (at_ == lease_.blocks.size() && (LoadsFirst() || !Lease())) return;
    const StoredBlock& block = lease_.blocks[at_];
    const uint64_t payload = std::min(run_.ns.block_bytes - offset_, frames::kMaxPayloadBytes);
    const frames::FrameFields fields{"", static_cast<uint32_t>(done_), offset_, run_.ns.block_bytes,
                                     block.checksum};
    const frames::FrameHeader header(frames::Kind::kBlock, fields, payload);
    const grpc::Slice slices[] = {grpc::Slice(header.data(), header.size()),
                                  LeasedSlice(block.data + offset_, payload, lease_.hold)};
    frame_ = grpc::ByteBuffer(slices, 2);
    bytes_ += payload;
    offset_ += payload;
    if (offset_ == run_.ns.block_bytes) {
      offset_ = 0;
      ++at_;
      ++done_;
    }
    run_.stream->Waits();
    StartWrite(&frame_, grpc::WriteOptions().set_no_compression());
  }

  std::span<const BlockKey> Piece() const {
    const size_t most = std::max<uint64_t>(kReadPieceBytes / run_.ns.block_bytes, 1);
    const auto rest = std::span(run_.keys).subspan(done_);
    return rest.first(std::min(most, rest.size()));
  }

  // Whether blocks of the next piece come from a device: it goes on when they are here, or cannot
  // be.
  bool LoadsFirst() {
    const auto piece = Piece();
    if (loaded_until_ == done_ + piece.size() || is_short_ ||
        !run_.store->WantsLoad(run_.ns.handle, piece)) {
      return false;
    }
    loaded_until_ = done_ + piece.size();
    run_.store->Load(run_.ns.handle, piece, IoClass::kDemand, [this] { Next(); });
    return true;
  }

  // The next piece of the run. False: the call has ended.
  bool Lease() {
    frame_.Clear();
    lease_ = BlockLease();  // the one before ends with gRPC's last slice of it
    at_ = 0;
    const auto piece = Piece();
    if (!piece.empty() && !is_short_) {
      lease_ = run_.store->Acquire(run_.ns.handle, piece, run_.request_id);
      is_short_ = lease_.blocks.size() < piece.size() && !lease_.over_cap;
    }
    if (!lease_.blocks.empty()) return true;
    if (lease_.over_cap) {
      run_.context->AddTrailingMetadata(kRetryAfterTrailer, std::to_string(kRetryAfterMillis));
      End(absl::ResourceExhaustedError("more is being read now than may be; ask again"));
    } else {
      End(absl::OkStatus());
    }
    return false;
  }

  void End(const absl::Status& status) {
    status_ = status;
    Finish(ToGrpc(status));
  }

  ReadRun run_;
  BlockLease lease_;
  size_t at_ = 0;    // in the lease
  size_t done_ = 0;  // blocks of the run that were sent
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
  size_t loaded_until_ = 0;
  bool is_short_ = false;  // the store has no more of the run
  grpc::ByteBuffer frame_;
  absl::Status status_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartReadRun(ReadRun run) {
  return new Reactor(std::move(run));
}

}  // namespace kvarve
