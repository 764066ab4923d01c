#include "storage/base/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>

#include "storage/base/units.h"

// Newer than the headers of the oldest supported C library.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace kvarve {
namespace {

constexpr uint64_t kPageBytes = 4096;

}  // namespace

void* MapShared(int fd, uint64_t bytes, int protection) {
  if (bytes < kHugePageBytes) return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  // Address space with room for an aligned begin; the rest goes back.
  const uint64_t reserved = RoundUp(bytes, kHugePageBytes) + kHugePageBytes;
  void* const space =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return MAP_FAILED;
  std::byte* const begin = static_cast<std::byte*>(space);
  const uint64_t before = -reinterpret_cast<uintptr_t>(space) % kHugePageBytes;
  void* const mapped = ::mmap(begin + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(space, reserved);
    errno = error;
    return MAP_FAILED;
  }
  const uint64_t behind = before + RoundUp(bytes, kPageBytes);
  if (before > 0) ::munmap(begin, before);
  if (behind < reserved) ::munmap(begin + behind, reserved - behind);
  return mapped;
}

bool PopulateHugePage(std::byte* at) {
  // Without any page there is no page table to collapse.
  return ::madvise(at, kPageBytes, MADV_POPULATE_WRITE) == 0 &&
         ::madvise(at, kHugePageBytes, MADV_COLLAPSE) == 0;
}

}  // namespace kvarve
