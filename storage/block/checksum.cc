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

#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

constexpr size_t kPageBytes = 4096;
constexpr size_t kBounceBytes = kPageBytes;
// Shorter ones are in a cache more often than not, where ISA-L's loop is the faster one.
constexpr size_t kFoldsFromBytes = 4 * kPageBytes;
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

// The inner copies: `dst` aligned to 64, no fence. They read each source byte once; what they read
// they also write to `bounce`, unless that is null.
using InnerCopy = void (*)(std::byte* dst, const std::byte* src, size_t size, std::byte* bounce);

void CopyPortable(std::byte* dst, const std::byte* src, size_t size, std::byte* bounce) {
  if (size == 0) return;
  if (bounce != nullptr) {
    std::memcpy(bounce, src, size);
    // From here on the compiler may not read the source in the bounce's stead.
    asm volatile("" : : "r"(bounce) : "memory");
    src = bounce;
  }
  std::memcpy(dst, src, size);
}

// Looking up where a page lies takes as long as copying a good part of it, so the next one is
// looked up ahead.
void PrefetchNextPage(const std::byte* src, size_t left) {
  if (left > kPageBytes) PrefetchForRead(src + kPageBytes);
}

#if defined(__x86_64__)
// Where the copy and the CRC take turns, the processor's own prefetching begins anew each time.
constexpr size_t kPrefetchBytes = 1024;
void PrefetchSource(const std::byte* src, size_t left, size_t lines) {
  if (left <= kPrefetchBytes) return;
  for (size_t i = 0; i < lines; ++i) PrefetchForRead(src + kPrefetchBytes + i * 64);
}

__attribute__((target("avx2"))) void CopyAvx2(std::byte* dst, const std::byte* src, size_t size,
                                              std::byte* bounce) {
  for (; size >= 128; size -= 128, dst += 128, src += 128) {
    const auto* from = reinterpret_cast<const __m256i*>(src);
    auto* to = reinterpret_cast<__m256i*>(dst);
    __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
    __m256i c = _mm256_loadu_si256(from + 2), d = _mm256_loadu_si256(from + 3);
    // What was read stays what it is: the compiler may not read it again.
    asm volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
    _mm256_stream_si256(to + 2, c);
    _mm256_stream_si256(to + 3, d);
    if (bounce == nullptr) continue;
    PrefetchSource(src, size, 2);
    auto* kept = reinterpret_cast<__m256i*>(bounce);
    _mm256_storeu_si256(kept, a);
    _mm256_storeu_si256(kept + 1, b);
    _mm256_storeu_si256(kept + 2, c);
    _mm256_storeu_si256(kept + 3, d);
    bounce += 128;
  }
  CopyPortable(dst, src, size, bounce);
}

// As above with whole cache lines, which leave a core without having to be put together.
__attribute__((target("avx512f"))) void StreamAvx512(std::byte* dst, const std::byte* src,
                                                     size_t size, std::byte* bounce) {
  for (; bounce == nullptr && size >= 256; size -= 256, dst += 256, src += 256) {
    const auto* from = reinterpret_cast<const __m512i*>(src);
    auto* to = reinterpret_cast<__m512i*>(dst);
    _mm512_stream_si512(to, _mm512_loadu_si512(from));
    _mm512_stream_si512(to + 1, _mm512_loadu_si512(from + 1));
    _mm512_stream_si512(to + 2, _mm512_loadu_si512(from + 2));
    _mm512_stream_si512(to + 3, _mm512_loadu_si512(from + 3));
  }
  CopyAvx2(dst, src, size, bounce);
}

// x^n modulo the CRC's polynomial, bits reflected: the first bit stands for x^63.
constexpr uint64_t PowerOfX(int n) {
  uint64_t power = 1ull << 63;
  for (; n > 0; --n) power = power >> 1 ^ (power & 1 ? kPolynomial : 0);
  return power;
}

// What is folded at once, in registers of 64 bytes: enough that no product waits for the one
// before.
template <bool kCopies>
constexpr size_t kFoldedRegisters = kCopies ? 4 : 8;
template <bool kCopies>
constexpr size_t kFoldBytes = 64 * kFoldedRegisters<kCopies>;

// Where nothing is stored meanwhile, every line is asked for two pages ahead: what comes from a
// device is in no cache, and the processor's own prefetching ends at each page.
template <bool kCopies>
void PrefetchFolded(const std::byte* src, size_t done, size_t size) {
  if (kCopies) {
    if (done % kPageBytes == 0) PrefetchNextPage(src + done, size - done);
  } else if (size - done >= 2 * kPageBytes + kFoldBytes<kCopies>) {
    for (size_t i = 0; i < kFoldBytes<kCopies>; i += 64) {
      PrefetchForRead(src + done + 2 * kPageBytes + i);
    }
  }
}

// The CRC by folding (V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009): what was read of the last kFoldBytes, moved on by as many,
// is added to the next ones; those that are left in the end have the CRC of all. With kCopies the
// bytes are stored past the caches to `dst` on the way, out of the same registers. Takes what is
// whole in units of kFoldBytes and returns how much.
template <bool kCopies>
__attribute__((target("avx512f,vpclmulqdq"))) size_t Fold(std::byte* dst, const std::byte* src,
                                                          size_t size, uint64_t* crc) {
  constexpr size_t kRegisters = kFoldedRegisters<kCopies>, kBytes = kFoldBytes<kCopies>;
  if (size < kBytes) return 0;
  // A product of reflected factors comes out one place short; the powers make up for it.
  constexpr uint64_t kLow = PowerOfX(64 + 8 * kBytes - 1), kHigh = PowerOfX(8 * kBytes - 1);
  const __m512i power = _mm512_set4_epi64(static_cast<int64_t>(kHigh), static_cast<int64_t>(kLow),
                                          static_cast<int64_t>(kHigh), static_cast<int64_t>(kLow));
  // The register goes in where the first bytes are; of nothing moved on, nothing is left.
  __m512i sums[kRegisters] = {}, lines[kRegisters];
  __m512i in = _mm512_zextsi128_si512(_mm_cvtsi64_si128(static_cast<int64_t>(~*crc)));
  size_t done = 0;
  for (; done + kBytes <= size; done += kBytes) {
    PrefetchFolded<kCopies>(src, done, size);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRegisters; ++i) {
      lines[i] = _mm512_loadu_si512(src + done + 64 * i);
      // What was read stays what it is: the compiler may not read it again.
      if constexpr (kCopies) asm volatile("" : "+v"(lines[i]));
    }
    if constexpr (kCopies) {
      auto* to = reinterpret_cast<__m512i*>(dst + done);
#pragma GCC unroll 8
      for (size_t i = 0; i < kRegisters; ++i) _mm512_stream_si512(to + i, lines[i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kRegisters; ++i) {
      const __m512i moved = _mm512_xor_si512(_mm512_clmulepi64_epi128(sums[i], power, 0x00),
                                             _mm512_clmulepi64_epi128(sums[i], power, 0x11));
      sums[i] = _mm512_xor_si512(moved, lines[i]);
    }
    sums[0] = _mm512_xor_si512(sums[0], in);
    in = _mm512_setzero_si512();
  }
  alignas(64) std::byte left[kBytes];
  std::memcpy(left, sums, kBytes);
  *crc = ::crc64_ecma_refl(~uint64_t{0}, reinterpret_cast<const unsigned char*>(left), kBytes);
  return done;
}

bool Has(CopyPath path) {
  switch (path) {
    case CopyPath::kPortable:
      return true;
    case CopyPath::kAvx2:
      return __builtin_cpu_supports("avx2");
    case CopyPath::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
  }
  return false;
}
InnerCopy CopyOf(CopyPath path) {
  switch (path) {
    case CopyPath::kPortable:
      return CopyPortable;
    case CopyPath::kAvx2:
      return CopyAvx2;
    case CopyPath::kAvx512:
      return StreamAvx512;
  }
  return CopyPortable;
}
// Orders non-temporal stores before whatever publishes them.
void StoreFence() { _mm_sfence(); }
#else
template <bool kCopies>
size_t Fold(std::byte*, const std::byte*, size_t, uint64_t*) {
  return 0;
}
bool Has(CopyPath path) { return path == CopyPath::kPortable; }
InnerCopy CopyOf(CopyPath) { return CopyPortable; }
void StoreFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

CopyPath BestPath() {
  static const CopyPath path = Has(CopyPath::kAvx512) ? CopyPath::kAvx512
                               : Has(CopyPath::kAvx2) ? CopyPath::kAvx2
                                                      : CopyPath::kPortable;
  return path;
}

}  // namespace

uint64_t Crc64(uint64_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const size_t done = size >= kFoldsFromBytes && BestPath() == CopyPath::kAvx512
                          ? Fold<false>(nullptr, bytes, size, &crc)
                          : 0;
  return ::crc64_ecma_refl(crc, reinterpret_cast<const unsigned char*>(bytes) + done, size - done);
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

bool CopyPathSupported(CopyPath path) { return Has(path); }

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
  size_t done = path == CopyPath::kAvx512 ? Fold<true>(to, from, size, &crc) : 0;
  while (done < size) {
    const size_t chunk = std::min(kBounceBytes, size - done);
    PrefetchNextPage(from + done, size - done);
    copy(to + done, from + done, chunk, bounce);
    crc = Crc64(crc, bounce, chunk);
    done += chunk;
  }
  StoreFence();
  return crc;
}

void StreamCopy(void* dst, const void* src, size_t size) { StreamCopy(dst, src, size, BestPath()); }

void StreamCopy(void* dst, const void* src, size_t size, CopyPath path) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  const InnerCopy copy = CopyOf(path);
  size_t done = std::min(size, -reinterpret_cast<uintptr_t>(to) % 64);
  if (done > 0) std::memcpy(to, from, done);
  while (done < size) {
    const size_t chunk = std::min(kPageBytes, size - done);
    PrefetchNextPage(from + done, size - done);
    copy(to + done, from + done, chunk, nullptr);
    done += chunk;
  }
  StoreFence();
}

}  // namespace kvarve
