// Launches of kernels with what they must answer, recorded where the oracles are
// (device_cases_testing.h) and replayed where a device is: no oracle, and nothing random, is needed
// there. A case is an image of all memory that its launches touch, with the places of the addresses
// in it, so that it runs wherever a device puts it.
//
// A file is one CBOR array of cases.
//
// THREADS: any.  BLOCKS: Replay, for the device.
#ifndef KVARVE_GPU_BENCH_DEVICE_CASES_H_
#define KVARVE_GPU_BENCH_DEVICE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/device/device.h"

namespace kvarve::gpu_bench {

class HostBuffer;

struct CaseLaunch {
  std::string kernel;  // of kKernels
  uint32_t grid = 0;
  std::vector<uint8_t> params;
  std::vector<uint32_t> addresses;  // offsets of words that count from the image's begin
  bool operator==(const CaseLaunch&) const = default;
};

// Numbers at `offset`: |got - want| <= absolute + relative * |want|, or the larger of both;
// infinities alike.
struct CaseNumbers {
  uint64_t offset = 0;
  uint32_t type = 0;  // NumberType
  std::vector<float> want;
  double absolute = 0, relative = 0;
  bool is_larger = false;
  bool operator==(const CaseNumbers&) const = default;
};

struct CaseBytes {
  uint64_t offset = 0;
  std::vector<uint8_t> bytes;
  bool operator==(const CaseBytes&) const = default;
};

struct DeviceCase {
  std::string name;
  std::vector<CaseLaunch> launches;
  std::vector<uint8_t> image;       // lies at multiples of kImageAlignment
  std::vector<uint32_t> addresses;  // as CaseLaunch's
  std::vector<CaseNumbers> numbers;
  std::vector<CaseBytes> changed;                      // what the image has afterwards
  std::vector<std::pair<uint64_t, uint64_t>> ignored;  // [begin, end): scratch
  bool operator==(const DeviceCase&) const = default;
};
inline constexpr uint64_t kImageAlignment = 256;

absl::Status SaveCases(const std::vector<DeviceCase>& cases, const std::string& path);
// InvalidArgument: not such a file, or not whole.
absl::StatusOr<std::vector<DeviceCase>> LoadCases(const std::string& path);

struct CaseAnswer {
  std::string wrong;  // empty: as it must be
  double worst = 0;   // of the numbers' errors, in parts of what is allowed
};
// `host` and `memory` have room for the image.
absl::StatusOr<CaseAnswer> Replay(const DeviceCase& which, DeviceStream& stream, HostBuffer& host,
                                  const DeviceMemory& memory);

}  // namespace kvarve::gpu_bench

#endif  // KVARVE_GPU_BENCH_DEVICE_CASES_H_
