#include "services/rpc/read_run.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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
    const size_t blocks = BlocksOfFrame();
    const uint64_t payload = std::min(blocks * run_.ns.block_bytes - offset_, FrameBytes());
    frames::FrameFields fields{"", static_cast<uint32_t>(done_), offset_, run_.ns.block_bytes,
                               lease_.blocks[at_].checksum};
    for (size_t i = 1; i < blocks; ++i) {
      fields.more_checksums.push_back(lease_.blocks[at_ + i].checksum);
    }
    const frames::FrameHeader header(frames::Kind::kBlock, fields, payload);
    slices_.assign(1, grpc::Slice(header.data(), header.size()));
    AddPayload(blocks, payload);
    frame_ = grpc::ByteBuffer(slices_.data(), slices_.size());
    slices_.clear();
    bytes_ += payload;
    offset_ += payload;
    if (offset_ == blocks * run_.ns.block_bytes) {
      offset_ = 0;
      at_ += blocks;
      done_ += blocks;
    }
    run_.stream->Waits();
    StartWrite(&frame_, grpc::WriteOptions().set_no_compression());
  }

  uint64_t FrameBytes() const { return bytes_ == 0 ? kFirstFrameBytes : kFrameBytes; }

  // A part of one block, or several whole ones.
  size_t BlocksOfFrame() const {
    if (offset_ > 0) return 1;
    const size_t fit = std::max<uint64_t>(FrameBytes() / run_.ns.block_bytes, 1);
    return std::min({run_.blocks_per_frame, fit, lease_.blocks.size() - at_});
  }

  // Blocks that lie behind each other are one slice.
  void AddPayload(size_t blocks, uint64_t payload) {
    if (blocks == 1) {
      slices_.push_back(LeasedSlice(lease_.blocks[at_].data + offset_, payload, lease_.hold));
      return;
    }
    const uint64_t bytes = run_.ns.block_bytes;
    for (size_t i = 0; i < blocks;) {
      const std::byte* const begin = lease_.blocks[at_ + i].data;
      size_t together = 1;
      while (i + together < blocks &&
             lease_.blocks[at_ + i + together].data == begin + together * bytes) {
        ++together;
      }
      slices_.push_back(LeasedSlice(begin, together * bytes, lease_.hold));
      i += together;
    }
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
      lease_ = run_.store->Acquire(run_.ns, piece, run_.request_id);
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
    run_.ns.open.reset();  // the caller may have its answer long before gRPC is done with the call
    Finish(ToGrpc(status));
  }

  ReadRun run_;
  BlockLease lease_;
  size_t at_ = 0;    // in the lease
  size_t done_ = 0;  // blocks of the run that were sent
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
  std::vector<grpc::Slice> slices_;
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
