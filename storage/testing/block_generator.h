// Keys and blocks for tests and benches. A block's bytes follow from its namespace and key alone,
// so that whoever reads one can tell whether it is the right one, without having kept it. THREADS:
// any.
#ifndef KVARVE_STORAGE_TESTING_BLOCK_GENERATOR_H_
#define KVARVE_STORAGE_TESTING_BLOCK_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/block/block_key.h"

namespace kvarve::testing {

// The key of number `n`; different numbers give different keys. With key_bytes 16 the rest is zero.
BlockKey KeyOf(uint64_t n, int key_bytes = BlockKey::kMaxBytes);
// `count` keys of chain number `chain`, the first at depth `first_depth`. No key belongs to two
// chains or two depths. REQUIRES: first_depth + count <= 2^24, chain < 2^40.
std::vector<BlockKey> KeyChain(uint64_t chain, size_t count, size_t first_depth = 0,
                               int key_bytes = BlockKey::kMaxBytes);

// Pseudo-random bytes of (ns, key). `ns` is any number that the test gives its namespace.
void FillBlock(uint64_t ns, const BlockKey& key, std::span<std::byte> block);
std::vector<std::byte> MakeBlock(uint64_t ns, const BlockKey& key, size_t bytes);
bool IsBlock(uint64_t ns, const BlockKey& key, std::span<const std::byte> block);

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_TESTING_BLOCK_GENERATOR_H_
