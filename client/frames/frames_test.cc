// Frames against protobuf's published encoding rules: golden bytes by hand, and any splitting of
// them. That protobuf itself agrees is services/rpc's and the fuzzer's matter.
#include "client/frames/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace kvarve::frames {
namespace {

using ::testing::HasSubstr;

std::string Bytes(const FrameHeader& header) {
  return {static_cast<const char*>(header.data()), header.size()};
}
Piece PieceOf(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string Payload(const Frame& frame) {
  std::string bytes;
  for (const Piece piece : frame.payload)
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return bytes;
}
absl::Status Parse(Kind kind, const std::string& bytes) {
  const Piece piece = PieceOf(bytes);
  return ParseFrame(kind, {&piece, 1}).status();
}

TEST(Frames, GoldenBytes) {
  // index 3, offset 300 (ac 02), block_bytes 65536 (80 80 04), checksum, payload of 5.
  FrameFields block{"", 3, 300, 65536, 0x1122334455667788};
  EXPECT_EQ(Bytes(FrameHeader(Kind::kBlock, block, 5)),
            std::string("\x08\x03\x10\xac\x02\x18\x80\x80\x04\x21\x88\x77\x66\x55\x44\x33\x22\x11"
                        "\x7a\x05",
                        20));
  EXPECT_EQ(Bytes(FrameHeader(Kind::kBlock, FrameFields(), 0)), "");
  // Two blocks more, whose checksums are packed.
  block = {"", 3, 0, 2, std::nullopt, {1, 0x0200000000000000}};
  EXPECT_EQ(Bytes(FrameHeader(Kind::kBlock, block, 6)),
            std::string("\x08\x03\x18\x02\x2a\x10\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\x7a\x06", 24));
  // A write's checksum has presence: 0 is written.
  FrameFields write{"", 1, 0, 0, 0};
  EXPECT_EQ(Bytes(FrameHeader(Kind::kWrite, write, 1)),
            std::string("\x10\x01\x21\0\0\0\0\0\0\0\0\x7a\x01", 13));
  write.more_checksums = {3};
  EXPECT_EQ(Bytes(FrameHeader(Kind::kWrite, write, 2)),
            std::string("\x10\x01\x21\0\0\0\0\0\0\0\0\x2a\x08\3\0\0\0\0\0\0\0\x7a\x02", 23));
  EXPECT_EQ(OpeningFrame("ab"),
            "\x0a\x02"
            "ab");
  EXPECT_EQ(OpeningFrame(std::string(300, 'x')).substr(0, 3), "\x0a\xac\x02");
}

TEST(Frames, RoundTripsOverRandomSplits) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto number = [&] { return random() >> (random() % 64); };
  for (int round = 0; round < 2000; ++round) {
    const Kind kind = random() % 2 == 0 ? Kind::kBlock : Kind::kWrite;
    FrameFields fields{"", static_cast<uint32_t>(number()), number(), number(), number()};
    if (kind == Kind::kWrite) {
      fields.block_bytes = 0;
      if (random() % 2 == 0) fields.checksum.reset();
    } else {
      if (*fields.checksum == 0) fields.checksum.reset();
    }
    fields.more_checksums.resize(random() % 2 == 0 ? random() % kMaxBlocksPerFrame : 0);
    for (uint64_t& checksum : fields.more_checksums) checksum = random();
    std::string payload(random() % 300, '\0');
    for (char& c : payload) c = static_cast<char>(random());
    const std::string bytes = Bytes(FrameHeader(kind, fields, payload.size())) + payload;
    std::vector<Piece> pieces;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(random() % 24, bytes.size() - at);  // empty ones too
      pieces.push_back(PieceOf(bytes).subspan(at, size));
      at += size;
    }
    const absl::StatusOr<Frame> frame = ParseFrame(kind, pieces);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->fields, fields);
    EXPECT_EQ(frame->payload_bytes, payload.size());
    EXPECT_EQ(Payload(*frame), payload);
  }
}

TEST(Frames, OpeningAndUnknownFields) {
  std::string bytes = OpeningFrame("hello");
  const Piece whole[] = {PieceOf(bytes).first(3), PieceOf(bytes).subspan(3)};
  const absl::StatusOr<Frame> opening = ParseFrame(Kind::kWrite, whole);
  ASSERT_TRUE(opening.ok());
  EXPECT_EQ(opening->fields.open, "hello");
  // Fields 6 to 9 of every type, as a later version may send them.
  bytes =
      std::string("\x08\x07\x31\1\2\3\4\5\6\7\x08\x3a\x02zz\x45\1\2\3\4\x48\x96\x01\x7a\x01p", 26);
  const Piece piece = PieceOf(bytes);
  const absl::StatusOr<Frame> frame = ParseFrame(Kind::kBlock, {&piece, 1});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->fields.index, 7u);
  EXPECT_EQ(Payload(*frame), "p");
}

TEST(Frames, Refusals) {
  EXPECT_TRUE(Parse(Kind::kBlock, "").ok());
  EXPECT_THAT(Parse(Kind::kBlock, "\x08").ToString(), HasSubstr("inside a number"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x08\x01\x08\x02").ToString(), HasSubstr("out of order"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x7a\x05zz").ToString(), HasSubstr("longer than the frame"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x7a\x01zz").ToString(), HasSubstr("behind the payload"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x82\x01\x01z").ToString(), HasSubstr("behind the payload"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x0b").ToString(), HasSubstr("another type"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x33").ToString(), HasSubstr("unknown type"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x29").ToString(), HasSubstr("another type"));
  for (const Kind kind : {Kind::kBlock, Kind::kWrite}) {
    EXPECT_THAT(Parse(kind, "\x2a\x07zzzzzzz").ToString(), HasSubstr("number of checksums"));
    EXPECT_THAT(Parse(kind, "\x2a\x80\x04" + std::string(512, 'x')).ToString(),
                HasSubstr("number of checksums"));
    EXPECT_THAT(Parse(kind, "\x28\x01").ToString(), HasSubstr("another type"));
  }
  EXPECT_THAT(Parse(Kind::kBlock, "\x08\xff\xff\xff\xff\x7f").ToString(), HasSubstr("32 bits"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f").ToString(),
              HasSubstr("64 bits"));
  EXPECT_THAT(Parse(Kind::kBlock, "\x88\x80\x80\x80\x80\x00").ToString(), HasSubstr("without end"));
  EXPECT_THAT(
      Parse(Kind::kWrite, OpeningFrame(std::string(kMaxFrameHeaderBytes + 1, 'x'))).ToString(),
      HasSubstr("too long"));
  EXPECT_THAT(
      Parse(Kind::kBlock, std::string("\x32\x80\x80\x04", 4) + std::string(65536, 'x')).ToString(),
      HasSubstr("too long"));
}

}  // namespace
}  // namespace kvarve::frames
