#include "gpu/device/cuda_device.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpu/device/cuda_core.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace cuda {

Core::Core(const Driver& driver, DeviceOrdinal ordinal, ComputeDeviceInfo info)
    : driver_(driver), ordinal_(ordinal), info_(std::move(info)) {}

Core::~Core() {
  if (context_ == nullptr) return;
  if (library_ != nullptr) {
    const InContext in(*this);
    driver_.LibraryUnload(library_);
  }
  driver_.DevicePrimaryCtxRelease(ordinal_);
}

absl::Status Core::Open(std::span<const std::byte> module) {
  KV_RETURN_IF_ERROR(KV_CUDA(driver_, DevicePrimaryCtxRetain, &context_, ordinal_));
  const InContext in(*this);
  KV_RETURN_IF_ERROR(in.status());
  return Load(module);
}

absl::Status Core::Load(std::span<const std::byte> module) {
  const Result loaded =
      driver_.LibraryLoadData(&library_, module.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (loaded == kStreamCaptureUnsupported) return ToStatus(driver_, loaded, "cuLibraryLoadData");
  if (loaded != kSuccess) {
    library_ = nullptr;
    return absl::FailedPreconditionError(absl::StrFormat(
        "the kernels do not load on %s (compute %d.%d, driver of CUDA %s): %s; kvarve wants %s",
        info_.name, info_.compute_major, info_.compute_minor, VersionText(info_.driver_version),
        std::string(ToStatus(driver_, loaded, "cuLibraryLoadData").message()), kWantedDriver));
  }
  for (uint32_t row = 0; row < kKernelCount; ++row) {
    KV_RETURN_IF_ERROR(
        KV_CUDA(driver_, LibraryGetKernel, &kernels_[row], library_, kKernels[row].name));
  }
  return absl::OkStatus();
}

InContext::InContext(const Core& core) : core_(core) {
  status_ = KV_CUDA(core.driver(), CtxPushCurrent, core.context());
  if (status_.ok()) core.driver().ThreadExchangeStreamCaptureMode(&capture_mode_);
}

InContext::~InContext() {
  if (!status_.ok()) return;
  core_.driver().ThreadExchangeStreamCaptureMode(&capture_mode_);
  Context popped;
  core_.driver().CtxPopCurrent(&popped);
}

namespace {

AllocationProperties Properties(const Core& core) {
  AllocationProperties properties{};
  properties.type = 1;  // pinned
  properties.handle_types = kHandlePosixFd;
  properties.location = {kLocationDevice, core.ordinal()};
  return properties;
}

class CudaDevice final : public ComputeDevice {
 public:
  explicit CudaDevice(std::shared_ptr<const Core> core) : core_(std::move(core)) {}
  const ComputeDeviceInfo& info() const override { return core_->info(); }

  absl::StatusOr<DeviceMemory> Allocate(uint64_t bytes) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    Address at = 0;
    KV_RETURN_IF_ERROR(KV_CUDA(core_->driver(), MemAlloc, &at, bytes));
    return DeviceMemory(at, bytes, [core = core_, at] {
      const InContext back(*core);
      core->driver().MemFree(at);
    });
  }

  absl::StatusOr<Shareable> AllocateShareable(uint64_t bytes) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    const Driver& driver = core_->driver();
    const AllocationProperties properties = Properties(*core_);
    size_t granularity = 0;
    KV_RETURN_IF_ERROR(KV_CUDA(driver, MemGetAllocationGranularity, &granularity, &properties, 0));
    bytes = (bytes + granularity - 1) / granularity * granularity;
    AllocationHandle handle = 0;
    KV_RETURN_IF_ERROR(KV_CUDA(driver, MemCreate, &handle, bytes, &properties, 0));
    KV_ASSIGN_OR_RETURN(DeviceMemory memory, Map(handle, bytes));
    int fd = -1;
    KV_RETURN_IF_ERROR(KV_CUDA(driver, MemExportToShareableHandle, &fd, handle, kHandlePosixFd, 0));
    return Shareable{std::move(memory), UniqueFd(fd)};
  }

  absl::StatusOr<DeviceMemory> Import(int fd, uint64_t bytes) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    AllocationHandle handle = 0;
    // The driver takes a descriptor where it takes a pointer.
    void* const as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
    KV_RETURN_IF_ERROR(KV_CUDA(core_->driver(), MemImportFromShareableHandle, &handle, as_pointer,
                               kHandlePosixFd));
    return Map(handle, bytes);
  }

  absl::StatusOr<uint64_t> Register(std::span<std::byte> memory, HostAccess access) override {
    if (access == HostAccess::kReadOnly && !info().read_only_registration) {
      return absl::UnimplementedError(
          absl::StrFormat("%s registers no read-only memory", info().name));
    }
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    const unsigned flags =
        kPortable | kDeviceMap | (access == HostAccess::kReadOnly ? kReadOnly : 0u);
    KV_RETURN_IF_ERROR(
        KV_CUDA(core_->driver(), MemHostRegister, memory.data(), memory.size(), flags));
    Address at = 0;
    const absl::Status mapped =
        KV_CUDA(core_->driver(), MemHostGetDevicePointer, &at, memory.data(), 0);
    if (mapped.ok()) return at;
    core_->driver().MemHostUnregister(memory.data());
    return mapped;
  }

  absl::Status Unregister(std::byte* memory) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    return KV_CUDA(core_->driver(), MemHostUnregister, memory);
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    return NewCudaStream(core_);
  }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> RecordEngine(EngineStream engine) override {
    return RecordEngineEvent(core_, engine);
  }

 private:
  // Takes the handle; REQUIRES: in the context.
  absl::StatusOr<DeviceMemory> Map(AllocationHandle handle, uint64_t bytes) {
    const Driver& driver = core_->driver();
    Address at = 0;
    absl::Status status = KV_CUDA(driver, MemAddressReserve, &at, bytes, 0, 0, 0);
    if (status.ok()) status = KV_CUDA(driver, MemMap, at, bytes, 0, handle, 0);
    const bool mapped = status.ok();
    const AccessDescription access{{kLocationDevice, core_->ordinal()}, 3};
    if (mapped) status = KV_CUDA(driver, MemSetAccess, at, bytes, &access, 1);
    if (status.ok()) {
      return DeviceMemory(at, bytes, [core = core_, at, bytes, handle] {
        const InContext back(*core);
        core->driver().MemUnmap(at, bytes);
        core->driver().MemAddressFree(at, bytes);
        core->driver().MemRelease(handle);
      });
    }
    if (mapped) driver.MemUnmap(at, bytes);
    if (at != 0) driver.MemAddressFree(at, bytes);
    driver.MemRelease(handle);
    return status;
  }

  const std::shared_ptr<const Core> core_;
};

absl::StatusOr<ComputeDeviceInfo> InfoOf(const Driver& driver, DeviceOrdinal ordinal) {
  ComputeDeviceInfo info;
  char name[128] = {};
  KV_RETURN_IF_ERROR(KV_CUDA(driver, DeviceGetName, name, sizeof name - 1, ordinal));
  info.name = name;
  Uuid uuid{};
  KV_RETURN_IF_ERROR(KV_CUDA(driver, DeviceGetUuid, &uuid, ordinal));
  info.uuid = UuidText(uuid);
  int read_only = 0;
  KV_RETURN_IF_ERROR(
      KV_CUDA(driver, DeviceGetAttribute, &info.compute_major, kComputeMajor, ordinal));
  KV_RETURN_IF_ERROR(
      KV_CUDA(driver, DeviceGetAttribute, &info.compute_minor, kComputeMinor, ordinal));
  KV_RETURN_IF_ERROR(
      KV_CUDA(driver, DeviceGetAttribute, &read_only, kReadOnlyHostRegister, ordinal));
  info.read_only_registration = read_only != 0;
  KV_RETURN_IF_ERROR(KV_CUDA(driver, DriverGetVersion, &info.driver_version));
  return info;
}

// The digits alone: engines and tools differ in prefix, case and dashes.
std::string Digits(std::string_view uuid) {
  if (uuid.starts_with("GPU-") || uuid.starts_with("MIG-")) uuid.remove_prefix(4);
  std::string digits;
  for (const char c : uuid) {
    if (c != '-') digits.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return digits;
}

}  // namespace
}  // namespace cuda

std::string UuidText(const cuda::Uuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
    text += absl::StrFormat("%02x", uuid.bytes[i]);
  }
  return text;
}

absl::StatusOr<std::vector<ComputeDeviceInfo>> ListCudaDevices(const cuda::Driver& driver) {
  int count = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(driver, DeviceGetCount, &count));
  std::vector<ComputeDeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cuda::DeviceOrdinal ordinal = 0;
    KV_RETURN_IF_ERROR(KV_CUDA(driver, DeviceGet, &ordinal, i));
    KV_ASSIGN_OR_RETURN(ComputeDeviceInfo info, cuda::InfoOf(driver, ordinal));
    devices.push_back(std::move(info));
  }
  return devices;
}

absl::StatusOr<std::shared_ptr<ComputeDevice>> OpenCudaDevice(const cuda::Driver& driver,
                                                              std::string_view uuid,
                                                              std::span<const std::byte> module) {
  KV_RETURN_IF_ERROR(cuda::StartDriver(driver));
  KV_ASSIGN_OR_RETURN(const std::vector<ComputeDeviceInfo> devices, ListCudaDevices(driver));
  std::vector<std::string> there;
  there.reserve(devices.size());
  for (const ComputeDeviceInfo& info : devices) there.push_back(info.uuid + " (" + info.name + ")");
  const auto found =
      std::find_if(devices.begin(), devices.end(), [&](const ComputeDeviceInfo& info) {
        return uuid.empty() ? devices.size() == 1 : cuda::Digits(info.uuid) == cuda::Digits(uuid);
      });
  if (found == devices.end()) {
    return absl::NotFoundError(
        absl::StrFormat("no CUDA device %s; there are: %s",
                        uuid.empty() ? "is named, and there is not just one" : std::string(uuid),
                        there.empty() ? "none" : absl::StrJoin(there, ", ")));
  }
  cuda::DeviceOrdinal ordinal = 0;
  KV_RETURN_IF_ERROR(
      KV_CUDA(driver, DeviceGet, &ordinal, static_cast<int>(found - devices.begin())));
  auto core = std::make_shared<cuda::Core>(driver, ordinal, *found);
  KV_RETURN_IF_ERROR(core->Open(module));
  return std::make_shared<cuda::CudaDevice>(std::move(core));
}

}  // namespace kvarve
