// kvarve's own chain hash, version 1 ("kvarve-chain-1"): a block's key depends on all tokens up to
// and including the block and on every extra identity of the request, and on no engine's hash seed.
//
//   key_i = SHA-256( "kvarve-chain-1" || parent (32 bytes; zeros for the first block)
//                    || u32 n_extras || n_extras x (u32 length || bytes)
//                    || u32 n_tokens || n_tokens x u32 )          all integers little-endian
// The extras go into the first block only (n_extras = 0 after it): the chain carries them on.
// Golden vectors: storage/block/testdata/prefix_hash.json, made by a script that shares no code.
// THREADS: any.
#ifndef KVARVE_STORAGE_BLOCK_PREFIX_HASH_H_
#define KVARVE_STORAGE_BLOCK_PREFIX_HASH_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/block/block_key.h"

namespace kvarve {

inline constexpr char kChainHashVersion[] = "kvarve-chain-1";

// Extends one chain block by block. Holds the tokens of no block.
class PrefixHasher {
 public:
  // REQUIRES: block_tokens > 0. `key_bytes` 16 truncates what leaves, never what is chained.
  PrefixHasher(uint32_t block_tokens, std::span<const std::string> extras, int key_bytes = 32);

  // Keys of the further full blocks of `tokens`, which are all tokens of the request from its
  // first. Appends to keys(). A shorter or equal input adds nothing.
  void Extend(std::span<const uint32_t> tokens);
  const std::vector<BlockKey>& keys() const { return keys_; }

 private:
  uint32_t block_tokens_;
  int key_bytes_;
  std::string first_extras_;
  std::array<uint8_t, 32> parent_{};
  std::vector<BlockKey> keys_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_PREFIX_HASH_H_
