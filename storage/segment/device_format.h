// Making a device ours, and finding out whether it is: superblocks A and B.
// THREADS: one caller a device.  BLOCKS: on the device.
#ifndef KVARVE_STORAGE_SEGMENT_DEVICE_FORMAT_H_
#define KVARVE_STORAGE_SEGMENT_DEVICE_FORMAT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/io/device.h"
#include "storage/segment/format.h"

namespace kvarve {

inline constexpr uint64_t kMinSlots = 4;  // two open, one to reclaim, one to move into

// What segments of a device of that size should be at most: 256 MiB, and less where that would make
// fewer than eight of them.
uint64_t SegmentBytesFor(uint64_t device_bytes);

struct FormatOptions {
  uint64_t bytes = 0;  // of a regular file; 0: what it has. A block device is used whole.
  uint64_t segment_bytes = 256ull << 20;
  bool force = false;  // even if it holds something that is not ours
  // Writes every page once: the first pass over a fresh file may cost half of the speed, and
  // nothing of what lay there before stays.
  bool overwrite = true;
  std::function<void(uint64_t done, uint64_t total)> progress;
  std::function<void(std::span<uint8_t>)> random;  // of uuid and secret; null: the kernel's
};

// Makes `path` a kvarve device, creating a regular file if there is none. Refuses, with
// FailedPrecondition and what to do, a device that is neither empty nor ours unless `force` is set;
// links, other kinds of files and devices in use always (OpenDeviceFile).
absl::StatusOr<Superblock> FormatDevice(const std::string& path, const FormatOptions& options);

// The same on a device that is open, for tests and for the above. `bytes` is not looked at.
absl::StatusOr<Superblock> FormatOpenDevice(Device* device, const FormatOptions& options);

// The superblock that counts. Of the copies one may be damaged. NotFound: nothing of kvarve.
// DataLoss: both copies damaged. FailedPrecondition: an unknown version or feature, another unit,
// another device than `expected` (if not null), or a device smaller than it says. Each names the
// path and says what to do.
absl::StatusOr<Superblock> ReadSuperblock(Device* device, const DeviceUuid* expected);

// Begins a start: an epoch above `epoch_seen` and the superblock's, durable in both copies before
// this returns and read back, so that no later start can have it again.
absl::Status BeginEpoch(Device* device, Superblock* superblock, uint64_t epoch_seen);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_DEVICE_FORMAT_H_
