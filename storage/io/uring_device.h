// The device over io_uring: one thread owns the ring and is the only one that submits and reaps. No
// thread of the kernel polls (SQPOLL costs a core and gains nothing at depth).
// THREADS: any.  BLOCKS: as Device.
#ifndef KVARVE_STORAGE_IO_URING_DEVICE_H_
#define KVARVE_STORAGE_IO_URING_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "storage/io/queued_device.h"

namespace kvarve {

// Whether this process may make a ring: OK, or Unavailable with the kernel's reason (a container's
// seccomp profile answers EPERM or ENOSYS).
absl::Status UringWorks();

// Unavailable: as UringWorks; `file` is untouched then.
absl::StatusOr<std::unique_ptr<Device>> NewUringDevice(DeviceFile* file,
                                                       const IoQueueOptions& options);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_URING_DEVICE_H_
