#include "gpu/attention/cpu_kernel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"

// One text, compiled once for each kind of processor. Vectors of 16 floats are cut in two where
// registers are shorter; nothing of them leaves a function that is not inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace kvarve {
namespace {

constexpr uint32_t kTile = 32;  // tokens whose logits are computed together
constexpr size_t ElementSize(ElementType type) {
  return type == ElementType::kFp32 ? 4 : type == ElementType::kFp8E4m3 ? 1 : 2;
}
constexpr float kNone = -std::numeric_limits<float>::infinity();

namespace portable {
#include "gpu/attention/cpu_kernel.inc"
}  // namespace portable

#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "gpu/attention/cpu_kernel.inc"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
namespace avx512 {
#include "gpu/attention/cpu_kernel.inc"
}  // namespace avx512
#pragma GCC pop_options
#define KV_ATTENTION_X86 1
#endif

std::atomic<AttentionPath>& Path() {
  static std::atomic<AttentionPath> path = BestAttentionPath();
  return path;
}

}  // namespace

bool AttentionPathSupported(AttentionPath path) {
#ifdef KV_ATTENTION_X86
  if (path == AttentionPath::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
  if (path == AttentionPath::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return path == AttentionPath::kPortable;
}

AttentionPath BestAttentionPath() {
  for (const AttentionPath path : {AttentionPath::kAvx512, AttentionPath::kAvx2}) {
    if (AttentionPathSupported(path)) return path;
  }
  return AttentionPath::kPortable;
}

void SetAttentionPathForTest(AttentionPath path) {
  KV_CHECK(AttentionPathSupported(path));
  Path() = path;
}

float InverseLength(float squares) {
  if (squares > 0) return 1 / std::sqrt(squares);
  return squares == 0 ? 0 : squares;  // NaN stays
}

void KeyDiffPass(const AttentionWork& work, const float* anchor, float* out) {
  switch (Path().load(std::memory_order_relaxed)) {
#ifdef KV_ATTENTION_X86
    case AttentionPath::kAvx512:
      return avx512::KeyDiffOf(work, anchor, out);
    case AttentionPath::kAvx2:
      return avx2::KeyDiffOf(work, anchor, out);
#endif
    default:
      return portable::KeyDiffOf(work, anchor, out);
  }
}

void Attend(const AttentionWork& work) {
  switch (Path().load(std::memory_order_relaxed)) {
#ifdef KV_ATTENTION_X86
    case AttentionPath::kAvx512:
      return avx512::AttendOf(work);
    case AttentionPath::kAvx2:
      return avx2::AttendOf(work);
#endif
    default:
      return portable::AttendOf(work);
  }
}

}  // namespace kvarve
