// What the planted kernels (planted.cu) are told.
// A value: THREADS: any.
#ifndef KVARVE_GPU_EMULATOR_PLANTED_H_
#define KVARVE_GPU_EMULATOR_PLANTED_H_

#include <stdint.h>

namespace kvarve {

struct PlantedParams {
  uint64_t in;   // float[64]
  uint64_t out;  // float[64]
  uint32_t bug;  // 0 or 1
};

}  // namespace kvarve

#endif  // KVARVE_GPU_EMULATOR_PLANTED_H_
