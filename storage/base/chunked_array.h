// An array of plain values that grows by chunks of one fixed size: no element ever moves, no growth
// copies, and the resident size follows what is used (no doubling). New elements are zero.
//
// With kHuge a chunk becomes a huge page as soon as it is full, which a large array that is read at
// random needs: address translation costs as much as memory there. Not before: of a huge page every
// byte is resident.
//
// THREADS: externally synchronised.  BLOCKS: never (a new chunk is one mmap; with kHuge, the copy
// of a chunk once in its life). Out of memory ends the process.
#ifndef KVARVE_STORAGE_BASE_CHUNKED_ARRAY_H_
#define KVARVE_STORAGE_BASE_CHUNKED_ARRAY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "storage/base/huge_pages.h"
#include "storage/base/status_macros.h"

namespace kvarve {

template <typename T, size_t kChunkElements, bool kHuge = false>
class ChunkedArray {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert((kChunkElements & (kChunkElements - 1)) == 0);

 public:
  static constexpr size_t kChunkBytes = sizeof(T) * kChunkElements;
  static constexpr size_t kPageBytes = 4096;
  static_assert(kChunkBytes % kPageBytes == 0, "chunks are whole pages");
  static_assert(!kHuge || kChunkBytes == kHugePageBytes);

  ChunkedArray() = default;
  ChunkedArray(ChunkedArray&& other) noexcept
      : chunks_(std::exchange(other.chunks_, {})), size_(std::exchange(other.size_, 0)) {}
  ChunkedArray& operator=(ChunkedArray&& other) noexcept {
    if (this != &other) {
      Resize(0);
      DropChunksFrom(0);
      chunks_ = std::exchange(other.chunks_, {});
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~ChunkedArray() { DropChunksFrom(0); }

  size_t size() const { return size_; }
  T& operator[](size_t i) { return chunks_[i / kChunkElements][i % kChunkElements]; }
  const T& operator[](size_t i) const { return chunks_[i / kChunkElements][i % kChunkElements]; }

  // Growing appends zeros (whatever stood there before); shrinking gives chunks back, but keeps one
  // spare.
  void Resize(size_t size) {
    for (size_t i = size_; i < size && i < chunks_.size() * kChunkElements; ++i) (*this)[i] = T{};
    while (chunks_.size() * kChunkElements < size) AddChunk();
    size_ = size;
    DropChunksFrom((size + kChunkElements - 1) / kChunkElements + 1);
  }
  void PushBack(const T& value) {
    if (size_ == chunks_.size() * kChunkElements) AddChunk();
    (*this)[size_++] = value;
  }
  // REQUIRES: size() > 0.
  void PopBack() {
    --size_;
    if (size_ % kChunkElements == 0) DropChunksFrom(size_ / kChunkElements + 1);
  }

  // Of all chunks, but of the last one only the pages up to the array's end.
  uint64_t MemoryBytes() const {
    uint64_t unused = chunks_.size() * kChunkBytes - size_ * sizeof(T);
    if (unused > kChunkBytes) unused = 0;
    return chunks_.size() * kChunkBytes - unused / kPageBytes * kPageBytes +
           chunks_.capacity() * sizeof(T*);
  }

 private:
  void AddChunk() {
    if (kHuge && !chunks_.empty()) MakeHuge(chunks_.back());
    const size_t bytes = kHuge ? 2 * kChunkBytes : kChunkBytes;
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(memory != MAP_FAILED);
    chunks_.push_back(static_cast<T*>(kHuge ? CutToHugePage(memory) : memory));
  }
  // Of two huge pages' worth of memory, the aligned one in the middle; the rest goes back.
  static void* CutToHugePage(void* memory) {
    char* const start = static_cast<char*>(memory);
    const size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePageBytes;
    if (before > 0) ::munmap(start, before);
    ::munmap(start + before + kHugePageBytes, kHugePageBytes - before);
    return start + before;
  }
  // Where the kernel has a huge page to give. Before Linux 6.1, and when it has none now, it may do
  // so later by itself.
  static void MakeHuge(void* chunk) {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, which glibc has since 2.37
    ::madvise(chunk, kHugePageBytes, MADV_HUGEPAGE);
    ::madvise(chunk, kHugePageBytes, kCollapse);
  }
  void DropChunksFrom(size_t first) {
    while (chunks_.size() > first) {
      ::munmap(chunks_.back(), kChunkBytes);
      chunks_.pop_back();
    }
  }

  std::vector<T*> chunks_;
  size_t size_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_CHUNKED_ARRAY_H_
