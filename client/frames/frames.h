// The frames of ReadRun and WriteRun (proto/kvarve/v1/cache.proto, docs/formats.md): protobuf
// messages whose fields before the payload are built and read here, so that a payload travels
// between a socket and its place without a copy into a message. The payload is the last field.
//
// A frame that came lies in pieces of any length, cut anywhere. What parses here is what protobuf
// parses, to the same values; refused besides what protobuf refuses: fields out of order or given
// twice, a payload that is not the end, a number that its field cannot hold, groups, a header
// longer than kMaxFrameHeaderBytes.
//
// THREADS: any; values.  BLOCKS: never.
#ifndef KVARVE_CLIENT_FRAMES_FRAMES_H_
#define KVARVE_CLIENT_FRAMES_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvarve::frames {

using Piece = std::span<const std::byte>;

// A block's payload travels in frames of at most this: one slow block must not hold much memory,
// and every gRPC client takes messages of 4 MiB without being told to.
inline constexpr uint64_t kMaxPayloadBytes = 2ull << 20;
// Fields before the payload. A WriteRun's opening has its keys there.
inline constexpr size_t kMaxFrameHeaderBytes = 40 << 10;
inline constexpr size_t kMaxBlocksPerRun = 1024;
// A frame holds a part of one block, or so many whole ones; a WriteFrame of so many bytes at most,
// since each write that is open takes room for a frame.
inline constexpr size_t kMaxBlocksPerFrame = 64;
inline constexpr uint64_t kMaxWrittenTogetherBytes = 256 << 10;

// Fields before the payload, of BlockFrame and of WriteFrame.
struct FrameFields {
  std::string open;  // WriteFrame: a serialised WriteRunOpen; empty: none
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t block_bytes = 0;          // BlockFrame only
  std::optional<uint64_t> checksum;  // 0 and absent are the same in a BlockFrame
  // Of the whole blocks behind the first; at most kMaxBlocksPerFrame - 1.
  std::vector<uint64_t> more_checksums = {};

  friend bool operator==(const FrameFields&, const FrameFields&) = default;
};

struct Frame {
  FrameFields fields;
  uint64_t payload_bytes = 0;
  std::vector<Piece> payload;  // in the pieces that were parsed
};

enum class Kind { kBlock, kWrite };

// All bytes of a frame before its payload of `payload_bytes`; 0: there is no payload.
class FrameHeader {
 public:
  FrameHeader(Kind kind, const FrameFields& fields, size_t payload_bytes);
  const void* data() const { return bytes_.data(); }
  size_t size() const { return size_; }

 private:
  void Byte(uint8_t byte) { bytes_[size_++] = byte; }
  void Varint(uint64_t value);
  void Fixed(uint64_t value);
  std::array<uint8_t, 64 + 8 * kMaxBlocksPerFrame> bytes_;
  size_t size_ = 0;
};
// The first frame of a WriteRun: `open` and nothing else.
std::string OpeningFrame(std::string_view open);

// InvalidArgument: not a frame, see above. The pieces outlive the result.
absl::StatusOr<Frame> ParseFrame(Kind kind, std::span<const Piece> pieces);

}  // namespace kvarve::frames

#endif  // KVARVE_CLIENT_FRAMES_FRAMES_H_
