// What differs between nvcc and the host shim, in one place: the only file with inline PTX or
// __CUDA_ARCH__. Without nvcc it is C++ (gpu/emulator/shim.h).
//
// THREADS: CUDA's.
#ifndef KVARVE_GPU_KERNELS_PORTABLE_CUH_
#define KVARVE_GPU_KERNELS_PORTABLE_CUH_

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_fp8.h>
// A kernel takes one parameter struct. So many blocks a processor bound its registers (four leave
// 64 a thread): without a bound ptxas saves registers until it spills.
#define KV_KERNEL_OF(name, Params, blocks) \
  extern "C" __global__ void __launch_bounds__(256, blocks) name(const __grid_constant__ Params p)
#define KV_SHARED_ARRAY(Type, name, count) __shared__ Type name[count]
#else
#include "gpu/emulator/shim.h"
#define KV_KERNEL_OF(name, Params, blocks)                                                 \
  static void name(const Params& p);                                                       \
  static const ::kvarve::shim::KernelEntry name##_entry(                                   \
      #name, sizeof(Params), [](const void* q) { name(*static_cast<const Params*>(q)); }); \
  static void name(const Params& p)
#define KV_SHARED_ARRAY(Type, name, count) \
  static char name##_key;                  \
  Type* const name =                       \
      static_cast<Type*>(::kvarve::shim::StaticShared(&name##_key, sizeof(Type) * (count)))
#endif
#define KV_KERNEL(name, Params) KV_KERNEL_OF(name, Params, 4)
#define KV_DEVICE __device__ __forceinline__

namespace kvarve {

inline constexpr unsigned kWholeWarp = 0xffffffffu;
inline constexpr uint32_t kBlockThreads = 256;  // of every kernel
inline constexpr float kInfinity = __builtin_huge_valf();

// An access of so many bytes at once.
template <int bytes>
struct Word;
template <>
struct Word<1> {
  using Type = uint8_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint64_t;
};
struct alignas(16) Word16 {
  uint64_t low, high;
};
template <>
struct Word<16> {
  using Type = Word16;
};

template <typename T>
KV_DEVICE T* At(uint64_t address, int64_t offset = 0) {
  return reinterpret_cast<T*>(address + offset);
}

KV_DEVICE float BitsToFloat(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

KV_DEVICE uint32_t FloatToBits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

KV_DEVICE float FromBf16(uint16_t bits) { return BitsToFloat(uint32_t{bits} << 16); }

// To nearest, ties to even; NaN becomes 0x7fff.
KV_DEVICE uint16_t ToBf16(float value) {
  const uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

KV_DEVICE float FromF16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) {  // a device makes one NaN of all of them
    return BitsToFloat(fraction == 0 ? sign | 0x7f800000u : sign | 0x7fc00000u | fraction << 13);
  }
  if (exponent == 0) {  // fraction × 2^-24, exact
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return BitsToFloat(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

// To nearest, ties to even; what is too large becomes infinite, NaN becomes 0x7fff.
KV_DEVICE uint16_t ToF16(float value) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t bits = FloatToBits(value), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 rounds to multiples of 2^-24
    const float rounded = BitsToFloat(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (FloatToBits(rounded) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
#endif
}

// A magnitude's bits, moved to where fp32 has them, are right but for the exponent's bias, which a
// multiplication puts right for subnormal codes too.
KV_DEVICE float FromFp8(uint8_t bits) {
  const auto moved = static_cast<uint32_t>(static_cast<int32_t>(uint32_t{bits} << 24) >> 4);
  const uint32_t value = FloatToBits(BitsToFloat(moved & 0x87f00000u) * 0x1p120f);
  return BitsToFloat((bits & 0x7fu) == 0x7f ? (value & 0x80000000u) | 0x7fc00000u : value);
}

// e4m3fn: to nearest, ties to even; saturates at 448; NaN becomes 0x7f.
KV_DEVICE uint8_t ToFp8(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return static_cast<uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
#else
  const uint32_t bits = FloatToBits(value), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < 0x3c800000u) {  // subnormal: adding 2^14 rounds to multiples of 2^-9
    const float rounded = BitsToFloat(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (FloatToBits(rounded) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7e ? 0x7e : code));
#endif
}

// The sum of a product, rounded once on a device.
KV_DEVICE float Fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

// 2^x and log2(x) to about 2 units in the last place; of subnormal numbers as of 0.
KV_DEVICE float Exp2(float x) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
#else
  return exp2f(x);
#endif
}
KV_DEVICE float Log2(float x) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
#else
  return log2f(x);
#endif
}

// The same in all lanes of a warp.
KV_DEVICE float WarpMax(float value) {
  for (uint32_t lanes = 16; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, lanes));
  return value;
}
KV_DEVICE float WarpSum(float value) {
  for (uint32_t lanes = 16; lanes > 0; lanes /= 2)
    value += __shfl_xor_sync(kWholeWarp, value, lanes);
  return value;
}

// Asynchronous copies from global to shared memory, 4, 8 or 16 bytes a call, aligned so: this
// thread's, in groups. What they write may be read after the wait, by others after a barrier, too.
template <int bytes>
KV_DEVICE void CopyAsync(void* shared, const void* global) {
#if defined(__CUDA_ARCH__)
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (bytes == 16) {  // .cg: past the first cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(bytes)
                 : "memory");
  }
#else
  ::kvarve::shim::CopyAsync(shared, global, bytes);
#endif
}
KV_DEVICE void CopyAsyncCommit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  ::kvarve::shim::CopyAsyncCommit();
#endif
}
// Until at most so many of the newest groups are under way.
template <int groups>
KV_DEVICE void CopyAsyncWait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#else
  ::kvarve::shim::CopyAsyncWait(groups);
#endif
}

// Whoever sees `value` at `at`, on any processor of the system, sees what this thread wrote before.
KV_DEVICE void StoreReleaseSystem(uint64_t* at, uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

}  // namespace kvarve

#endif  // KVARVE_GPU_KERNELS_PORTABLE_CUH_
