// Opens a device with the best backend that this process may use.
// THREADS: any.  BLOCKS: on the filesystem.
#ifndef KVARVE_STORAGE_IO_OPEN_DEVICE_H_
#define KVARVE_STORAGE_IO_OPEN_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/io/device.h"
#include "storage/io/device_file.h"
#include "storage/io/io_queue.h"

namespace kvarve {

enum class WantedBackend : uint8_t { kAuto, kUring, kPosix };  // kUring falls back as well

struct DeviceOptions {
  WantedBackend backend = WantedBackend::kAuto;
  bool direct = true;
  int posix_threads = 8;
  IoQueueOptions queue;
};

// Fails as OpenDeviceFile does. A refused io_uring or O_DIRECT is no failure: a warning in the log,
// and DeviceInfo says so.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& path,
                                                   const DeviceOptions& options);
// The same of a file that is open already.
std::unique_ptr<Device> NewDevice(DeviceFile file, const DeviceOptions& options);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_OPEN_DEVICE_H_
