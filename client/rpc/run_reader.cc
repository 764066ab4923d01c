#include "client/rpc/run_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/abseil.h"
#include "storage/block/checksum.h"

namespace kvarve::client {
namespace {

// Small enough that what the checksum reads is what the copy has just written to the cache.
constexpr size_t kCopyBytes = 16 << 10;

absl::Status Garbage(std::string_view why) {
  return absl::InternalError(absl::StrFormat("a frame of the daemon's: %s", why));
}

}  // namespace

absl::Status RunReader::Take(const grpc::ByteBuffer& buffer) {
  slices_.clear();
  if (!buffer.Dump(&slices_).ok()) return Garbage("not readable");
  pieces_.clear();
  for (const grpc::Slice& slice : slices_) {
    pieces_.push_back(std::as_bytes(std::span(slice.begin(), slice.size())));
  }
  const absl::StatusOr<frames::Frame> frame = frames::ParseFrame(frames::Kind::kBlock, pieces_);
  if (!frame.ok()) return Garbage(ToStd(frame.status().message()));
  if (!IsNext(*frame)) return Garbage("out of its place");
  const frames::FrameFields& fields = frame->fields;
  const size_t first = checksums_.size();
  for (frames::Piece piece : frame->payload) {
    while (!piece.empty() && !mismatch_) {
      const size_t more = checksums_.size() - first;  // whole blocks of this frame
      piece = piece.subspan(TakePart(
          piece, more == 0 ? fields.checksum.value_or(0) : fields.more_checksums[more - 1]));
    }
  }
  return absl::OkStatus();
}

// Whether the frame is the next part of the next block, or whole blocks from the next one on.
bool RunReader::IsNext(const frames::Frame& frame) const {
  const frames::FrameFields& fields = frame.fields;
  const size_t i = checksums_.size(), more = fields.more_checksums.size();
  if (i + more >= keys_.size() || fields.index != i || fields.offset != offset_ ||
      fields.block_bytes != info_.block_bytes || frame.payload_bytes == 0) {
    return false;
  }
  if (more == 0) return frame.payload_bytes <= info_.block_bytes - offset_;
  return offset_ == 0 && frame.payload_bytes == (more + 1) * info_.block_bytes;
}

size_t RunReader::TakePart(frames::Piece piece, uint64_t checksum) {
  const size_t i = checksums_.size();
  if (offset_ == 0) crc_ = ChecksumSeed(info_.id, keys_[i], info_.block_bytes);
  const size_t bytes = std::min<uint64_t>(piece.size(), info_.block_bytes - offset_);
  Copy(piece.first(bytes), destinations_[i]);
  if (offset_ < info_.block_bytes) return bytes;
  if (verify_ && crc_ != checksum) {
    mismatch_ = true;
    return bytes;
  }
  checksums_.push_back(checksum);
  offset_ = 0;
  return bytes;
}

void RunReader::Copy(frames::Piece piece, std::byte* to) {
  while (!piece.empty()) {
    const frames::Piece part = piece.first(std::min(piece.size(), kCopyBytes));
    std::memcpy(to + offset_, part.data(), part.size());
    if (verify_) crc_ = BlockChecksum(crc_, to + offset_, part.size());
    offset_ += part.size();
    piece = piece.subspan(part.size());
  }
}

}  // namespace kvarve::client
