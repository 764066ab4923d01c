#include "gpu/device/driver.h"

#include <dlfcn.h>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve::cuda {
namespace {

// cuGetProcAddress gives the ABI of the version that is asked for; a plain dlsym gives an old one.
using GetProcAddress = Result (*)(const char* symbol, void** function, int version,
                                  unsigned long long flags, int* found);

absl::StatusOr<const Driver*> Load() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return absl::NotFoundError(absl::StrFormat("no CUDA driver on this host (%s); kvarve wants %s",
                                               why == nullptr ? "libcuda.so.1" : why,
                                               kWantedDriver));
  }
  const auto get = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the CUDA driver is older than 12.0; kvarve wants %s", kWantedDriver));
  }
  static Driver driver;
  std::string missing;
  auto fill = [&](auto* field, const char* symbol, int version) {
    void* function = nullptr;
    if (get(symbol, &function, version, 0, nullptr) != kSuccess || function == nullptr) {
      if (missing.empty()) missing = symbol;
      return;
    }
    *field = reinterpret_cast<std::remove_pointer_t<decltype(field)>>(function);
  };
#define KV_DRIVER_FILL(name, symbol, version, parameters) fill(&driver.name, symbol, version);
  KV_DRIVER_ENTRIES(KV_DRIVER_FILL)
#undef KV_DRIVER_FILL
  // The version says more than a name that is not there.
  if (driver.DriverGetVersion != nullptr && driver.Init != nullptr &&
      driver.GetErrorName != nullptr) {
    KV_RETURN_IF_ERROR(StartDriver(driver));
  }
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the CUDA driver has no %s; kvarve wants %s", missing, kWantedDriver));
  }
  return &driver;
}

}  // namespace

std::string VersionText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

absl::Status StartDriver(const Driver& driver) {
  int version = 0;
  KV_RETURN_IF_ERROR(ToStatus(driver, driver.DriverGetVersion(&version), "cuDriverGetVersion"));
  if (version < kWantedVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the driver speaks CUDA %s; kvarve wants %s", VersionText(version), kWantedDriver));
  }
  return ToStatus(driver, driver.Init(0), "cuInit");
}

absl::StatusOr<const Driver*> LoadDriver() {
  static const auto& loaded = *new absl::StatusOr<const Driver*>(Load());
  return loaded;
}

absl::Status ToStatus(const Driver& driver, Result result, const char* call) {
  if (result == kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  driver.GetErrorName(result, &name);
  const std::string text =
      absl::StrFormat("%s: %s (%d)", call, name == nullptr ? "an unknown error" : name, result);
  if (result >= kStreamCaptureUnsupported && result <= kStreamCaptureWrongThread)
    return absl::UnavailableError(text);
  if (result == kOutOfMemory) return absl::ResourceExhaustedError(text);
  if (result == kNotSupported) return absl::UnimplementedError(text);
  return absl::InternalError(text);
}

}  // namespace kvarve::cuda
