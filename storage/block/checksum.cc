#include "storage/block/checksum.h"

#include <isa-l/crc64.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

constexpr size_t kBounceBytes = 4096;
constexpr uint64_t kPolynomial = 0xC96C5795D7870F42;  // ECMA-182, bits reflected

// kTables[k][b]: the CRC's change by byte b that k bytes follow.
using Tables = std::array<std::array<uint64_t, 256>, 8>;
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    uint64_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (int byte = 0; byte < 256; ++byte) {
      const uint64_t crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

// The inner copies: `dst` aligned to 32, no fence; they read each source byte once.
using InnerCopy = void (*)(std::byte* dst, const std::byte* src, size_t size);

void CopyPortable(std::byte* dst, const std::byte* src, size_t size) {
  std::memcpy(dst, src, size);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void CopyAvx2(std::byte* dst, const std::byte* src, size_t size) {
  auto* to = reinterpret_cast<__m256i*>(dst);
  const auto* from = reinterpret_cast<const __m256i*>(src);
  size_t left = size;
  for (; left >= 128; left -= 128, to += 4, from += 4) {
    const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
    const __m256i c = _mm256_loadu_si256(from + 2), d = _mm256_loadu_si256(from + 3);
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
    _mm256_stream_si256(to + 2, c);
    _mm256_stream_si256(to + 3, d);
  }
  for (; left >= 32; left -= 32) _mm256_stream_si256(to++, _mm256_loadu_si256(from++));
  if (left > 0) std::memcpy(to, from, left);
}
bool HasAvx2() { return __builtin_cpu_supports("avx2"); }
// Orders non-temporal stores before whatever publishes them.
void StoreFence() { _mm_sfence(); }
#else
void CopyAvx2(std::byte*, const std::byte*, size_t) { KV_CHECK(false); }
bool HasAvx2() { return false; }
void StoreFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

CopyPath BestPath() {
  static const CopyPath path = HasAvx2() ? CopyPath::kAvx2 : CopyPath::kPortable;
  return path;
}

InnerCopy CopyOf(CopyPath path) { return path == CopyPath::kAvx2 ? CopyAvx2 : CopyPortable; }

}  // namespace

uint64_t Crc64(uint64_t crc, const void* data, size_t size) {
  return ::crc64_ecma_refl(crc, static_cast<const unsigned char*>(data), size);
}

uint64_t Crc64Portable(uint64_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, bytes += 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    word ^= crc;
    crc = 0;
    for (int i = 0; i < 8; ++i) crc ^= kTables[7 - i][word >> (8 * i) & 0xFF];
  }
  for (; size > 0; --size, ++bytes) crc = crc >> 8 ^ kTables[0][(crc ^ *bytes) & 0xFF];
  return ~crc;
}

uint64_t ChecksumSeed(const NamespaceId& ns, const BlockKey& key, uint64_t length) {
  std::array<uint8_t, 4 + 16 + 32 + 8> identity;
  std::memcpy(&identity[0], &kChecksumVersion, 4);
  std::memcpy(&identity[4], ns.bytes.data(), 16);
  std::memcpy(&identity[20], key.bytes.data(), 32);
  std::memcpy(&identity[52], &length, 8);
  return Crc64(0, identity.data(), identity.size());
}

bool CopyPathSupported(CopyPath path) { return path == CopyPath::kPortable || HasAvx2(); }

uint64_t CopyAndChecksum(void* dst, const void* src, size_t size, uint64_t seed) {
  return CopyAndChecksum(dst, src, size, seed, BestPath());
}

uint64_t CopyAndChecksum(void* dst, const void* src, size_t size, uint64_t seed, CopyPath path) {
  KV_CHECK(reinterpret_cast<uintptr_t>(dst) % 64 == 0);
  const InnerCopy copy = CopyOf(path);
  alignas(64) std::byte bounce[kBounceBytes];
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  uint64_t crc = seed;
  for (size_t done = 0; done < size;) {
    const size_t chunk = std::min(kBounceBytes, size - done);
    std::memcpy(bounce, from + done, chunk);
    // From here on the compiler may not read the source in the bounce's stead.
    asm volatile("" : : "r"(bounce) : "memory");
    crc = Crc64(crc, bounce, chunk);
    copy(to + done, bounce, chunk);
    done += chunk;
  }
  StoreFence();
  return crc;
}

void StreamCopy(void* dst, const void* src, size_t size) { StreamCopy(dst, src, size, BestPath()); }

void StreamCopy(void* dst, const void* src, size_t size, CopyPath path) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  const size_t head = std::min(size, -reinterpret_cast<uintptr_t>(to) % 64);
  if (head > 0) std::memcpy(to, from, head);
  CopyOf(path)(to + head, from + head, size - head);
  StoreFence();
}

}  // namespace kvarve
