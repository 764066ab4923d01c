// Opens the file behind a device, safely: a regular file or block device, never through a symbolic
// link, exclusively locked, past the page cache if the filesystem can.
// THREADS: any.  BLOCKS: on the filesystem, and for a lock
// that another holds, at most lock_wait_nanos.
#ifndef KVARVE_STORAGE_IO_DEVICE_FILE_H_
#define KVARVE_STORAGE_IO_DEVICE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

struct DeviceFile {
  UniqueFd fd;
  std::string path;
  uint64_t bytes = 0;  // cut to a multiple of kIoUnit
  bool block_device = false;
  bool direct = false;
  std::string fallback_reason;  // why not direct, though wanted
};

struct DeviceFileOptions {
  bool direct = true;
  bool create = false;                      // a regular file, mode 0600, if there is none
  int64_t lock_wait_nanos = 2'000'000'000;  // for a predecessor that is ending
};

// NotFound; FailedPrecondition: a link, neither file nor block device, or in use by another
// process; PermissionDenied; Internal. Each names the path and says what to do.
absl::StatusOr<DeviceFile> OpenDeviceFile(const std::string& path,
                                          const DeviceFileOptions& options);

// Gives a regular file exactly `bytes`, with blocks of the filesystem behind all of them.
// ResourceExhausted: no space; the file is as long as before, or shorter if that was asked for.
absl::Status AllocateFile(DeviceFile* file, uint64_t bytes);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_DEVICE_FILE_H_
