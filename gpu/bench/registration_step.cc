// Which host memory a device takes, as an engine's process has it: the daemon's memfd, mapped here
// for reading or writing, and what the device sees of what the daemon writes later.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "gpu/bench/gpu_steps.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {
namespace {

enum class Pages { kSmall, kTransparent, kHuge };
struct PagesName {
  Pages pages;
  const char* name;
};
constexpr PagesName kPages[] = {{Pages::kSmall, "4 KiB"},
                                {Pages::kTransparent, "transparent huge pages"},
                                {Pages::kHuge, "2 MiB"}};

struct Way {
  const char* name;
  int protection;
  unsigned flags;
  bool protect_after;
};
constexpr unsigned kMapped = cuda::kPortable | cuda::kDeviceMap;
constexpr Way kWays[] = {
    {"read-only, flag", PROT_READ, kMapped | cuda::kReadOnly, false},
    {"read-only", PROT_READ, kMapped, false},
    {"read-write", PROT_READ | PROT_WRITE, kMapped, false},
    {"read-write, then mprotect", PROT_READ | PROT_WRITE, kMapped, true},
};

// A shared mapping; null where there is none.
class Mapping {
 public:
  Mapping(int fd, size_t bytes, int protection) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) at_ = static_cast<std::byte*>(at);
  }
  ~Mapping() {
    if (at_ != nullptr) ::munmap(at_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* at() const { return at_; }

 private:
  const size_t bytes_;
  std::byte* at_ = nullptr;
};

// The device's context is this thread's while it lives.
class Current {
 public:
  explicit Current(const cuda::Driver& driver) : driver_(driver) {
    retained_ = driver.DevicePrimaryCtxRetain(&context_, 0) == cuda::kSuccess;
    pushed_ = retained_ && driver.CtxPushCurrent(context_) == cuda::kSuccess;
  }
  ~Current() {
    cuda::Context popped = nullptr;
    if (pushed_) driver_.CtxPopCurrent(&popped);
    if (retained_) driver_.DevicePrimaryCtxRelease(0);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const cuda::Driver& driver_;
  cuda::Context context_ = nullptr;
  bool retained_ = false, pushed_ = false;
};

struct Rig {
  const cuda::Driver& driver;
  DeviceStream& stream;
  HostBuffer& back;  // what the device read comes here
  const DeviceMemory& memory;
};

// What the device finds at `address`.
absl::StatusOr<std::byte> Seen(const Rig& rig, uint64_t address) {
  const CopyJob there{address, rig.memory.address(), kKiB};
  const CopyJob back{rig.memory.address(), rig.back.address(), kKiB};
  KV_RETURN_IF_ERROR(rig.stream.Copy({&there, 1}, CopyOrder::kStream));
  KV_RETURN_IF_ERROR(rig.stream.Copy({&back, 1}, CopyOrder::kStream));
  KV_RETURN_IF_ERROR(Finish(rig.stream));
  return rig.back.bytes()[0];
}

absl::Status TryWay(const Rig& rig, const Way& way, int fd, size_t bytes, Json* row) {
  const Mapping daemon(fd, bytes, PROT_READ | PROT_WRITE), engine(fd, bytes, way.protection);
  if (daemon.at() == nullptr || engine.at() == nullptr)
    return absl::UnavailableError(std::string("mmap: ") + std::strerror(errno));
  std::memset(daemon.at(), 1, bytes);
  const auto begin = std::chrono::steady_clock::now();
  KV_RETURN_IF_ERROR(cuda::ToStatus(
      rig.driver, rig.driver.MemHostRegister(engine.at(), bytes, way.flags), "cuMemHostRegister"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  (*row)["gib_per_second"] = static_cast<double>(bytes) / kGiB / took.count();
  cuda::Address address = 0;
  absl::Status status =
      cuda::ToStatus(rig.driver, rig.driver.MemHostGetDevicePointer(&address, engine.at(), 0),
                     "cuMemHostGetDevicePointer");
  if (status.ok() && way.protect_after && ::mprotect(engine.at(), bytes, PROT_READ) != 0)
    status = absl::InternalError(std::string("mprotect: ") + std::strerror(errno));
  if (status.ok()) {
    (*row)["same_address"] = address == reinterpret_cast<uint64_t>(engine.at());
    const auto first = Seen(rig, address);
    std::memset(daemon.at(), 2, bytes);
    const auto second = Seen(rig, address);
    status = first.ok() ? second.status() : first.status();
    if (status.ok()) {
      (*row)["reads"] = *first == std::byte{1};
      (*row)["sees_later_writes"] = *second == std::byte{2};
    }
  }
  rig.driver.MemHostUnregister(engine.at());
  return status;
}

}  // namespace

absl::Status RunRegistration(const Plan& plan, const Report& report) {
  KV_ASSIGN_OR_RETURN(const cuda::Driver* driver, plan.source.driver());
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<ComputeDevice> device, Open(plan));
  KV_ASSIGN_OR_RETURN(const DeviceMemory memory, device->Allocate(kKiB));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> back, HostBuffer::Create(device, 4 * kKiB));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device->NewStream());
  const Current current(*driver);
  const Rig rig{*driver, *stream, *back, memory};
  const size_t bytes = plan.tiny ? 2 * kMiB : 256 * kMiB;
  for (const PagesName& pages : kPages) {
    for (const Way& way : kWays) {
      Json row = {{"row", way.name}, {"pages", pages.name}, {"bytes", bytes}};
      const UniqueFd fd(::memfd_create(
          "kvarve-bench", MFD_CLOEXEC | (pages.pages == Pages::kHuge ? MFD_HUGETLB : 0u)));
      absl::Status status = absl::UnavailableError("no memfd of such pages");
      if (fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0) {
        const Mapping first(fd.get(), bytes, PROT_READ | PROT_WRITE);
        // Without reserved pages this is refused by mmap, and so is the rest.
        if (pages.pages == Pages::kTransparent && first.at() != nullptr)
          ::madvise(first.at(), bytes, MADV_HUGEPAGE);
        status = TryWay(rig, way, fd.get(), bytes, &row);
      }
      row["registered"] = status.ok();
      if (!status.ok()) row["why"] = std::string(status.message());
      report(row);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvarve::gpu_bench
