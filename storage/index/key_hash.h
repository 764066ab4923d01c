// The index's hash of (namespace, key). Clients choose keys, so it is keyed by a secret: NH, the
// sum of products of UMAC (two different inputs collide in its 128 bits with probability 2^-64 over
// the secret, whatever they are), then folded with further secret words. All 32 key bytes and the
// namespace take part. THREADS: any.
#ifndef KVARVE_STORAGE_INDEX_KEY_HASH_H_
#define KVARVE_STORAGE_INDEX_KEY_HASH_H_

#include <cstdint>

#include "storage/block/block_key.h"

namespace kvarve {

class KeyHash {
 public:
  explicit KeyHash(uint64_t seed) {
    for (uint64_t& word : secret_) word = NextSecret(&seed);
    secret_[6] |= 1;
    secret_[7] |= 1;
  }

  uint64_t operator()(uint32_t ns, const BlockKey& key) const {
    using Wide = unsigned __int128;
    Wide sum = Wide{key.Word(0) + secret_[0]} * (key.Word(1) + secret_[1]);
    sum += Wide{key.Word(2) + secret_[2]} * (key.Word(3) + secret_[3]);
    sum += Wide{ns + secret_[4]} * secret_[5];
    Wide folded = Wide{static_cast<uint64_t>(sum)} * secret_[6];
    folded += Wide{static_cast<uint64_t>(sum >> 64)} * secret_[7];
    uint64_t hash = static_cast<uint64_t>(folded) ^ static_cast<uint64_t>(folded >> 64);
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
  }

 private:
  // splitmix64.
  static uint64_t NextSecret(uint64_t* state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t secret_[8];
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_INDEX_KEY_HASH_H_
