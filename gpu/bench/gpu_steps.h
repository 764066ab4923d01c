// What the device benchmark does, in this order, the most telling first. Everything goes through
// the code that ships (gpu/device, gpu/kernels, gpu/transfer, gpu/attention); where that would
// hide an answer (registration) the driver is asked itself.
//
// Speeds are bytes over the time of a wall clock from before the work is queued until its event is
// done, the median of several rounds after one that does not count.
//
// THREADS: one.  BLOCKS: as long as a device takes; bench_steps.h bounds it.
#ifndef KVARVE_GPU_BENCH_GPU_STEPS_H_
#define KVARVE_GPU_BENCH_GPU_STEPS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/bench/bench_steps.h"
#include "gpu/device/device.h"
#include "gpu/device/driver.h"

namespace kvarve::gpu_bench {

// A driver to be opened in each step's own process.
struct Source {
  std::function<absl::StatusOr<const cuda::Driver*>()> driver;
  std::span<const std::byte> module;
  // After a step, everything given back: what a fake driver has to complain of. May be null.
  std::function<std::string()> complaints;
};

struct Plan {
  Source source;
  std::string cases_file;  // of RecordCases (device_cases.h)
  std::string uuid;        // empty: the only device
  bool tiny = false;       // sizes for a rehearsal on a CPU
};

// environment, registration, kernels, copies, onload, memory, processes, sanitizer. Their deadlines
// add up to less than kTotalSeconds.
inline constexpr double kTotalSeconds = 240;
std::vector<Step> GpuSteps(const Plan& plan);

// For the steps' files.
absl::StatusOr<std::shared_ptr<ComputeDevice>> Open(const Plan& plan);
// Of a measurement; a rehearsal measures nothing.
inline int Rounds(const Plan& plan) { return plan.tiny ? 1 : 5; }
// Median seconds of `work`, which waits for what it queued.
absl::StatusOr<double> MedianSeconds(int rounds, const std::function<absl::Status()>& work);
absl::Status Finish(DeviceStream& stream);
// Host memory of a device's: mapped, registered for reading and writing, given back.
class HostBuffer {
 public:
  static absl::StatusOr<std::unique_ptr<HostBuffer>> Create(std::shared_ptr<ComputeDevice> device,
                                                            uint64_t bytes);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }
  uint64_t address() const { return address_; }  // the device's

 private:
  HostBuffer(std::shared_ptr<ComputeDevice> device, std::span<std::byte> bytes)
      : device_(std::move(device)), bytes_(bytes) {}
  const std::shared_ptr<ComputeDevice> device_;
  const std::span<std::byte> bytes_;
  uint64_t address_ = 0;
};
// Random small numbers of bf16, all over.
absl::Status FillNumbers(ComputeDevice& device, const DeviceMemory& memory, HostBuffer& host);

absl::Status RunEnvironment(const Plan& plan, const Report& report);
absl::Status RunRegistration(const Plan& plan, const Report& report);
absl::Status RunKernels(const Plan& plan, const Report& report);
absl::Status RunCopies(const Plan& plan, const Report& report);
absl::Status RunOnload(const Plan& plan, const Report& report);
absl::Status RunMemory(const Plan& plan, const Report& report);
absl::Status RunProcesses(const Plan& plan, const Report& report);
absl::Status RunSanitizer(const Plan& plan, const Report& report);

}  // namespace kvarve::gpu_bench

#endif  // KVARVE_GPU_BENCH_GPU_STEPS_H_
