// Memory that a device can read into and write from: whole pages, aligned, zeroed. Large ones ask
// for huge pages, which direct I/O of large requests is twice as fast with. THREADS: one owner.
// BLOCKS: never. Out of memory ends the process.
#ifndef KVARVE_STORAGE_IO_ALIGNED_BUFFER_H_
#define KVARVE_STORAGE_IO_ALIGNED_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "storage/base/huge_pages.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/io/io_request.h"

namespace kvarve {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Rounded up to kIoUnit.
  explicit AlignedBuffer(size_t bytes) : bytes_(RoundUp(bytes, kIoUnit)) {
    if (bytes_ == 0) return;
    void* memory = nullptr;
    const bool huge = bytes_ >= kHugePageBytes;
    KV_CHECK(::posix_memalign(&memory, huge ? kHugePageBytes : kIoUnit, bytes_) == 0);
    if (huge) ::madvise(memory, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
    std::memset(data_, 0, bytes_);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() { std::free(data_); }

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_ALIGNED_BUFFER_H_
