// Goal: no frame, cut into pieces anywhere, makes its parser read outside it or say other than
// protobuf. Method: any bytes over splits that the input chooses; what parses here must parse
// there, to the same values, and a frame built anew from them must be the same to both. Under a
// sanitizer.
#include <algorithm>
#include <random>

#include "client/frames/frames.h"
#include "proto/kvarve/v1/cache.pb.h"
#include "storage/base/status_macros.h"
#include "tests/fuzz/fuzz.h"

namespace kvarve::frames {
namespace {

std::string Join(const std::vector<Piece>& pieces) {
  std::string bytes;
  for (const Piece piece : pieces)
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return bytes;
}

// Each piece in an allocation of exactly its size, so that a sanitizer sees the first byte past it.
std::vector<std::vector<std::byte>> Split(std::span<const std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::byte>> pieces;
  while (!bytes.empty()) {
    const size_t most = random() % 4 == 0 ? 4096 : 8;
    const size_t size = std::min<size_t>(random() % most, bytes.size());
    pieces.emplace_back(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    bytes = bytes.subspan(size);
  }
  return pieces;
}

void CheckBlock(const FrameFields& fields, const std::string& payload, const std::string& bytes) {
  v1::BlockFrame frame;
  KV_CHECK(frame.ParseFromString(bytes));
  KV_CHECK(fields.open.empty());
  KV_CHECK(frame.index() == fields.index && frame.offset() == fields.offset);
  KV_CHECK(frame.block_bytes() == fields.block_bytes);
  KV_CHECK(frame.checksum() == fields.checksum.value_or(0));
  KV_CHECK(std::ranges::equal(frame.more_checksums(), fields.more_checksums));
  KV_CHECK(frame.payload() == payload);
}

void CheckWrite(const FrameFields& fields, const std::string& payload, const std::string& bytes) {
  v1::WriteFrame frame;
  // An opening that is no message is the server's to refuse.
  if (!fields.open.empty() && !v1::WriteRunOpen().ParseFromString(fields.open)) return;
  KV_CHECK(frame.ParseFromString(bytes));
  KV_CHECK(frame.has_open() || fields.open.empty());
  KV_CHECK(frame.index() == fields.index && frame.offset() == fields.offset);
  KV_CHECK(fields.block_bytes == 0);
  KV_CHECK(frame.has_checksum() == fields.checksum.has_value());
  KV_CHECK(std::ranges::equal(frame.more_checksums(), fields.more_checksums));
  KV_CHECK(frame.checksum() == fields.checksum.value_or(0));
  KV_CHECK(frame.payload() == payload);
}

void CheckOne(Kind kind, std::span<const std::byte> bytes, uint64_t seed) {
  const std::vector<std::vector<std::byte>> split = Split(bytes, seed);
  const std::vector<Piece> pieces(split.begin(), split.end());
  const absl::StatusOr<Frame> frame = ParseFrame(kind, pieces);
  const Piece whole(bytes);
  KV_CHECK(ParseFrame(kind, {&whole, 1}).ok() == frame.ok());  // wherever it is cut
  if (!frame.ok()) return;
  const std::string payload = Join(frame->payload);
  KV_CHECK(payload.size() == frame->payload_bytes);
  const auto check = kind == Kind::kBlock ? CheckBlock : CheckWrite;
  check(frame->fields, payload,
        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!frame->fields.open.empty()) return;
  const FrameHeader header(kind, frame->fields, payload.size());
  check(frame->fields, payload,
        std::string(static_cast<const char*>(header.data()), header.size()) + payload);
}

}  // namespace
}  // namespace kvarve::frames

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvarve::frames::Kind;
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  kvarve::frames::CheckOne(Kind::kBlock, bytes, data[0]);
  kvarve::frames::CheckOne(Kind::kWrite, bytes, data[0]);
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {std::string(1, '\0')};
  const auto add = [&](const google::protobuf::Message& message) {
    seeds.push_back("s" + message.SerializeAsString());
  };
  v1::BlockFrame block;
  block.set_index(300);
  block.set_offset(4 << 20);
  block.set_block_bytes(16 << 20);
  block.set_checksum(0x1122334455667788);
  block.set_payload("payload");
  add(block);
  for (uint64_t i = 1; i < 4; ++i) block.add_more_checksums(i);
  add(block);
  v1::WriteFrame write;
  write.set_index(1);
  write.set_checksum(0);
  write.set_payload(std::string(5000, 'p'));
  add(write);
  for (uint64_t i = 1; i < 4; ++i) write.add_more_checksums(i);
  add(write);
  write.Clear();
  write.mutable_open()->set_ns_id(std::string(16, 'n'));
  write.mutable_open()->mutable_keys()->set_key_bytes(32);
  write.mutable_open()->mutable_keys()->set_packed(std::string(64, 'k'));
  write.mutable_open()->set_parent(std::string(32, 'p'));
  add(write);
  // Fields that nobody knows, of every type, and what protobuf would take apart from its order.
  seeds.push_back(
      std::string("s\x10\x07\x31\1\2\3\4\5\6\7\x08\x3a\x02zz\x45\1\2\3\4\x48\x01\x7a\x01p", 26));
  seeds.push_back("s\x7a\x01p\x08\x01");
  seeds.push_back("s\x88\x80\x80\x80\x00\x01");
  return seeds;
}

}  // namespace kvarve::fuzz
