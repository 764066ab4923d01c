#include "client/frames/frames.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve::frames {
namespace {

// Protobuf's wire types.
constexpr uint64_t kVarintType = 0, kFixed64Type = 1, kBytesType = 2, kFixed32Type = 5;
constexpr uint64_t kTypeBits = 3, kTypeMask = 7;
constexpr int kMaxVarintBytes = 10;
constexpr int kMaxShortVarintBytes = 5;  // of a tag or a length
constexpr uint64_t kMaxFieldNumber = (1u << 29) - 1;
constexpr uint64_t kPayloadField = 15;

constexpr uint8_t Tag(uint64_t field, uint64_t type) {
  return static_cast<uint8_t>(field << kTypeBits | type);
}

// Where each kind has its fields; 0: it has none such.
struct Numbers {
  uint64_t open, index, offset, block_bytes, checksum, more_checksums;
};
constexpr Numbers kBlockNumbers = {0, 1, 2, 3, 4, 5};
constexpr Numbers kWriteNumbers = {1, 2, 3, 0, 4, 5};
constexpr const Numbers& NumbersOf(Kind kind) {
  return kind == Kind::kBlock ? kBlockNumbers : kWriteNumbers;
}

absl::Status Bad(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("frame: %s", why));
}

// Reads bytes across the borders of pieces.
class Cursor {
 public:
  explicit Cursor(std::span<const Piece> pieces) : pieces_(pieces) {
    for (const Piece piece : pieces) left_ += piece.size();
    Settle();
  }
  uint64_t left() const { return left_; }
  uint64_t taken() const { return taken_; }

  std::optional<uint8_t> Byte() {
    if (left_ == 0) return std::nullopt;
    const auto byte = static_cast<uint8_t>(pieces_.front()[at_]);
    Advance(1);
    return byte;
  }
  absl::StatusOr<uint64_t> Varint(int max_bytes = kMaxVarintBytes) {
    uint64_t value = 0;
    for (int i = 0; i < max_bytes; ++i) {
      const std::optional<uint8_t> byte = Byte();
      if (!byte) return Bad("ends inside a number");
      if (i == kMaxVarintBytes - 1 && *byte > 1) return Bad("a number of more than 64 bits");
      value |= static_cast<uint64_t>(*byte & 0x7f) << (7 * i);
      if ((*byte & 0x80) == 0) return value;
    }
    return Bad("a number without end");
  }
  absl::StatusOr<uint64_t> Fixed(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      const std::optional<uint8_t> byte = Byte();
      if (!byte) return Bad("ends inside a number");
      value |= uint64_t{*byte} << (8 * i);
    }
    return value;
  }
  // REQUIRES: count <= left().
  template <typename Take>
  void Each(uint64_t count, Take take) {
    while (count > 0) {
      const Piece rest = pieces_.front().subspan(at_);
      const Piece part = rest.first(std::min<uint64_t>(count, rest.size()));
      take(part);
      Advance(part.size());
      count -= part.size();
    }
  }

 private:
  void Advance(size_t bytes) {
    at_ += bytes;
    left_ -= bytes;
    taken_ += bytes;
    Settle();
  }
  void Settle() {
    while (!pieces_.empty() && at_ == pieces_.front().size()) {
      pieces_ = pieces_.subspan(1);
      at_ = 0;
    }
  }
  std::span<const Piece> pieces_;
  size_t at_ = 0;
  uint64_t left_ = 0;
  uint64_t taken_ = 0;
};

absl::StatusOr<uint64_t> Length(Cursor& cursor) {
  KV_ASSIGN_OR_RETURN(const uint64_t bytes, cursor.Varint(kMaxShortVarintBytes));
  if (bytes > cursor.left()) return Bad("a field is longer than the frame");
  return bytes;
}

// A field that a later version may have added.
absl::Status Skip(Cursor& cursor, uint64_t type) {
  switch (type) {
    case kVarintType:
      return cursor.Varint().status();
    case kFixed64Type:
      return cursor.Fixed(8).status();
    case kFixed32Type:
      return cursor.Fixed(4).status();
    case kBytesType: {
      KV_ASSIGN_OR_RETURN(const uint64_t bytes, Length(cursor));
      cursor.Each(bytes, [](Piece) {});
      return absl::OkStatus();
    }
    default:
      return Bad("a field of an unknown type");
  }
}

absl::Status TakeField(Cursor& cursor, const Numbers& numbers, uint64_t field, uint64_t type,
                       FrameFields* fields) {
  if (field == numbers.checksum) {
    if (type != kFixed64Type) return Bad("a checksum of another type");
    KV_ASSIGN_OR_RETURN(fields->checksum, cursor.Fixed(8));
    return absl::OkStatus();
  }
  if (field == numbers.more_checksums) {
    if (type != kBytesType) return Bad("checksums of another type");
    KV_ASSIGN_OR_RETURN(const uint64_t bytes, Length(cursor));
    if (bytes % 8 != 0 || bytes / 8 >= kMaxBlocksPerFrame)
      return Bad("a wrong number of checksums");
    for (uint64_t i = 0; i < bytes / 8; ++i) {
      KV_ASSIGN_OR_RETURN(const uint64_t checksum, cursor.Fixed(8));
      fields->more_checksums.push_back(checksum);
    }
    return absl::OkStatus();
  }
  if (field == numbers.open) {
    if (type != kBytesType) return Bad("an opening of another type");
    KV_ASSIGN_OR_RETURN(const uint64_t bytes, Length(cursor));
    if (bytes > kMaxFrameHeaderBytes) return Bad("its opening is too long");
    cursor.Each(bytes, [&](Piece piece) {
      fields->open.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return absl::OkStatus();
  }
  const bool is_index = field == numbers.index, is_offset = field == numbers.offset;
  if (!is_index && !is_offset && (field != numbers.block_bytes)) return Skip(cursor, type);
  if (type != kVarintType) return Bad("a number of another type");
  KV_ASSIGN_OR_RETURN(const uint64_t value, cursor.Varint());
  if (is_index) {
    if (value > UINT32_MAX) return Bad("an index beyond 32 bits");
    fields->index = static_cast<uint32_t>(value);
  } else {
    (is_offset ? fields->offset : fields->block_bytes) = value;
  }
  return absl::OkStatus();
}

}  // namespace

void FrameHeader::Varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) Byte(static_cast<uint8_t>(value | 0x80));
  Byte(static_cast<uint8_t>(value));
}

void FrameHeader::Fixed(uint64_t value) {
  for (int i = 0; i < 8; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
}

FrameHeader::FrameHeader(Kind kind, const FrameFields& fields, size_t payload_bytes) {
  const Numbers& numbers = NumbersOf(kind);
  const auto number = [&](uint64_t field, uint64_t value) {
    if (field == 0 || value == 0) return;  // protobuf leaves zeros out
    Byte(Tag(field, kVarintType));
    Varint(value);
  };
  number(numbers.index, fields.index);
  number(numbers.offset, fields.offset);
  number(numbers.block_bytes, fields.block_bytes);
  if (fields.checksum && (kind == Kind::kWrite || *fields.checksum != 0)) {
    Byte(Tag(numbers.checksum, kFixed64Type));
    Fixed(*fields.checksum);
  }
  if (!fields.more_checksums.empty()) {
    KV_CHECK(fields.more_checksums.size() < kMaxBlocksPerFrame);
    Byte(Tag(numbers.more_checksums, kBytesType));
    Varint(8 * fields.more_checksums.size());
    for (const uint64_t checksum : fields.more_checksums) Fixed(checksum);
  }
  if (payload_bytes == 0) return;
  Byte(Tag(kPayloadField, kBytesType));
  Varint(payload_bytes);
}

std::string OpeningFrame(std::string_view open) {
  std::string frame(1, static_cast<char>(Tag(kWriteNumbers.open, kBytesType)));
  size_t size = open.size();
  for (; size >= 0x80; size >>= 7) frame += static_cast<char>(size | 0x80);
  frame += static_cast<char>(size);
  frame += open;
  return frame;
}

absl::StatusOr<Frame> ParseFrame(Kind kind, std::span<const Piece> pieces) {
  const Numbers& numbers = NumbersOf(kind);
  Frame frame;
  Cursor cursor(pieces);
  uint64_t last = 0;
  while (cursor.left() > 0) {
    KV_ASSIGN_OR_RETURN(const uint64_t tag, cursor.Varint(kMaxShortVarintBytes));
    const uint64_t field = tag >> kTypeBits, type = tag & kTypeMask;
    if (field <= last) return Bad("fields out of order");
    if (field > kMaxFieldNumber) return Bad("a field's number is too high");
    last = field;
    if (field > kPayloadField) return Bad("something stands behind the payload");
    if (field == kPayloadField) {
      if (type != kBytesType) return Bad("a payload of another type");
      KV_ASSIGN_OR_RETURN(frame.payload_bytes, Length(cursor));
      if (frame.payload_bytes != cursor.left()) return Bad("something stands behind the payload");
      cursor.Each(frame.payload_bytes, [&](Piece piece) { frame.payload.push_back(piece); });
      return frame;
    }
    KV_RETURN_IF_ERROR(TakeField(cursor, numbers, field, type, &frame.fields));
    if (cursor.taken() > kMaxFrameHeaderBytes + 16) return Bad("its header is too long");
  }
  return frame;
}

}  // namespace kvarve::frames
