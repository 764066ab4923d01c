// Shared memory in pages of 2 MiB without reserved ones. A read of a device into a huge page is one
// piece of memory to kernel and device, where small pages are 512 pieces that lie anywhere; copies
// miss the translation caches less.
//
// Whether shared memory gets huge pages by itself is one setting for the whole host, `never` nearly
// everywhere (transparent_hugepage/shmem_enabled). MADV_COLLAPSE, since Linux 6.1, asks for single
// ones whatever it says, unless that is `deny`.
//
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_HUGE_PAGES_H_
#define KVARVE_STORAGE_BASE_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace kvarve {

inline constexpr uint64_t kHugePageBytes = 2ull << 20;

inline bool IsHugePageAligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % kHugePageBytes == 0;
}

// mmap of the first `bytes` of `fd`, MAP_SHARED, at a multiple of 2 MiB when it is as long as a
// huge page, so that those can be mapped as such (elsewhere only where other threads take each
// place that is found). MAP_FAILED with errno.  BLOCKS: microseconds.
void* MapShared(int fd, uint64_t bytes, int protection);

// Makes the 2 MiB at `at` present as one huge page; what was written there stays, and may be read
// and written meanwhile. False, with errno: EAGAIN when somebody has a small page of it in hand, as
// a device that writes from there has: later it may do. Else the kernel does not do it, or has
// none. REQUIRES: `at` a multiple of 2 MiB, mapped writable.  BLOCKS: while a page is cleared (2
// ms), longer when the kernel has to make room for it.
bool PopulateHugePage(std::byte* at);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_HUGE_PAGES_H_
