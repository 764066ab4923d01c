#include "storage/testing/block_generator.h"

#include <algorithm>
#include <cstring>

namespace kvarve::testing {
namespace {

// The finaliser of splitmix64: a bijection.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The words of a block, one after the other.
class BlockWords {
 public:
  BlockWords(uint64_t ns, const BlockKey& key) : state_(Mix(ns + 0x6b76617276650001u)) {
    for (int i = 0; i < 4; ++i) state_ = Mix(state_ ^ key.Word(i)) + i;
  }
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15u); }

 private:
  uint64_t state_;
};

}  // namespace

BlockKey KeyOf(uint64_t n, int key_bytes) {
  BlockKey key;
  uint64_t state = Mix(n + 1);  // the first word is a bijection of n, so keys differ
  for (int at = 0; at < key_bytes; at += 8) {
    std::memcpy(key.bytes.data() + at, &state, 8);
    state = Mix(state + 0x9e3779b97f4a7c15u);
  }
  return key;
}

std::vector<BlockKey> KeyChain(uint64_t chain, size_t count, size_t first_depth, int key_bytes) {
  std::vector<BlockKey> keys;
  keys.reserve(count);
  for (size_t i = 0; i < count; ++i)
    keys.push_back(KeyOf(chain << 24 | (first_depth + i), key_bytes));
  return keys;
}

void FillBlock(uint64_t ns, const BlockKey& key, std::span<std::byte> block) {
  BlockWords words(ns, key);
  for (size_t at = 0; at < block.size(); at += 8) {
    const uint64_t word = words.Next();
    std::memcpy(block.data() + at, &word, std::min<size_t>(8, block.size() - at));
  }
}

std::vector<std::byte> MakeBlock(uint64_t ns, const BlockKey& key, size_t bytes) {
  std::vector<std::byte> block(bytes);
  FillBlock(ns, key, block);
  return block;
}

bool IsBlock(uint64_t ns, const BlockKey& key, std::span<const std::byte> block) {
  BlockWords words(ns, key);
  for (size_t at = 0; at < block.size(); at += 8) {
    const uint64_t word = words.Next();
    if (std::memcmp(block.data() + at, &word, std::min<size_t>(8, block.size() - at)) != 0)
      return false;
  }
  return true;
}

}  // namespace kvarve::testing
