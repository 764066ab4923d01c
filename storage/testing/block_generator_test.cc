// The generator is the oracle of other tests, so it is checked here by itself: keys never repeat,
// blocks differ in every argument, and IsBlock sees any one flipped byte.
#include "storage/testing/block_generator.h"

#include <set>

#include "gtest/gtest.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {
namespace {

TEST(BlockGenerator, KeysOfChainsNeverRepeat) {
  std::set<std::array<uint8_t, 32>> seen;
  for (uint64_t chain : {0u, 1u, 2u, 77u}) {
    for (const BlockKey& key : KeyChain(chain, 500)) EXPECT_TRUE(seen.insert(key.bytes).second);
  }
  EXPECT_EQ(KeyChain(7, 3, 10)[1], KeyChain(7, 20)[11]);
}

TEST(BlockGenerator, ShortKeysArePaddedWithZeros) {
  const BlockKey short_key = KeyOf(5, 16);
  EXPECT_EQ(short_key.Word(0), KeyOf(5).Word(0));
  EXPECT_EQ(short_key.Word(1), KeyOf(5).Word(1));
  EXPECT_EQ(short_key.Word(2), 0u);
  EXPECT_EQ(short_key.Word(3), 0u);
}

TEST(BlockGenerator, BlocksFollowFromNamespaceAndKey) {
  for (size_t bytes : {1, 7, 8, 4096, 5003}) {
    const std::vector<std::byte> block = MakeBlock(3, KeyOf(1), bytes);
    EXPECT_EQ(block, MakeBlock(3, KeyOf(1), bytes));
    EXPECT_TRUE(IsBlock(3, KeyOf(1), block));
    if (bytes >= 7) {
      EXPECT_FALSE(IsBlock(4, KeyOf(1), block));
      EXPECT_FALSE(IsBlock(3, KeyOf(2), block));
    }
  }
}

TEST(BlockGenerator, SeesAnyFlippedByte) {
  SeededRandom random(1);
  std::vector<std::byte> block = MakeBlock(0, KeyOf(0), 1001);
  for (size_t i = 0; i < block.size(); ++i) {
    const std::byte flip{static_cast<uint8_t>(1u << random.Below(8))};
    block[i] ^= flip;
    EXPECT_FALSE(IsBlock(0, KeyOf(0), block)) << i;
    block[i] ^= flip;
  }
  EXPECT_TRUE(IsBlock(0, KeyOf(0), block));
}

TEST(SeededRandom, RepeatsAndStaysInBounds) {
  SeededRandom a(9), b(9);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bound = 1 + a.Next() % 100;
    EXPECT_EQ(1 + b.Next() % 100, bound);
    const uint64_t value = a.Below(bound);
    EXPECT_LT(value, bound);
    EXPECT_EQ(b.Below(bound), value);
  }
}

}  // namespace
}  // namespace kvarve::testing
