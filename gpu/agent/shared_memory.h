// Device memory of an engine's, given to another process: how it was allocated is probed for each
// allocation, by asking the driver.
//
//   vmm      physical chunks (cuMemCreate) mapped side by side, as PyTorch's expandable segments: a
//            descriptor for each chunk, and the importer maps them side by side again, because a
//            tensor may span several. The engine must have asked for descriptors when it made them.
//   legacy   cuMemAlloc: one handle of 64 bytes for the whole allocation (CUDA IPC).
//
// How large a chunk is, cuMemGetAddressRange says: others rely on that (UCX), no driver has shown
// it here. In the engine's own process neither is needed: a pointer is a pointer there.
//
// What an importer maps keeps the memory itself alive, also after its engine is gone: whoever maps
// watches the engine's process (agent_server.h).
//
// THREADS: one a value.  BLOCKS: as the driver.
#ifndef KVARVE_GPU_AGENT_SHARED_MEMORY_H_
#define KVARVE_GPU_AGENT_SHARED_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/device/device.h"
#include "gpu/device/driver.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

enum class MemoryKind : uint32_t { kVmm = 1, kLegacy = 2 };
std::string_view MemoryKindName(MemoryKind kind);

inline constexpr uint64_t kMaxMemoryPieces = 1 << 16;  // of one engine: 128 GiB of 2 MiB

// What lies in [begin, end) of the exporter's addresses.
struct MemoryRange {
  MemoryKind kind = MemoryKind::kVmm;
  uint64_t begin = 0, end = 0;
  uint32_t pieces = 0;
};
// The next of a range's pieces, in order: a chunk's descriptor, or a handle.
struct MemoryPiece {
  uint64_t bytes = 0;
  UniqueFd fd;
  cuda::IpcMemoryHandle handle{};
};

// In the process that has the memory.
class MemoryExporter {
 public:
  // The whole allocations that [at, at + bytes) lies in. NotFound: no memory of the device's there.
  // FailedPrecondition: memory that cannot be shared, with why. ResourceExhausted: too many chunks.
  static absl::StatusOr<MemoryExporter> Create(const cuda::Driver& driver, std::string_view uuid,
                                               uint64_t at, uint64_t bytes);
  const MemoryRange& range() const { return range_; }
  // Nothing behind the last one.
  absl::StatusOr<std::optional<MemoryPiece>> Next();

 private:
  explicit MemoryExporter(const cuda::Driver& driver) : driver_(&driver) {}
  absl::Status Measure(uint64_t at, uint64_t bytes);
  const cuda::Driver* driver_;
  cuda::DeviceOrdinal ordinal_ = 0;
  MemoryRange range_;
  uint64_t next_ = 0;
};

// In the other.
class MemoryImporter {
 public:
  // ResourceExhausted, InvalidArgument: a range that is none.
  static absl::StatusOr<MemoryImporter> Create(const cuda::Driver& driver, std::string_view uuid,
                                               const MemoryRange& range);
  MemoryImporter(MemoryImporter&& other) noexcept;
  ~MemoryImporter();  // gives back what was not finished
  const MemoryRange& range() const { return range_; }
  // InvalidArgument: more than the range has.
  absl::Status Add(const MemoryPiece& piece);
  bool complete() const { return range_.begin + mapped_ == range_.end; }
  // All of it; its address here is that of range().begin there. REQUIRES: complete().
  absl::StatusOr<DeviceMemory> Finish();

 private:
  MemoryImporter(const cuda::Driver& driver, cuda::DeviceOrdinal ordinal, const MemoryRange& range)
      : driver_(&driver), ordinal_(ordinal), range_(range) {}
  const cuda::Driver* driver_;
  cuda::DeviceOrdinal ordinal_;
  MemoryRange range_;
  uint64_t address_ = 0, mapped_ = 0;
  std::vector<uint64_t> sizes_;  // of the chunks that are mapped
};

}  // namespace kvarve

#endif  // KVARVE_GPU_AGENT_SHARED_MEMORY_H_
