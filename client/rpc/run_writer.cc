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

bool SendBlocks(const OpenNamespaceInfo& info, std::span<const BlockKey> keys, size_t begin,
                const PutSource& source, RunStream* stream) {
  const auto checksum_of = [&](size_t i) {
    return BlockChecksum(ChecksumSeed(info.id, keys[i], info.block_bytes),
                         source.data + (begin + i) * info.block_bytes, info.block_bytes);
  };
  uint64_t checksum = checksum_of(0);  // of the block that comes next
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t at = (begin + i) * info.block_bytes;
    frames::FrameFields fields;
    fields.index = static_cast<uint32_t>(i);
    fields.checksum = checksum;
    for (uint64_t offset = 0; offset < info.block_bytes;) {
      const uint64_t bytes = std::min(info.block_bytes - offset, frames::kMaxPayloadBytes);
      fields.offset = offset;
      const frames::FrameHeader header(frames::Kind::kWrite, fields, bytes);
      const grpc::Slice slices[] = {grpc::Slice(header.data(), header.size()),
                                    source.Slice(at + offset, bytes)};
      offset += bytes;
      const bool is_whole = offset == info.block_bytes, is_last = is_whole && i + 1 == keys.size();
      const auto look_ahead = [&] {
        if (is_whole && !is_last) checksum = checksum_of(i + 1);
      };
      if (!stream->Write(grpc::ByteBuffer(slices, 2), is_last, look_ahead)) return false;
      fields.checksum.reset();
    }
  }
  return true;
}

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
  if (stream.Write(BufferOf(frames::OpeningFrame(open.SerializeAsString())), false)) {
    SendBlocks(info, keys, begin, source, &stream);
  }
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
    outcomes->push_back(OutcomeOf(result));
  }
  return absl::OkStatus();
}

}  // namespace kvarve::client
