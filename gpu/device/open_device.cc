#include "gpu/device/open_device.h"

#include "absl/strings/str_cat.h"
#include "gpu/device/cpu_device.h"
#include "gpu/device/cuda_device.h"
#include "gpu/kernels/kernel_module.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"

namespace kvarve {

absl::StatusOr<std::shared_ptr<ComputeDevice>> OpenDevice(std::string_view name) {
  if (name == "cpu") return NewCpuDevice();
  if (name != "cuda" && !name.starts_with("cuda:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("a device is cpu, cuda or cuda:UUID, not ", ToAbsl(name)));
  }
  const absl::StatusOr<const cuda::Driver*> driver = cuda::LoadDriver();
  if (absl::IsNotFound(driver.status()))
    return absl::NotFoundError(absl::StrCat(driver.status().message(), ", or the device cpu"));
  KV_RETURN_IF_ERROR(driver.status());
  KV_ASSIGN_OR_RETURN(const std::span<const std::byte> module, KernelModule());
  return OpenCudaDevice(**driver, name == "cuda" ? std::string_view() : name.substr(5), module);
}

}  // namespace kvarve
