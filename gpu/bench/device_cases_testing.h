// Records device_cases.h's cases: every kernel of the table. Movers and packers run in the shim,
// and their oracles compare the result bit by bit; what attention and KeyDiff must answer is their
// definition's, in double.
//
// THREADS: one.
#ifndef KVARVE_GPU_BENCH_DEVICE_CASES_TESTING_H_
#define KVARVE_GPU_BENCH_DEVICE_CASES_TESTING_H_

#include <cstdint>
#include <vector>

#include "gpu/bench/device_cases.h"

namespace kvarve::gpu_bench {

// Of each kernel, layout, type and dimension one, or, with `few`, of each kernel one. An oracle
// that disagrees is a failure of GoogleTest's.
std::vector<DeviceCase> RecordCases(bool few);

}  // namespace kvarve::gpu_bench

#endif  // KVARVE_GPU_BENCH_DEVICE_CASES_TESTING_H_
