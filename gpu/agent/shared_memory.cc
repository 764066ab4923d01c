#include "gpu/agent/shared_memory.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "gpu/device/cuda_core.h"
#include "gpu/device/cuda_device.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

using cuda::Address;
using cuda::AllocationHandle;
using cuda::Driver;

// In the device's primary context, and relaxed towards captures, while it lives.
class InPrimary {
 public:
  InPrimary(const Driver& driver, cuda::DeviceOrdinal ordinal)
      : driver_(driver), ordinal_(ordinal) {
    cuda::Context context = nullptr;
    status_ = KV_CUDA(driver, DevicePrimaryCtxRetain, &context, ordinal);
    if (!status_.ok()) return;
    retained_ = true;
    status_ = KV_CUDA(driver, CtxPushCurrent, context);
    if (status_.ok()) driver.ThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  ~InPrimary() {
    cuda::Context popped = nullptr;
    if (status_.ok()) {
      driver_.ThreadExchangeStreamCaptureMode(&capture_mode_);
      driver_.CtxPopCurrent(&popped);
    }
    if (retained_) driver_.DevicePrimaryCtxRelease(ordinal_);
  }
  InPrimary(const InPrimary&) = delete;
  InPrimary& operator=(const InPrimary&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  const Driver& driver_;
  const cuda::DeviceOrdinal ordinal_;
  int capture_mode_ = cuda::kCaptureRelaxed;
  bool retained_ = false;
  absl::Status status_;
};

absl::StatusOr<cuda::DeviceOrdinal> OrdinalOf(const Driver& driver, std::string_view uuid) {
  KV_ASSIGN_OR_RETURN(const std::vector<ComputeDeviceInfo> devices, ListCudaDevices(driver));
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].uuid != uuid) continue;
    cuda::DeviceOrdinal ordinal = 0;
    KV_RETURN_IF_ERROR(KV_CUDA(driver, DeviceGet, &ordinal, static_cast<int>(i)));
    return ordinal;
  }
  return absl::NotFoundError(absl::StrFormat("no device %s", uuid));
}

// The allocation, or the chunk, that an address lies in.
absl::Status RangeOf(const Driver& driver, uint64_t at, Address* begin, size_t* bytes) {
  if (driver.MemGetAddressRange(begin, bytes, at) == cuda::kSuccess && *bytes > 0)
    return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat("no memory of the device's at %#x", at));
}

void Unmap(const Driver& driver, uint64_t address, const std::vector<uint64_t>& sizes,
           uint64_t reserved) {
  uint64_t at = address;
  for (const uint64_t bytes : sizes) driver.MemUnmap(std::exchange(at, at + bytes), bytes);
  driver.MemAddressFree(address, reserved);
}

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  return kind == MemoryKind::kVmm ? "vmm" : "legacy";
}

absl::StatusOr<MemoryExporter> MemoryExporter::Create(const Driver& driver, std::string_view uuid,
                                                      uint64_t at, uint64_t bytes) {
  MemoryExporter exporter(driver);
  KV_ASSIGN_OR_RETURN(exporter.ordinal_, OrdinalOf(driver, uuid));
  const InPrimary in(driver, exporter.ordinal_);
  KV_RETURN_IF_ERROR(in.status());
  KV_RETURN_IF_ERROR(exporter.Measure(at, bytes));
  return exporter;
}

absl::Status MemoryExporter::Measure(uint64_t at, uint64_t bytes) {
  AllocationHandle handle = 0;
  const bool is_vmm =
      driver_->MemRetainAllocationHandle(&handle, reinterpret_cast<void*>(at)) == cuda::kSuccess;
  if (is_vmm) driver_->MemRelease(handle);
  range_.kind = is_vmm ? MemoryKind::kVmm : MemoryKind::kLegacy;
  Address begin = 0;
  size_t size = 0;
  KV_RETURN_IF_ERROR(RangeOf(*driver_, at, &begin, &size));
  range_.begin = next_ = begin;
  range_.end = begin + size;
  range_.pieces = 1;
  while (range_.end - at < bytes) {
    if (!is_vmm) {
      return absl::FailedPreconditionError(
          absl::StrFormat("a tensor reaches beyond its allocation of %d bytes", size));
    }
    if (++range_.pieces > kMaxMemoryPieces)
      return absl::ResourceExhaustedError(absl::StrFormat("over %d chunks", kMaxMemoryPieces));
    KV_RETURN_IF_ERROR(RangeOf(*driver_, range_.end, &begin, &size));
    range_.end = begin + size;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<MemoryPiece>> MemoryExporter::Next() {
  if (next_ == range_.end) return std::nullopt;
  const InPrimary in(*driver_, ordinal_);
  KV_RETURN_IF_ERROR(in.status());
  Address begin = 0;
  size_t bytes = 0;
  KV_RETURN_IF_ERROR(RangeOf(*driver_, next_, &begin, &bytes));
  MemoryPiece piece;
  piece.bytes = bytes;
  if (range_.kind == MemoryKind::kLegacy) {
    const absl::Status exported = KV_CUDA(*driver_, IpcGetMemHandle, &piece.handle, begin);
    if (!exported.ok()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("memory that cannot be shared: %s", exported.message()));
    }
  } else {
    AllocationHandle handle = 0;
    KV_RETURN_IF_ERROR(
        KV_CUDA(*driver_, MemRetainAllocationHandle, &handle, reinterpret_cast<void*>(begin)));
    int fd = -1;
    const absl::Status exported =
        KV_CUDA(*driver_, MemExportToShareableHandle, &fd, handle, cuda::kHandlePosixFd, 0);
    driver_->MemRelease(handle);
    if (!exported.ok()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "memory that cannot be shared: its chunks were made without descriptors (%s)",
          exported.message()));
    }
    piece.fd.reset(fd);
  }
  next_ = begin + bytes;
  return piece;
}

absl::StatusOr<MemoryImporter> MemoryImporter::Create(const Driver& driver, std::string_view uuid,
                                                      const MemoryRange& range) {
  if (range.end <= range.begin || range.pieces == 0 || range.pieces > kMaxMemoryPieces ||
      (range.kind != MemoryKind::kVmm && (range.kind != MemoryKind::kLegacy || range.pieces != 1)))
    return absl::InvalidArgumentError("no range of memory");
  KV_ASSIGN_OR_RETURN(const cuda::DeviceOrdinal ordinal, OrdinalOf(driver, uuid));
  const InPrimary in(driver, ordinal);
  KV_RETURN_IF_ERROR(in.status());
  MemoryImporter importer(driver, ordinal, range);
  if (range.kind == MemoryKind::kVmm) {
    Address at = 0;
    KV_RETURN_IF_ERROR(KV_CUDA(driver, MemAddressReserve, &at, range.end - range.begin, 0, 0, 0));
    importer.address_ = at;
  }
  return importer;
}

MemoryImporter::MemoryImporter(MemoryImporter&& other) noexcept
    : driver_(other.driver_),
      ordinal_(other.ordinal_),
      range_(other.range_),
      address_(std::exchange(other.address_, 0)),
      mapped_(other.mapped_),
      sizes_(std::move(other.sizes_)) {}

MemoryImporter::~MemoryImporter() {
  if (address_ == 0) return;
  const InPrimary in(*driver_, ordinal_);
  if (range_.kind == MemoryKind::kLegacy) {
    driver_->IpcCloseMemHandle(address_);
  } else {
    Unmap(*driver_, address_, sizes_, range_.end - range_.begin);
  }
}

absl::Status MemoryImporter::Add(const MemoryPiece& piece) {
  if (piece.bytes == 0 || piece.bytes > range_.end - range_.begin - mapped_)
    return absl::InvalidArgumentError("a piece that the range has no room for");
  const InPrimary in(*driver_, ordinal_);
  KV_RETURN_IF_ERROR(in.status());
  if (range_.kind == MemoryKind::kLegacy) {
    Address at = 0;
    constexpr unsigned kLazyPeerAccess = 1;
    KV_RETURN_IF_ERROR(KV_CUDA(*driver_, IpcOpenMemHandle, &at, piece.handle, kLazyPeerAccess));
    address_ = at;
    mapped_ += piece.bytes;
    return absl::OkStatus();
  }
  AllocationHandle handle = 0;
  // The driver takes a descriptor where it takes a pointer.
  void* const as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(piece.fd.get()));
  KV_RETURN_IF_ERROR(
      KV_CUDA(*driver_, MemImportFromShareableHandle, &handle, as_pointer, cuda::kHandlePosixFd));
  const uint64_t at = address_ + mapped_;
  absl::Status status = KV_CUDA(*driver_, MemMap, at, piece.bytes, 0, handle, 0);
  driver_->MemRelease(handle);  // the mapping keeps it
  KV_RETURN_IF_ERROR(status);
  sizes_.push_back(piece.bytes);
  mapped_ += piece.bytes;
  const cuda::AccessDescription access{{cuda::kLocationDevice, ordinal_}, 3};
  return KV_CUDA(*driver_, MemSetAccess, at, piece.bytes, &access, 1);
}

absl::StatusOr<DeviceMemory> MemoryImporter::Finish() {
  KV_CHECK(complete());
  const uint64_t at = std::exchange(address_, 0), bytes = range_.end - range_.begin;
  return DeviceMemory(at, bytes,
                      [driver = driver_, ordinal = ordinal_, kind = range_.kind, at, bytes,
                       sizes = std::move(sizes_)] {
                        const InPrimary in(*driver, ordinal);
                        if (kind == MemoryKind::kLegacy) {
                          driver->IpcCloseMemHandle(at);
                        } else {
                          Unmap(*driver, at, sizes, bytes);
                        }
                      });
}

}  // namespace kvarve
