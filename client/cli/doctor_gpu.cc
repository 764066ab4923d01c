// doctor's look at CUDA devices: what an engine with `device: cuda` would meet.
#include "absl/strings/str_format.h"
#include "client/cli/doctor.h"
#include "gpu/device/driver.h"
#include "gpu/transfer/host_registry.h"

namespace kvarve::cli {

void CheckGpus(const absl::StatusOr<std::vector<ComputeDeviceInfo>>& devices, Findings* findings) {
  if (!devices.ok()) {
    const std::string text(devices.status().message());
    if (absl::IsNotFound(devices.status())) {  // most hosts: nothing is wrong with that
      findings->push_back({"host", "GPUs", Level::kOk, text, ""});
    } else {
      findings->push_back({"host", "GPUs", Level::kWarning, text,
                           "install that driver before engines are given device: cuda"});
    }
    return;
  }
  if (devices->empty()) findings->push_back({"host", "GPUs", Level::kOk, "none is visible", ""});
  for (const ComputeDeviceInfo& device : *devices) {
    const HostPath path = ChooseHostPath(device, false);
    findings->push_back({"host", "GPU " + device.uuid, Level::kOk,
                         absl::StrFormat("%s, compute %d.%d, driver of CUDA %s: blocks come %s",
                                         device.name, device.compute_major, device.compute_minor,
                                         cuda::VersionText(device.driver_version),
                                         path == HostPath::kArena ? "in place" : "through staging"),
                         ""});
  }
}

}  // namespace kvarve::cli
