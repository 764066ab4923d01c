// Goal: what is encoded comes back bit by bit, and the stored form is the documented one: an
// element-wise decoder that shares no code reads it, too. What is no block in that form is an
// error, whatever it says.
#include "storage/codec/planes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <vector>

#include "storage/block/layout.h"
#include "storage/codec/codec.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using Bytes = std::vector<std::byte>;

// Elements whose sign and mantissa are noise and whose exponents are few, K's by channel.
Bytes PlausibleBlock(const BlockLayout& layout, testing::SeededRandom* random) {
  Bytes block(layout.BlockBytes());
  const size_t width = layout.element_bytes;
  for (size_t i = 0; i < block.size(); i += width) {
    for (size_t b = 0; b + 1 < width; ++b)
      block[i + b] = static_cast<std::byte>(random->Below(256));
    const uint64_t channel = i / width % std::max(layout.k_dim, 1u);
    const uint64_t top = 0x3c + channel % 3 + random->Below(2);
    block[i + width - 1] = static_cast<std::byte>(top | random->Below(2) << 7);
  }
  return block;
}

// By the words of planes.h, an element at a time.
Bytes NaiveDecode(const BlockLayout& layout, std::span<const std::byte> stored) {
  const size_t width = layout.element_bytes, count = layout.BlockBytes() / width;
  const std::byte* const frame = stored.data() + count * (width - 1);
  Bytes top(count);
  EXPECT_EQ(ZSTD_decompress(top.data(), count, frame, stored.size() - count * (width - 1)), count);
  Bytes block(layout.BlockBytes());
  size_t element = 0, layer_begin = 0;
  const size_t k_of_layer = size_t{layout.kv_heads} * layout.tokens * layout.k_dim;
  const auto put = [&](size_t at_in_top) {
    for (size_t b = 0; b + 1 < width; ++b) {
      block[element * width + b] = stored[count * (width - 2 - b) + element];
    }
    block[element * width + width - 1] = top[at_in_top];
    ++element;
  };
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    for (uint32_t head = 0; head < layout.kv_heads; ++head) {
      for (uint32_t token = 0; token < layout.tokens; ++token) {
        for (uint32_t dim = 0; dim < layout.k_dim; ++dim) {
          put(layer_begin + (size_t{head} * layout.k_dim + dim) * layout.tokens + token);
        }
      }
    }
    for (size_t i = 0; i < layout.VBytes() / width; ++i) put(layer_begin + k_of_layer + i);
    layer_begin = element;
  }
  return block;
}

BlockLayout RandomLayout(testing::SeededRandom* random) {
  BlockLayout layout;
  layout.layers = 1 + static_cast<uint32_t>(random->Below(3));
  layout.kv_heads = 1 + static_cast<uint32_t>(random->Below(3));
  layout.tokens = 1 + static_cast<uint32_t>(random->Below(40));
  layout.k_dim = 1 + static_cast<uint32_t>(random->Below(70));
  layout.v_dim = random->Below(4) == 0 ? 0 : 1 + static_cast<uint32_t>(random->Below(70));
  layout.element_bytes = random->Below(3) == 0 ? 4 : 2;
  return layout;
}

TEST(PlanesTest, ComesBackBitByBitInTheDocumentedForm) {
  testing::SeededRandom random(1);
  for (int round = 0; round < 300; ++round) {
    const BlockLayout layout = RandomLayout(&random);
    const Bytes block = PlausibleBlock(layout, &random);
    Bytes out(block.size() + 1024), back(block.size());
    const auto bytes = Encode(Representation::kPlanes, layout, block, out);
    ASSERT_TRUE(bytes.has_value());
    const std::span<const std::byte> stored(out.data(), *bytes);
    ASSERT_EQ(Decode(Representation::kPlanes, layout, stored, back), absl::OkStatus());
    ASSERT_EQ(back, block) << "round " << round;
    ASSERT_EQ(NaiveDecode(layout, stored), block) << "round " << round;
  }
}

TEST(PlanesTest, ExponentsAreCompressedAndNoiseDoesNotFit) {
  testing::SeededRandom random(2);
  const BlockLayout layout{4, 2, 64, 128, 128, 2};
  const Bytes block = PlausibleBlock(layout, &random);
  Bytes out(block.size());
  const auto bytes = Encode(Representation::kPlanes, layout, block, out);
  ASSERT_TRUE(bytes.has_value());
  // Half is noise; of the rest a byte has one of sign, one of the exponent's and little else.
  EXPECT_LT(*bytes, block.size() * 0.75);
  EXPECT_GT(*bytes, block.size() * 0.5);
  Bytes noise(block.size());
  for (std::byte& b : noise) b = static_cast<std::byte>(random.Below(256));
  EXPECT_EQ(Encode(Representation::kPlanes, layout, noise, out), std::nullopt);
  // Nothing is written behind what there is, by however little it is too small.
  for (const size_t room : {size_t{0}, size_t{1}, block.size() / 2, *bytes - 1}) {
    Bytes little(room);
    EXPECT_EQ(Encode(Representation::kPlanes, layout, block, little), std::nullopt) << room;
  }
}

TEST(PlanesTest, OnlyElementsOfTwoAndFourBytesHaveThem) {
  for (const uint32_t width : {1u, 2u, 3u, 4u, 8u}) {
    const BlockLayout layout{1, 1, 16, 64, 64, width};
    EXPECT_EQ(CanEncode(Representation::kPlanes, layout), width == 2 || width == 4) << width;
  }
  EXPECT_FALSE(CanEncode(Representation::kPlanes, BlockLayout()));
  EXPECT_FALSE(CanEncode(Representation::kRaw, BlockLayout{1, 1, 16, 64, 64, 2}));
}

TEST(PlanesTest, WhatIsNoBlockIsAnError) {
  testing::SeededRandom random(3);
  const BlockLayout layout{2, 2, 16, 32, 32, 2};
  const Bytes block = PlausibleBlock(layout, &random);
  Bytes out(block.size()), back(block.size());
  const auto bytes = Encode(Representation::kPlanes, layout, block, out);
  ASSERT_TRUE(bytes.has_value());
  out.resize(*bytes);
  const auto decodes = [&](const Bytes& stored) {
    return DecodePlanes(layout, stored, back).code();
  };
  for (size_t size = 0; size < out.size(); ++size) {
    EXPECT_EQ(decodes(Bytes(out.begin(), out.begin() + static_cast<ptrdiff_t>(size))),
              absl::StatusCode::kDataLoss);
  }
  Bytes longer = out;
  longer.push_back(std::byte{0});
  EXPECT_EQ(decodes(longer), absl::StatusCode::kDataLoss);
  // A frame of more, or fewer, bytes than the block has elements.
  for (const size_t count : {block.size() / 2 - 1, block.size() / 2 + 1, size_t{1} << 20}) {
    const Bytes zeros(count);
    Bytes other(block.size() / 2 + ZSTD_compressBound(count));
    const size_t frame = ZSTD_compress(other.data() + block.size() / 2,
                                       other.size() - block.size() / 2, zeros.data(), count, 1);
    other.resize(block.size() / 2 + frame);
    EXPECT_EQ(decodes(other), absl::StatusCode::kDataLoss) << count;
  }
  // Flips of the frame: an error, or other bytes, which the checksum finds; never a crash.
  for (int round = 0; round < 2000; ++round) {
    Bytes flipped = out;
    const size_t at = block.size() / 2 + random.Below(out.size() - block.size() / 2);
    flipped[at] ^= static_cast<std::byte>(1 + random.Below(255));
    decodes(flipped);
  }
}

TEST(CodecTest, NamesAndNumbers) {
  EXPECT_EQ(RepresentationOfName("raw"), Representation::kRaw);
  EXPECT_EQ(RepresentationOfName("planes"), Representation::kPlanes);
  EXPECT_EQ(RepresentationOfName("plane"), std::nullopt);
  EXPECT_EQ(RepresentationName(Representation::kPlanes), "planes");
  EXPECT_TRUE(IsKnownRepresentation(1));
  EXPECT_FALSE(IsKnownRepresentation(2));
}

}  // namespace
}  // namespace kvarve
