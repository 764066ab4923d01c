// An engine's paged memory for the kernels' tests, in every layout.
//
// THREADS: one.
#ifndef KVARVE_GPU_KERNELS_PAGED_MEMORY_TESTING_H_
#define KVARVE_GPU_KERNELS_PAGED_MEMORY_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/paged/kv_view.h"
#include "storage/block/layout.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {

// How an engine may lay its pages.
enum class PageLayout { kNhd, kHnd, kInterleaved, kCrossLayer, kMla };
inline constexpr PageLayout kPageLayouts[] = {PageLayout::kNhd, PageLayout::kHnd,
                                              PageLayout::kInterleaved, PageLayout::kCrossLayer,
                                              PageLayout::kMla};
const char* NameOf(PageLayout layout);

// An engine's memory of random bytes.
struct PagedMemory {
  // Addresses, strides and rows allow accesses of `align` bytes and none wider. `element_bytes` 0:
  // any that fits.
  PagedMemory(PageLayout layout, uint32_t page_tokens, uint32_t align, uint32_t element_bytes,
              SeededRandom* random);
  KvView view;
  BlockLayout block;  // two or three pages
  std::vector<std::byte> bytes;
};

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_KERNELS_PAGED_MEMORY_TESTING_H_
