// An array of plain values that grows by chunks of one fixed size: no element ever moves, no growth
// copies, and the resident size follows what is used by at most one chunk (no doubling). New
// elements are zero. THREADS: externally synchronised.  BLOCKS: never (a new chunk is one mmap).
// Out of memory ends the process.
#ifndef KVARVE_STORAGE_BASE_CHUNKED_ARRAY_H_
#define KVARVE_STORAGE_BASE_CHUNKED_ARRAY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "storage/base/status_macros.h"

namespace kvarve {

template <typename T, size_t kChunkElements>
class ChunkedArray {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert((kChunkElements & (kChunkElements - 1)) == 0);
  static_assert(sizeof(T) * kChunkElements % 4096 == 0, "chunks are whole pages");

 public:
  static constexpr size_t kChunkBytes = sizeof(T) * kChunkElements;

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

  // Of the chunks, as mapped.
  uint64_t MemoryBytes() const {
    return chunks_.size() * kChunkBytes + chunks_.capacity() * sizeof(T*);
  }

 private:
  void AddChunk() {
    void* memory =
        ::mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(memory != MAP_FAILED);
    chunks_.push_back(static_cast<T*>(memory));
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
