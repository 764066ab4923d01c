#include "storage/block/prefix_hash.h"

#include <gtest/gtest.h>

#include <random>

#include "storage/block/golden_testing.h"

namespace kvarve {
namespace {

TEST(PrefixHashTest, GoldenChains) {
  const nlohmann::json golden = ReadGolden("prefix_hash.json");
  ASSERT_EQ(golden.size(), 8u);
  for (const auto& entry : golden) {
    SCOPED_TRACE(entry["name"]);
    std::vector<std::string> extras;
    for (const auto& extra : entry["extras"]) extras.push_back(Unhex(extra));
    const std::vector<uint32_t> tokens = entry["tokens"];
    PrefixHasher hasher(entry["block_tokens"], extras, entry["key_bytes"]);
    hasher.Extend(tokens);
    ASSERT_EQ(hasher.keys().size(), entry["keys"].size());
    for (size_t i = 0; i < hasher.keys().size(); ++i) {
      EXPECT_EQ(hasher.keys()[i].bytes, UnhexArray<32>(entry["keys"][i])) << i;
      if (i > 0 && entry["key_bytes"] == 32) {
        EXPECT_EQ(entry["parents"][i], entry["keys"][i - 1]);
      }
    }
  }
}

TEST(PrefixHashTest, GrowingByTokensIsHashingAllAtOnce) {
  const uint64_t seed = 5;
  std::mt19937_64 random(seed);
  const std::vector<std::string> extras = {"lora"};
  for (int round = 0; round < 100; ++round) {
    std::vector<uint32_t> tokens(random() % 200);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random());
    const uint32_t block_tokens = 1 + random() % 20;
    PrefixHasher at_once(block_tokens, extras), growing(block_tokens, extras);
    at_once.Extend(tokens);
    for (size_t size = 0; size < tokens.size(); size += random() % 30) {
      growing.Extend(std::span(tokens).first(size));
      ASSERT_EQ(growing.keys().size(), size / block_tokens);
    }
    growing.Extend(tokens);
    growing.Extend(std::span(tokens).first(tokens.size() / 2));  // shorter: nothing
    ASSERT_EQ(at_once.keys().size(), tokens.size() / block_tokens);
    ASSERT_TRUE(at_once.keys() == growing.keys()) << "seed " << seed << " round " << round;
  }
}

TEST(PrefixHashTest, AnyEarlierTokenChangesAllLaterKeys) {
  std::vector<uint32_t> tokens(64);
  for (uint32_t i = 0; i < 64; ++i) tokens[i] = i;
  PrefixHasher original(16, {});
  original.Extend(tokens);
  for (size_t changed = 0; changed < 64; ++changed) {
    std::vector<uint32_t> other = tokens;
    other[changed] ^= 1u << 31;
    PrefixHasher hasher(16, {});
    hasher.Extend(other);
    for (size_t block = 0; block < 4; ++block) {
      EXPECT_EQ(hasher.keys()[block] == original.keys()[block], block < changed / 16)
          << changed << " " << block;
    }
  }
}

}  // namespace
}  // namespace kvarve
