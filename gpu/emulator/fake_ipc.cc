// Who has an address, handles of what is mapped there, and CUDA IPC, whose handle names a memfd of
// the process that exports it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "gpu/emulator/fake_entries.h"
#include "storage/base/status_macros.h"

namespace kvarve::cuda {

using fake::FakeDriver;
using fake::Host;

namespace {

constexpr Result kInvalidContext = 201;

struct Named {  // what a handle says
  int pid, fd;
  uint64_t bytes;
};

void* MapShared(int fd, size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  KV_CHECK(memory != MAP_FAILED);
  return memory;
}

}  // namespace

void* FakeEntries::Allocate(size_t bytes, int* fd) {
  *fd = ::memfd_create("fake-gpu", MFD_CLOEXEC);
  KV_CHECK(*fd >= 0 && ::ftruncate(*fd, static_cast<off_t>(bytes)) == 0);
  return MapShared(*fd, bytes);
}

Result FakeEntries::MemRetainAllocationHandle(AllocationHandle* handle, void* at) {
  KV_ENTER(d);
  const auto range = d.RangeOf(reinterpret_cast<uint64_t>(at));
  if (range == d.ranges_.end() || !range->second.is_chunk) return kInvalidValue;
  d.handles_[*handle = d.next_++] = ::fcntl(range->second.fd, F_DUPFD_CLOEXEC, 0);
  return kSuccess;
}

Result FakeEntries::MemGetAddressRange(Address* begin, size_t* bytes, Address at) {
  KV_ENTER(d);
  const auto range = d.RangeOf(at);
  if (range == d.ranges_.end()) return kNotFound;
  *begin = range->first;
  *bytes = range->second.bytes;
  return kSuccess;
}

Result FakeEntries::IpcGetMemHandle(IpcMemoryHandle* handle, Address at) {
  KV_ENTER(d);
  const auto range = d.RangeOf(at);
  // A driver has no such handle of memory that cuMemMap maps.
  if (range == d.ranges_.end() || range->second.is_chunk || range->second.fd < 0)
    return kInvalidValue;
  const Named named{::getpid(), range->second.fd, range->second.bytes};
  std::memcpy(handle->reserved, &named, sizeof named);
  return kSuccess;
}

Result FakeEntries::IpcOpenMemHandle(Address* at, IpcMemoryHandle handle, unsigned) {
  Named named{};
  std::memcpy(&named, handle.reserved, sizeof named);
  if (named.pid == ::getpid()) return kInvalidContext;  // a driver refuses its own process
  const std::string path = "/proc/" + std::to_string(named.pid) + "/fd/" + std::to_string(named.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  KV_ENTER(d);
  *at = reinterpret_cast<Address>(MapShared(fd, named.bytes));
  d.ranges_[*at] = {named.bytes, true, false, fd};
  return kSuccess;
}

Result FakeEntries::IpcCloseMemHandle(Address at) {
  KV_ENTER(d);
  const auto range = d.ranges_.find(at);
  if (range == d.ranges_.end()) return kInvalidValue;
  d.HostTouches(at, range->second.bytes, true, "early release: cuIpcCloseMemHandle");
  ::munmap(Host(at), range->second.bytes);
  ::close(range->second.fd);
  d.ranges_.erase(range);
  return kSuccess;
}

}  // namespace kvarve::cuda
