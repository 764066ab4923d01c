// Memory of benches.
//
// THREADS: externally synchronised.
#ifndef KVARVE_TESTS_PERF_HUGE_MEMORY_H_
#define KVARVE_TESTS_PERF_HUGE_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "storage/base/status_macros.h"

namespace kvarve::perf {

// Memory as a host tier and an engine have it: huge pages where the kernel gives them, present. Or
// small ones, as a host without transparent huge pages has.
class HugeMemory {
 public:
  HugeMemory(size_t bytes, int fill, bool huge = true)
      : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(kHuge, bytes_));
    KV_CHECK(data_ != nullptr);
    ::madvise(data_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // a wish
    std::memset(data_, fill, bytes_);
  }
  ~HugeMemory() { std::free(data_); }
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  static constexpr size_t kHuge = 2 << 20;
  size_t bytes_;
  std::byte* data_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_HUGE_MEMORY_H_
