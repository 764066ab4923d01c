#include "gpu/device/row_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvarve {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kVectorBytes = 32;
constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kPrefetchBytes = 4096;  // strided rows defeat the CPU's own prefetching
constexpr uint64_t kLaneBytes = 256;       // of a lane at a time

bool FitsAvx2(const RowCopy& copy) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  const uint64_t alignment =
      reinterpret_cast<uintptr_t>(copy.dst) | static_cast<uint64_t>(copy.dst_stride);
  return has_avx2 && (alignment | copy.row_bytes) % kVectorBytes == 0;
}

__attribute__((target("avx2"))) void StreamAvx2(const RowCopy& copy) {
  std::byte* dst = copy.dst;
  const std::byte* src = copy.src;
  for (uint32_t row = 0; row < copy.rows; ++row, dst += copy.dst_stride, src += copy.src_stride) {
    for (uint64_t i = 0; i < copy.row_bytes; i += kVectorBytes) {
      if (i % kLineBytes == 0) {
        _mm_prefetch(reinterpret_cast<const char*>(src) + i + kPrefetchBytes, _MM_HINT_T0);
      }
      const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i), value);
    }
  }
}

// Lanes are streams that the CPU finds by itself.
__attribute__((target("avx2"))) void StreamLanesAvx2(std::span<const RowCopy> lanes) {
  const uint64_t row_bytes = lanes[0].row_bytes;
  for (uint32_t row = 0; row < lanes[0].rows; ++row) {
    for (uint64_t begin = 0; begin < row_bytes; begin += kLaneBytes) {
      const uint64_t bytes = std::min(kLaneBytes, row_bytes - begin);
      for (const RowCopy& lane : lanes) {
        std::byte* const dst = lane.dst + row * lane.dst_stride + begin;
        const std::byte* const src = lane.src + row * lane.src_stride + begin;
        for (uint64_t i = 0; i < bytes; i += kVectorBytes) {
          const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
          _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i), value);
        }
      }
    }
  }
}
#endif

}  // namespace

void StreamLanes(std::span<const RowCopy> lanes) {
#if defined(__x86_64__)
  if (lanes.size() > 1 && std::all_of(lanes.begin(), lanes.end(), FitsAvx2))
    return StreamLanesAvx2(lanes);
#endif
  for (const RowCopy& lane : lanes) StreamRows(lane);
}

void StreamRows(const RowCopy& copy) {
#if defined(__x86_64__)
  if (FitsAvx2(copy)) return StreamAvx2(copy);
#endif
  for (uint32_t row = 0; row < copy.rows; ++row) {
    std::memcpy(copy.dst + row * copy.dst_stride, copy.src + row * copy.src_stride, copy.row_bytes);
  }
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

}  // namespace kvarve
