#include "gpu/device/cpu_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/strings/str_format.h"
#include "gpu/device/cpu_kernels.h"
#include "gpu/device/row_copy.h"

namespace kvarve {
namespace {

constexpr size_t kAlignment = 64;

class DoneEvent final : public DeviceEvent {
 public:
  absl::StatusOr<bool> Done() override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
};

const std::shared_ptr<DeviceEvent>& Done() {
  static const auto& done = *new std::shared_ptr<DeviceEvent>(new DoneEvent);
  return done;
}

class CpuStream final : public DeviceStream {
 public:
  absl::Status Copy(std::span<const CopyJob> jobs, CopyOrder) override {
    for (const CopyJob& job : jobs) {
      const auto bytes = static_cast<int64_t>(job.bytes);
      StreamRows({reinterpret_cast<std::byte*>(job.to), bytes,
                  reinterpret_cast<const std::byte*>(job.from), bytes, job.bytes, 1});
    }
    StreamFence();
    return absl::OkStatus();
  }
  absl::Status Run(const Launch& launch) override { return RunOnCpu(launch); }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record() override { return Done(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::Status WaitFor(DeviceEvent& event) override { return event.Wait(); }
  absl::Status WriteValue(uint64_t at, uint64_t value) override {
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
    return absl::OkStatus();
  }
  absl::Status WaitValue(uint64_t at, uint64_t value) override {
    while (__atomic_load_n(reinterpret_cast<uint64_t*>(at), __ATOMIC_ACQUIRE) < value)
      std::this_thread::yield();
    return absl::OkStatus();
  }
  absl::Status EngineAfter(EngineStream, DeviceEvent&) override { return absl::OkStatus(); }
};

absl::StatusOr<DeviceMemory> MapShared(int fd, uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("mmap of %d bytes: %s", bytes, std::strerror(errno)));
  }
  return DeviceMemory(reinterpret_cast<uint64_t>(at), bytes, [at, bytes] { ::munmap(at, bytes); });
}

class CpuDevice final : public ComputeDevice {
 public:
  CpuDevice() {
    info_.is_cpu = info_.read_only_registration = true;
    info_.name = "cpu";
  }
  const ComputeDeviceInfo& info() const override { return info_; }

  absl::StatusOr<DeviceMemory> Allocate(uint64_t bytes) override {
    void* const at = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) & ~(kAlignment - 1));
    if (at == nullptr) return absl::ResourceExhaustedError(absl::StrFormat("%d bytes", bytes));
    return DeviceMemory(reinterpret_cast<uint64_t>(at), bytes, [at] { std::free(at); });
  }

  absl::StatusOr<Shareable> AllocateShareable(uint64_t bytes) override {
    UniqueFd fd(::memfd_create("kvarve-device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("shared memory of %d bytes: %s", bytes, std::strerror(errno)));
    }
    absl::StatusOr<DeviceMemory> memory = MapShared(fd.get(), bytes);
    if (!memory.ok()) return memory.status();
    return Shareable{*std::move(memory), std::move(fd)};
  }

  absl::StatusOr<DeviceMemory> Import(int fd, uint64_t bytes) override {
    struct stat status;
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (::fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_size) < bytes || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0) {
      return absl::InvalidArgumentError("not sealed memory of that size");
    }
    return MapShared(fd, bytes);
  }

  absl::StatusOr<uint64_t> Register(std::span<std::byte> memory, HostAccess) override {
    return reinterpret_cast<uint64_t>(memory.data());
  }
  absl::Status Unregister(std::byte*) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() override {
    return std::make_unique<CpuStream>();
  }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> RecordEngine(EngineStream) override {
    return Done();
  }

 private:
  ComputeDeviceInfo info_;
};

}  // namespace

std::shared_ptr<ComputeDevice> NewCpuDevice() { return std::make_shared<CpuDevice>(); }

}  // namespace kvarve
