// The checksum of a block: CRC-64/XZ (ECMA-182, reflected; ISA-L's crc64_ecma_refl), seeded by the
// block's identity, so that right bytes under a wrong name fail too. Not a MAC.
//
// THREADS: any.
#ifndef KVARVE_STORAGE_BLOCK_CHECKSUM_H_
#define KVARVE_STORAGE_BLOCK_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve {

inline constexpr uint32_t kChecksumVersion = 1;

// Continues a CRC. ISA-L's convention: the register is the complement of what goes in and comes
// out, so 0 starts one, a result continues it, and Crc64(0, "123456789") is CRC-64/XZ's published
// check 0x995dc9bbdf1939fa.
uint64_t Crc64(uint64_t crc, const void* data, size_t size);
// The same function in portable C++: the twin that passes the same vectors.
uint64_t Crc64Portable(uint64_t crc, const void* data, size_t size);

// The seed = Crc64 over (version u32, ns_id, key 32 bytes, length u64).
uint64_t ChecksumSeed(const NamespaceId& ns, const BlockKey& key, uint64_t length);
inline uint64_t BlockChecksum(uint64_t seed, const void* data, size_t size) {
  return Crc64(seed, data, size);
}

// Copies `size` bytes out of memory that another process may be writing, reading each source byte
// exactly once: what is read is stored past the caches to `dst`, and the CRC is made of the very
// same reading, in registers or out of a private bounce buffer of 4 KiB. Returns the CRC of what
// was stored. Ends with a store fence. REQUIRES: dst aligned to 64. No overlap.
uint64_t CopyAndChecksum(void* dst, const void* src, size_t size, uint64_t seed);

// Non-temporal copy for blocks that the caller will not read soon. No overlap; any alignment. Ends
// with a store fence.
void StreamCopy(void* dst, const void* src, size_t size);

// The inner copy is chosen by what the CPU has; tests name it. REQUIRES: CopyPathSupported.
enum class CopyPath { kPortable, kAvx2, kAvx512 };
bool CopyPathSupported(CopyPath path);
uint64_t CopyAndChecksum(void* dst, const void* src, size_t size, uint64_t seed, CopyPath path);
void StreamCopy(void* dst, const void* src, size_t size, CopyPath path);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_CHECKSUM_H_
