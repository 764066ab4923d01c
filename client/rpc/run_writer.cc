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

// Both sides still have so much in their caches when they come to it again: the daemon copies a
// frame when it is there, and here it is sent right after it was summed.
constexpr uint64_t kFrameBytes = 512 << 10;
static_assert(kFrameBytes <= frames::kMaxPayloadBytes);
// About ten microseconds of summing.
constexpr uint64_t kSummedAtOnce = 128 << 10;

// Sends the opening and the blocks of a run. A block's checksum goes with its last frame; each
// frame is summed while the one before is on its way.
class BlockSender {
 public:
  BlockSender(const OpenNamespaceInfo& info, std::span<const BlockKey> keys, const std::byte* first,
              const std::shared_ptr<void>& hold, RunStream* stream)
      : info_(info), keys_(keys), source_{first, hold}, stream_(stream) {}

  // Ends early when the peer hears no more: its answer says why.
  void Send(const grpc::ByteBuffer& opening) {
    BeginSum(0);
    if (!Write(opening, false)) return;
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (!SendBlock(i)) return;
    }
  }

 private:
  bool SendBlock(size_t i) {
    frames::FrameFields fields;
    fields.index = static_cast<uint32_t>(i);
    for (uint64_t offset = 0; offset < info_.block_bytes;) {
      while (SumPiece()) {  // what is left of this frame
      }
      const uint64_t bytes = FrameBytes(offset);
      const bool is_whole = offset + bytes == info_.block_bytes;
      fields.offset = offset;
      if (is_whole) {
        fields.checksum = sum_;
        BeginSum(i + 1);
      } else {
        sum_until_ += FrameBytes(offset + bytes);
      }
      const frames::FrameHeader header(frames::Kind::kWrite, fields, bytes);
      const grpc::Slice slices[] = {grpc::Slice(header.data(), header.size()),
                                    source_.Slice(i * info_.block_bytes + offset, bytes)};
      if (!Write(grpc::ByteBuffer(slices, 2), is_whole && i + 1 == keys_.size())) return false;
      offset += bytes;
    }
    return true;
  }
  bool Write(const grpc::ByteBuffer& frame, bool is_last) {
    return stream_->Write(frame, is_last, [this] { return SumPiece(); });
  }
  uint64_t FrameBytes(uint64_t offset) const {
    return std::min(info_.block_bytes - offset, kFrameBytes);
  }

  void BeginSum(size_t block) {
    summed_ = sum_until_ = 0;
    if (block == keys_.size()) return;
    to_sum_ = source_.data + block * info_.block_bytes;
    sum_ = ChecksumSeed(info_.id, keys_[block], info_.block_bytes);
    sum_until_ = FrameBytes(0);
  }
  // A piece of the next frame's part of its block's checksum. False: there is no more of it.
  bool SumPiece() {
    if (summed_ == sum_until_) return false;
    const uint64_t bytes = std::min(kSummedAtOnce, sum_until_ - summed_);
    sum_ = BlockChecksum(sum_, to_sum_ + summed_, bytes);
    summed_ += bytes;
    return true;
  }

  const OpenNamespaceInfo& info_;
  const std::span<const BlockKey> keys_;
  const PutSource source_;
  RunStream* const stream_;
  // The checksum that is being made: of which block, of how many of its bytes, and of how many it
  // shall be before the next frame goes.
  const std::byte* to_sum_ = nullptr;
  uint64_t sum_ = 0, summed_ = 0, sum_until_ = 0;
};

}  // namespace

absl::Status WriteRun(const NodeLinkPtr& link, const OpenNamespaceInfo& info, const PutChain& chain,
                      size_t begin, const PutSource& source, int64_t deadline,
                      std::vector<PutOutcome>* outcomes, PutAgain* again) {
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
  BlockSender(info, keys, source.data + begin * info.block_bytes, source.hold, &stream)
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
