#include "client/rpc/run_writer.h"

#include <algorithm>
#include <span>

#include "client/frames/frames.h"
#include "client/rpc/run_messages.h"
#include "client/rpc/run_stream.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"

namespace kvarve::client {
namespace {

// The daemon says when it would take one block; a run is worth more than that.
constexpr int64_t kRateMillis = 50;
constexpr char kWriteRun[] = "/kvarve.v1.KvCache/WriteRun";

PutOutcome OutcomeOf(int result) {
  switch (result) {
    case v1::PUT_STORED:
      return PutOutcome::kStored;
    case v1::PUT_EXISTS:
      return PutOutcome::kExists;
    case v1::PUT_REJECTED_PARENT:
      return PutOutcome::kRejectedParent;
    case v1::PUT_REJECTED_INVALIDATED:
      return PutOutcome::kRejectedInvalidated;
    case v1::PUT_REJECTED_QUOTA:
      return PutOutcome::kRejectedQuota;
    case v1::PUT_REJECTED_NO_SPACE:
      return PutOutcome::kRejectedNoSpace;
    case v1::PUT_SHED:
      return PutOutcome::kShed;
    default:  // the policy's, and what a later daemon may refuse for
      return PutOutcome::kRejectedPolicy;
  }
}

// A message costs gRPC about the same whatever its size. The daemon copies a frame when all of it
// is there, and here it is sent after it was summed: both shall still have it in their caches.
constexpr uint64_t kFrameBytes = 512 << 10;
static_assert(kFrameBytes <= frames::kMaxPayloadBytes);
// About ten microseconds of summing.
constexpr uint64_t kSummedAtOnce = 128 << 10;

// A frame's place in a run: a part of one block, or whole ones.
struct Part {
  size_t block = 0;
  uint64_t offset = 0;  // in it
  size_t blocks = 1;
  uint64_t bytes = 0;
};

// Sends the opening and the blocks of a run. A block's checksum goes with its last frame; what a
// frame holds is summed while the frame before is on its way.
class BlockSender {
 public:
  BlockSender(const OpenNamespaceInfo& info, std::span<const BlockKey> keys, const std::byte* first,
              const std::shared_ptr<void>& hold, size_t blocks_per_frame, RunStream* stream)
      : info_(info),
        keys_(keys),
        source_{first, hold},
        stream_(stream),
        together_(blocks_per_frame) {
    sums_.reserve(keys.size());
  }

  // Ends early when the peer hears no more: its answer says why.
  void Send(const grpc::ByteBuffer& opening) {
    Part part = PartAt(0, 0);
    SumTo(part);
    if (!Write(opening, false)) return;
    while (part.block < keys_.size()) {
      while (SumPiece()) {  // what is left of this part
      }
      const frames::FrameHeader header(frames::Kind::kWrite, FieldsOf(part), part.bytes);
      const grpc::Slice slices[] = {
          grpc::Slice(header.data(), header.size()),
          source_.Slice(part.block * info_.block_bytes + part.offset, part.bytes)};
      part = Behind(part);
      SumTo(part);
      if (!Write(grpc::ByteBuffer(slices, 2), part.block == keys_.size())) return;
    }
  }

 private:
  Part PartAt(size_t block, uint64_t offset) const {
    const size_t blocks = std::min(together_, keys_.size() - block);
    if (offset == 0 && blocks > 1) return {block, 0, blocks, blocks * info_.block_bytes};
    return {block, offset, 1, std::min(info_.block_bytes - offset, kFrameBytes)};
  }
  Part Behind(const Part& part) const {
    if (part.blocks > 1) return PartAt(part.block + part.blocks, 0);
    const uint64_t end = part.offset + part.bytes;
    return end == info_.block_bytes ? PartAt(part.block + 1, 0) : PartAt(part.block, end);
  }
  frames::FrameFields FieldsOf(const Part& part) const {
    frames::FrameFields fields;
    fields.index = static_cast<uint32_t>(part.block);
    fields.offset = part.offset;
    if (sums_.size() == part.block) return fields;  // there is more of the block
    fields.checksum = sums_[part.block];
    fields.more_checksums.assign(sums_.begin() + static_cast<ptrdiff_t>(part.block) + 1,
                                 sums_.begin() + static_cast<ptrdiff_t>(part.block + part.blocks));
    return fields;
  }
  bool Write(const grpc::ByteBuffer& frame, bool is_last) {
    return stream_->Write(frame, is_last, [this] { return SumPiece(); });
  }

  // Sums are wanted up to the end of `part`.
  void SumTo(const Part& part) {
    if (part.block == keys_.size()) return;
    sum_until_ = part.block * info_.block_bytes + part.offset + part.bytes;
  }
  // A piece of that. False: there is no more of it.
  bool SumPiece() {
    if (summed_ == sum_until_) return false;
    const uint64_t until = std::min(summed_ + kSummedAtOnce, sum_until_);
    while (summed_ < until) {
      const uint64_t begin = sums_.size() * info_.block_bytes;  // of the block that is summed
      if (summed_ == begin) {
        sum_ = ChecksumSeed(info_.id, keys_[sums_.size()], info_.block_bytes);
      }
      const uint64_t bytes = std::min(begin + info_.block_bytes, until) - summed_;
      sum_ = BlockChecksum(sum_, source_.data + summed_, bytes);
      summed_ += bytes;
      if (summed_ == begin + info_.block_bytes) sums_.push_back(sum_);
    }
    return true;
  }

  const OpenNamespaceInfo& info_;
  const std::span<const BlockKey> keys_;
  const PutSource source_;
  RunStream* const stream_;
  const size_t together_;       // small blocks in a frame
  std::vector<uint64_t> sums_;  // of the leading blocks
  // Of the next one so far; how much of the run is summed, and shall be before the next frame goes.
  uint64_t sum_ = 0, summed_ = 0, sum_until_ = 0;
};

}  // namespace

size_t BlocksTogether(const OpenNamespaceInfo& info, size_t blocks, size_t max) {
  return std::clamp<size_t>(
      std::min<uint64_t>(blocks, frames::kMaxWrittenTogetherBytes / info.block_bytes), 1, max);
}

absl::Status WriteRun(const NodeLinkPtr& link, const OpenNamespaceInfo& info, const PutChain& chain,
                      size_t begin, const PutSource& source, size_t blocks_per_frame,
                      int64_t deadline, std::vector<PutOutcome>* outcomes, PutAgain* again) {
  const size_t count = std::min(chain.keys.size() - begin, frames::kMaxBlocksPerRun);
  const std::span<const BlockKey> keys = chain.keys.subspan(begin, count);
  v1::WriteRunOpen open;
  SetRun(info, keys, &open);
  const BlockKey* const parent = begin > 0      ? &chain.keys[begin - 1]
                                 : chain.parent ? &*chain.parent
                                                : nullptr;
  if (parent != nullptr) open.set_parent(parent->bytes.data(), info.key_bytes);
  open.set_first_depth(chain.first_depth + static_cast<uint32_t>(begin));
  open.set_request_id(chain.request_id);
  open.set_recompute_us(chain.recompute_us);

  RunStream stream(link, kWriteRun, deadline);
  BlockSender(info, keys, source.data + begin * info.block_bytes, source.hold, blocks_per_frame,
              &stream)
      .Send(BufferOf(frames::OpeningFrame(open.SerializeAsString())));
  grpc::ByteBuffer buffer;
  const bool answered = stream.Read(&buffer);
  KV_RETURN_IF_ERROR(stream.Finish());
  v1::WriteRunReply reply;
  grpc::Slice bytes;
  if (!answered || !buffer.DumpToSingleSlice(&bytes).ok() ||
      !reply.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())) ||
      static_cast<size_t>(reply.results_size()) != count) {
    return absl::InternalError("the daemon's answer to a put is not one");
  }
  *again = PutAgain();
  for (const int result : reply.results()) {
    const bool over_rate = result == v1::PUT_REJECTED_QUOTA && reply.retry_after_ms() > 0;
    if (result == v1::PUT_SHED || over_rate) {  // and all behind it
      again->nanos =
          std::max(int64_t{reply.retry_after_ms()}, over_rate ? kRateMillis : 1) * 1'000'000;
      if (over_rate) again->reason = reply.reason();
      break;
    }
    // Nothing of the chain is there: the reason says more than a result, as on the same host.
    if (result == v1::PUT_REJECTED_QUOTA && chain.first_depth == 0 && outcomes->empty()) {
      return absl::ResourceExhaustedError(reply.reason());
    }
    if (result == v1::PUT_REJECTED_QUOTA) again->reason = reply.reason();
    outcomes->push_back(OutcomeOf(result));
  }
  return absl::OkStatus();
}

}  // namespace kvarve::client
