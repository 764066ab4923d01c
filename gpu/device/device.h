// What moves KV: a device with streams of work, in order each, and events between them. Two of
// them stand behind this: CUDA (cuda_device.h) and the CPU (cpu_device.h), whose work is done when
// a call returns.
//
// A stream's work reads and writes memory later than the call that asks for it: whoever asks keeps
// all of it, tables and leases too, until an event recorded behind it is done.
//
// While an engine captures graphs, nothing here may be allocated, registered or loaded: ask for all
// of it before its warm-up, or let HostRegistry wait (gpu/transfer/host_registry.h). Calls that
// must wait answer Unavailable. No stream of an engine gets work of ours while it captures.
//
// THREADS: any for a device, one at a time for a stream; an event may be waited for by any.
// BLOCKS: DeviceEvent::Wait, Synchronize; allocation and registration as long as the driver takes.
#ifndef KVARVE_GPU_DEVICE_DEVICE_H_
#define KVARVE_GPU_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/kernels/params.h"
#include "gpu/kernels/plan.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

struct ComputeDeviceInfo {
  bool is_cpu = false;  // its memory is host memory, and all host memory is its
  std::string name;     // "cpu", or what the driver calls it
  std::string uuid;     // "GPU-…" or "MIG-…"; empty for the CPU
  int compute_major = 0, compute_minor = 0;
  int driver_version = 0;               // 13000 is 13.0
  bool read_only_registration = false;  // host memory that it may only read can be registered
};

// Memory of a device; given back on destruction. Move-only.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(uint64_t address, uint64_t bytes, std::function<void()> free)
      : address_(address), bytes_(bytes), free_(std::move(free)) {}
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~DeviceMemory() {
    if (free_) free_();
  }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t address_ = 0, bytes_ = 0;
  std::function<void()> free_;
};

// Done, or waited for, with whatever answer: nothing of what it stands behind moves any more. A
// capture that forbids to look only delays the answer; an error says that the device failed.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual absl::StatusOr<bool> Done() = 0;
  virtual absl::Status Wait() = 0;
};

enum class CopyOrder {
  kStream,  // what came before on the stream is read
  kAny,     // the sources are whole when the call is made: from host memory only
};

// A stream of an engine's, as its framework names it (a CUstream); 0: none, or the CPU's.
using EngineStream = uint64_t;

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual absl::Status Copy(std::span<const CopyJob> jobs, CopyOrder order) = 0;
  virtual absl::Status Run(const Launch& launch) = 0;
  // Done when everything asked for so far is.
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> Record() = 0;
  // As waiting for such an event, where there is none: afterwards nothing of the stream moves.
  virtual absl::Status Synchronize() = 0;
  virtual absl::Status WaitFor(DeviceEvent& event) = 0;
  // A timeline: a word of device-visible memory that only grows, also another process's.
  virtual absl::Status WriteValue(uint64_t at, uint64_t value) = 0;
  virtual absl::Status WaitValue(uint64_t at, uint64_t value) = 0;
  // What the engine's stream gets next comes after the event. Unavailable: it captures.
  virtual absl::Status EngineAfter(EngineStream engine, DeviceEvent& event) = 0;
};

enum class HostAccess { kReadWrite, kReadOnly };

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual const ComputeDeviceInfo& info() const = 0;
  virtual absl::StatusOr<DeviceMemory> Allocate(uint64_t bytes) = 0;
  // Memory that other processes can map: `export_fd` is a descriptor for them. Sizes are rounded
  // up to the device's granularity.
  struct Shareable {
    DeviceMemory memory;
    UniqueFd export_fd;
  };
  virtual absl::StatusOr<Shareable> AllocateShareable(uint64_t bytes) = 0;
  // What another process exported; `bytes` as its AllocateShareable said.
  virtual absl::StatusOr<DeviceMemory> Import(int fd, uint64_t bytes) = 0;
  // Makes host memory the device's to read, or also to write, at the address returned.
  // Unimplemented: not this access on this device.
  virtual absl::StatusOr<uint64_t> Register(std::span<std::byte> memory, HostAccess access) = 0;
  // REQUIRES: no work under way touches it.
  virtual absl::Status Unregister(std::byte* memory) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() = 0;
  // Done when what the engine's stream has so far is. Unavailable: it captures.
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> RecordEngine(EngineStream engine) = 0;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_DEVICE_DEVICE_H_
