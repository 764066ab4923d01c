// Host memory as a device may touch it: registered in pieces by a thread of its own, and known by
// address. What is not registered (yet, or at all) has no address, and whoever moves it takes
// another way; nothing waits for a registration.
//
// Pieces are whole extents of the arena (32 MiB) and at most 64 GiB: larger registrations have
// failed in one call, and a second of work for each 10 GB is better done in the background. No copy
// spans two pieces. While an engine may capture graphs (SetQuiet) nothing is registered or
// unregistered.
//
// For the CPU device all host memory has an address: its own.
//
// THREADS: any.  BLOCKS: Remove, until the memory is unregistered; WaitIdle as long as it says.
#ifndef KVARVE_GPU_TRANSFER_HOST_REGISTRY_H_
#define KVARVE_GPU_TRANSFER_HOST_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "gpu/device/device.h"
#include "storage/base/mutex.h"
#include "storage/base/units.h"

namespace kvarve {

// How blocks come from the host tier to a device, and what chose it; the same word is the metric's.
enum class HostPath {
  kHost,      // the CPU device: in place
  kArena,     // (a) the arena's own memory, registered for reading only
  kStaging,   // (b) a bounded staging memory, into which the daemon copies
  kWritable,  // (c) the arena's memory mapped writable (trust=writable), registered, then protected
};
inline constexpr size_t kHostPaths = 4;
std::string_view HostPathName(HostPath path);
// (a) where the device can, (c) where it cannot and the daemon trusts this host's processes, else
// (b).
HostPath ChooseHostPath(const ComputeDeviceInfo& device, bool is_pool_writable);

class HostRegistry {
 public:
  static constexpr uint64_t kExtentBytes = 32 * kMiB;
  static constexpr uint64_t kMaxPieceBytes = 64 * kGiB;

  explicit HostRegistry(std::shared_ptr<ComputeDevice> device,
                        uint64_t piece_bytes = kMaxPieceBytes);
  ~HostRegistry();  // unregisters all; REQUIRES: no work under way touches it

  enum class Use {
    kReadWrite,
    kReadOnly,
    kProtect,  // registered for writing too, then this process's mapping is made read-only (also
               // if the registration failed)
  };
  // Memory that is mapped here until Remove.
  void Add(std::span<std::byte> memory, Use use);
  // REQUIRES: as ~HostRegistry. Waits while quiet, or while a capture forbids it, if any of it is
  // registered: what is unmapped while it is registered is the device's still.
  void Remove(const std::byte* memory);
  // Where the device finds these bytes; nothing when they are not all in one registered piece.
  std::optional<uint64_t> AddressOf(const std::byte* at, uint64_t bytes) const;
  void SetQuiet(bool is_quiet);
  // True when nothing waits to be registered any more.
  bool WaitIdle(int64_t timeout_nanos);

  struct Stats {
    uint64_t pieces = 0, bytes = 0;  // registered now
    uint64_t waiting = 0;            // pieces
    uint64_t failed = 0;             // pieces, ever
    std::string last_error;
  };
  Stats stats() const;

 private:
  struct Piece {
    std::span<std::byte> memory;
    const std::byte* owner = nullptr;  // where the memory that it is a piece of begins
    Use use = Use::kReadOnly;
    uint64_t address = 0;  // of the device
  };
  void Run();
  absl::StatusOr<uint64_t> Register(const Piece& piece);
  void Unregister(const Piece& piece);  // waits while a capture forbids it

  const std::shared_ptr<ComputeDevice> device_;
  const uint64_t piece_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Piece> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, Piece> registered_ ABSL_GUARDED_BY(mutex_);  // by begin
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a call to the driver is under way
  bool quiet_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_TRANSFER_HOST_REGISTRY_H_
