// Bugs that only compiled code shows: in the branches for __CUDA_ARCH__, which no C++ compiler
// sees. Each kernel is right with bug 0. Beside portable.cuh the only file with inline PTX: the
// wrong one.
#include "gpu/emulator/planted.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {
namespace {

enum Bug : uint32_t { kNone = 0, kSize = 1, kSwapped = 2, kNoWait = 3 };

KV_DEVICE uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

}  // namespace

// Through shared memory, each thread reading its neighbour's 16 bytes.
KV_KERNEL(kv_planted_cp_async, PlantedParams) {
  KV_SHARED_ARRAY(Word16, buffer, 16);
  const Word16* const from = At<const Word16>(p.in) + threadIdx.x;
  Word16* const to = &buffer[threadIdx.x];
  if (p.bug == kSize) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(SharedAddress(to)), "l"(from)
                 : "memory");
  } else if (p.bug == kSwapped) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<uint32_t>(reinterpret_cast<uint64_t>(from))),
                 "l"(static_cast<uint64_t>(SharedAddress(to)))
                 : "memory");
  } else {
    CopyAsync<16>(to, from);
  }
  CopyAsyncCommit();
  if (p.bug == kNoWait) {
    CopyAsyncWait<1>();
  } else {
    CopyAsyncWait<0>();
  }
  __syncthreads();
  At<Word16>(p.out)[threadIdx.x] = buffer[threadIdx.x ^ 1];
}

// A word for everybody, its address and its value in each other's place.
KV_KERNEL(kv_planted_release, PlantedParams) {
  if (threadIdx.x != 0) return;
  if (p.bug == kSwapped) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(uint64_t{4096}), "l"(p.out)
                 : "memory");
  } else {
    StoreReleaseSystem(At<uint64_t>(p.out), 4096);
  }
}

// Codes that a conversion has without its clamp: above 448 the exponent runs over.
KV_KERNEL(kv_planted_fp8, PlantedParams) {
  const float value = At<const float>(p.in)[threadIdx.x];
  uint8_t code = ToFp8(value);
  if (p.bug != kNone) {
    const uint32_t rounded = (FloatToBits(value) & 0x7fffffffu) + 0x7ffffu;
    code = static_cast<uint8_t>((rounded >> 20) - (120u << 3));
  }
  At<uint8_t>(p.out)[threadIdx.x] = code;
}

KV_KERNEL(kv_planted_wide_load, PlantedParams) {
  if (threadIdx.x != 0) return;
  *At<Word16>(p.out) = *At<const Word16>(p.in, p.bug != kNone ? 8 : 0);
}

// One float behind the own allocation, where another live one begins.
KV_KERNEL(kv_planted_own_allocation, PlantedParams) {
  At<float>(p.out)[threadIdx.x] = At<const float>(p.in)[threadIdx.x + (p.bug != kNone ? 64 : 0)];
}

}  // namespace kvarve
