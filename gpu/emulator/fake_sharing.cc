// Memory that other processes map: a memfd of the fake's stands for each handle.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/emulator/fake_entries.h"

namespace kvarve::cuda {

using fake::FakeDriver;
using fake::Host;

namespace {

constexpr size_t kGranularity = 2 << 20;

}  // namespace

Result FakeEntries::MemGetAllocationGranularity(size_t* bytes, const AllocationProperties*, int) {
  return *bytes = kGranularity, kSuccess;
}

Result FakeEntries::MemCreate(AllocationHandle* handle, size_t bytes,
                              const AllocationProperties* of, unsigned long long) {
  KV_ENTER(d);
  if (!d.Safe("cuMemCreate", false)) return kStreamCaptureUnsupported;
  const int fd = ::memfd_create("fake-gpu", MFD_CLOEXEC);
  if (bytes % kGranularity != 0 || of->handle_types != kHandlePosixFd || fd < 0 ||
      ::ftruncate(fd, static_cast<off_t>(bytes)) != 0)
    return kInvalidValue;
  d.handles_[*handle = d.next_++] = fd;
  return kSuccess;
}

Result FakeEntries::MemRelease(AllocationHandle handle) {
  KV_ENTER(d);
  ::close(d.handles_[handle]);
  d.handles_.erase(handle);
  return kSuccess;
}

Result FakeEntries::MemExportToShareableHandle(void* fd, AllocationHandle handle, int,
                                               unsigned long long) {
  KV_ENTER(d);
  *static_cast<int*>(fd) = ::fcntl(d.handles_[handle], F_DUPFD_CLOEXEC, 0);
  return kSuccess;
}

Result FakeEntries::MemImportFromShareableHandle(AllocationHandle* handle, void* fd, int) {
  KV_ENTER(d);
  const int copy = ::fcntl(static_cast<int>(reinterpret_cast<uintptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return kInvalidValue;
  d.handles_[*handle = d.next_++] = copy;
  return kSuccess;
}

Result FakeEntries::MemAddressReserve(Address* at, size_t bytes, size_t, Address,
                                      unsigned long long) {
  void* const memory = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *at = reinterpret_cast<Address>(memory);
  KV_ENTER(d);
  d.reserved_[*at] = bytes;
  return kSuccess;
}

Result FakeEntries::MemAddressFree(Address at, size_t bytes) {
  KV_ENTER(d);
  d.reserved_.erase(at);
  return ::munmap(Host(at), bytes) == 0 ? kSuccess : kInvalidValue;
}

Result FakeEntries::MemMap(Address at, size_t bytes, size_t offset, AllocationHandle handle,
                           unsigned long long) {
  KV_ENTER(d);
  struct stat status;
  if (::fstat(d.handles_[handle], &status) != 0 ||
      offset + bytes > static_cast<size_t>(status.st_size))
    return kInvalidValue;
  if (::mmap(Host(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, d.handles_[handle],
             static_cast<off_t>(offset)) == MAP_FAILED)
    return kInvalidValue;
  // The mapping keeps the memory when its handle is released.
  d.ranges_[at] = {bytes, true, false, ::fcntl(d.handles_[handle], F_DUPFD_CLOEXEC, 0), true};
  return kSuccess;
}

Result FakeEntries::MemUnmap(Address at, size_t bytes) {
  KV_ENTER(d);
  d.HostTouches(at, bytes, true, "early release: cuMemUnmap");
  ::close(d.ranges_[at].fd);
  d.ranges_.erase(at);
  return kSuccess;
}

Result FakeEntries::MemSetAccess(Address at, size_t bytes, const AccessDescription* access,
                                 size_t) {
  const int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : PROT_NONE;
  return ::mprotect(Host(at), bytes, protection) == 0 ? kSuccess : kInvalidValue;
}

}  // namespace kvarve::cuda
