#include "storage/base/huge_pages.h"

#include <sys/mman.h>

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
constexpr int kAlignedTries = 8;

}  // namespace

void* MapShared(int fd, uint64_t bytes, int protection) {
  if (bytes < kHugePageBytes) return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  // Where there is room for an aligned begin. Asked for as a hint, never with MAP_FIXED: when that
  // fails the kernel has removed what lay there (no reserved huge page is enough for it), and
  // another thread's mapping may come to lie there before the rest is unmapped.
  const uint64_t reserved = RoundUp(bytes, kHugePageBytes) + kHugePageBytes;
  for (int tries = kAlignedTries;; --tries) {
    void* const space =
        ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return MAP_FAILED;
    ::munmap(space, reserved);
    std::byte* const aligned =
        static_cast<std::byte*>(space) + -reinterpret_cast<uintptr_t>(space) % kHugePageBytes;
    void* const mapped = ::mmap(aligned, bytes, protection, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED || tries == 1 || IsHugePageAligned(mapped)) return mapped;
    ::munmap(mapped, bytes);  // another thread was faster
  }
}

bool PopulateHugePage(std::byte* at) {
  // Without any page there is no page table to collapse.
  return ::madvise(at, kPageBytes, MADV_POPULATE_WRITE) == 0 &&
         ::madvise(at, kHugePageBytes, MADV_COLLAPSE) == 0;
}

}  // namespace kvarve
