// A block key: 16 or 32 opaque bytes that name a block inside a namespace; the namespace fixes
// which. A 16-byte key is held zero-padded, so that two keys of one namespace compare by all 32
// bytes.
//
// A value: THREADS: any.
#ifndef KVARVE_STORAGE_BLOCK_BLOCK_KEY_H_
#define KVARVE_STORAGE_BLOCK_BLOCK_KEY_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvarve {

struct BlockKey {
  static constexpr int kMaxBytes = 32;
  std::array<uint8_t, kMaxBytes> bytes{};

  friend bool operator==(const BlockKey& a, const BlockKey& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), kMaxBytes) == 0;
  }
  // The bytes are a hash already, but a client chooses them: tables mix a secret seed in.
  uint64_t Word(int i) const {
    uint64_t word;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    return word;
  }
};
static_assert(sizeof(BlockKey) == 32 && std::is_trivially_copyable_v<BlockKey>);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_BLOCK_KEY_H_
