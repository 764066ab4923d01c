#include "storage/io/open_device.h"

#include <utility>

#include "storage/base/abseil.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/io/posix_device.h"
#include "storage/io/uring_device.h"

namespace kvarve {

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& path,
                                                   const DeviceOptions& options) {
  KV_ASSIGN_OR_RETURN(DeviceFile file, OpenDeviceFile(path, {.direct = options.direct}));
  return NewDevice(std::move(file), options);
}

std::unique_ptr<Device> NewDevice(DeviceFile file, const DeviceOptions& options) {
  if (!file.fallback_reason.empty()) {
    KvLog(LogLevel::kWarning, "device is read and written through the page cache",
          {{"device", file.path}, {"reason", file.fallback_reason}});
  }
  if (options.backend != WantedBackend::kPosix) {
    auto device = NewUringDevice(&file, options.queue);
    if (device.ok()) return *std::move(device);
    const std::string reason(ToStd(device.status().message()));
    KvLog(LogLevel::kWarning, "device falls back to a pool of threads",
          {{"device", file.path}, {"reason", reason}});
    if (!file.fallback_reason.empty()) file.fallback_reason += "; ";
    file.fallback_reason += reason;
  }
  return NewPosixDevice(std::move(file), options.queue, options.posix_threads);
}

}  // namespace kvarve
