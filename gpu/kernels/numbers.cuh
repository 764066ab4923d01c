// Numbers of a type that is known at run time (params.h, NumberType).
//
// THREADS: CUDA's.
#ifndef KVARVE_GPU_KERNELS_NUMBERS_CUH_
#define KVARVE_GPU_KERNELS_NUMBERS_CUH_

#include "gpu/kernels/params.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {

KV_DEVICE uint32_t NumberBytes(uint32_t type) { return type == kF32 ? 4 : 2; }

KV_DEVICE float LoadElement(uint64_t at, uint32_t type) {
  if (type == kF32) return *At<const float>(at);
  const uint16_t bits = *At<const uint16_t>(at);
  return type == kBf16 ? FromBf16(bits) : FromF16(bits);
}

KV_DEVICE void StoreElement(uint64_t at, uint32_t type, float value) {
  if (type == kF32) {
    *At<float>(at) = value == value ? value : BitsToFloat(0x7fffffffu);  // one NaN for all
  } else {
    *At<uint16_t>(at) = type == kBf16 ? ToBf16(value) : ToF16(value);
  }
}

KV_DEVICE bool IsFinite(float value) { return (FloatToBits(value) & 0x7f800000u) != 0x7f800000u; }

}  // namespace kvarve

#endif  // KVARVE_GPU_KERNELS_NUMBERS_CUH_
