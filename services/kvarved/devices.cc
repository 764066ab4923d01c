#include "services/kvarved/devices.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/segment/device_format.h"

namespace kvarve {
namespace {

// Not written over, which takes minutes to hours while nobody is served: the first pass over it may
// be slower instead. Under another name until it is whole: a start that is killed meanwhile leaves
// nothing that the next one would take for something of somebody else's.
absl::Status Make(const NvmeOptions& nvme, const std::string& path) {
  const std::string unfinished = path + ".unfinished";
  FormatOptions format;
  format.bytes = nvme.device_bytes;
  format.segment_bytes = SegmentBytesFor(format.bytes);
  KvLog(LogLevel::kInfo, "makes a device",
        {{"device", path}, {"bytes", FormatBytes(format.bytes)}});
  format.overwrite = false;
  KV_RETURN_IF_ERROR(FormatDevice(unfinished, format).status());
  if (::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s cannot be renamed to %s: %s", unfinished, path,
                                             std::generic_category().message(errno)));
}

// A file keeps the size it was made with: that the setting is another one now changes nothing, and
// who changed it would like to know.
void WarnOfOtherSize(const NvmeOptions& nvme, const DeviceInfo& info) {
  struct stat st;
  const auto is_about = [&](uint64_t bytes) { return info.bytes / kMiB == bytes / kMiB; };
  if (nvme.device_bytes == 0 || is_about(nvme.device_bytes)) return;
  if (::stat(info.path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return;
  KvLog(LogLevel::kWarning, "a device keeps the size it was made with",
        {{"device", info.path},
         {"bytes", FormatBytes(info.bytes)},
         {"nvme.device_bytes", FormatBytes(nvme.device_bytes)},
         {"to_change", "stop kvarved and remove the file: it is made anew, empty"}});
}

}  // namespace

std::unique_ptr<Catalogue> OpenCatalogueOf(const NvmeOptions& nvme) {
  if (nvme.paths.empty() && nvme.catalogue_dir.empty()) return nullptr;
  if (nvme.catalogue_dir.empty()) return NewMemoryCatalogue();
  // Its folder is tenant.state_dir, which the first start has yet to make.
  ::mkdir(std::filesystem::path(nvme.catalogue_dir).parent_path().c_str(), 0700);
  return OpenCatalogue(nvme.catalogue_dir).catalogue;  // logs what it could not keep
}

absl::Status AddDeviceOf(const NvmeOptions& nvme, const std::string& path, Cache* cache) {
  // The open below would wait for the daemon's own lock, and take it for another process's.
  const CacheStats stats = cache->Stats();
  if (stats.devices.has_value() &&
      std::ranges::find(stats.devices->devices, path, &DeviceStats::path) !=
          stats.devices->devices.end()) {
    return absl::AlreadyExistsError(path + " serves this daemon already");
  }
  const bool is_new = ::access(path.c_str(), F_OK) != 0 && nvme.device_bytes > 0;
  if (is_new) KV_RETURN_IF_ERROR(Make(nvme, path));
  DeviceOptions options;
  options.backend = nvme.backend;
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(path, options));
  const DeviceInfo info = device->info();
  if (!is_new) WarnOfOtherSize(nvme, info);
  KV_RETURN_IF_ERROR(cache->AddDevice(std::move(device)));
  KvLog(LogLevel::kInfo, "a device serves",
        {{"device", path},
         {"bytes", FormatBytes(info.bytes)},
         {"backend", std::string(IoBackendName(info.backend))},
         {"direct", info.direct ? "yes" : "no"}});
  return absl::OkStatus();
}

absl::Status AddDevicesOf(const NvmeOptions& nvme, Cache* cache) {
  for (const std::string& path : nvme.paths) {
    const absl::Status added = AddDeviceOf(nvme, path, cache);
    if (added.ok()) continue;
    if (added.code() != absl::StatusCode::kInternal &&
        added.code() != absl::StatusCode::kDataLoss) {
      return added;
    }
    KvLog(LogLevel::kError, "a device is left out",
          {{"device", path}, {"reason", added.ToString()}});
  }
  return absl::OkStatus();
}

}  // namespace kvarve
