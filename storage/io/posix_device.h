// The device where io_uring is forbidden: a pool of threads that call preadv, pwritev and
// fdatasync.
// THREADS: any.  BLOCKS: as Device.
#ifndef KVARVE_STORAGE_IO_POSIX_DEVICE_H_
#define KVARVE_STORAGE_IO_POSIX_DEVICE_H_

#include <memory>

#include "storage/io/queued_device.h"

namespace kvarve {

// Never fails: `threads` is made at least 1.
std::unique_ptr<Device> NewPosixDevice(DeviceFile file, const IoQueueOptions& options, int threads);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_POSIX_DEVICE_H_
