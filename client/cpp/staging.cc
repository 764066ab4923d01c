#include "client/cpp/staging.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/local/sealed_memory.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::client {

StagingRegion::~StagingRegion() { memory_->Free(offset_, bytes_); }

std::byte* StagingRegion::data() const { return memory_->data_ + offset_; }

absl::StatusOr<std::shared_ptr<StagingMemory>> StagingMemory::Map(
    int fd, uint64_t bytes, std::shared_ptr<HostMemoryObserver> observer) {
  KV_ASSIGN_OR_RETURN(void* const data, local::MapSealedMemory(fd, bytes));
  return Take(data, bytes, std::move(observer));
}

absl::StatusOr<std::shared_ptr<StagingMemory>> StagingMemory::Private(
    uint64_t bytes, std::shared_ptr<HostMemoryObserver> observer) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mmap of the staging memory: ", std::strerror(errno)));
  }
  ::madvise(data, bytes, MADV_DONTFORK);
  ::madvise(data, bytes, MADV_DONTDUMP);
  return Take(data, bytes, std::move(observer));
}

std::shared_ptr<StagingMemory> StagingMemory::Take(void* data, uint64_t bytes,
                                                   std::shared_ptr<HostMemoryObserver> observer) {
  std::shared_ptr<StagingMemory> memory(
      new StagingMemory(static_cast<std::byte*>(data), bytes, std::move(observer)));
  if (memory->observer_ != nullptr) {
    memory->observer_->OnMapped({memory->data_, bytes}, HostMemoryObserver::Kind::kStaging);
  }
  MutexLock lock(&memory->mutex_);
  memory->gaps_.emplace(0, bytes);
  return memory;
}

StagingMemory::~StagingMemory() {
  if (stamp_.InChild()) return;
  if (observer_ != nullptr) observer_->OnUnmapping(data_);
  ::munmap(data_, bytes_);
}

absl::StatusOr<std::shared_ptr<StagingRegion>> StagingMemory::Allocate(uint64_t bytes) {
  KV_CHECK(bytes > 0);
  if (bytes <= bytes_) {
    const uint64_t rounded = RoundUp(bytes, kUnitBytes);
    MutexLock lock(&mutex_);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [offset, gap_bytes] = *gap;
      if (gap_bytes < rounded) continue;
      gaps_.erase(gap);
      if (gap_bytes > rounded) gaps_.emplace(offset + rounded, gap_bytes - rounded);
      return std::shared_ptr<StagingRegion>(new StagingRegion(shared_from_this(), offset, rounded));
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no ", bytes, " bytes of the ", bytes_, " bytes of staging are free now"));
}

absl::StatusOr<std::shared_ptr<StagingRegion>> StagingMemory::AllocateBlocks(uint64_t block_bytes,
                                                                             size_t* blocks) {
  absl::StatusOr<std::shared_ptr<StagingRegion>> region = Allocate(*blocks * block_bytes);
  while (!region.ok() && *blocks > 1) {
    *blocks = (*blocks + 1) / 2;
    region = Allocate(*blocks * block_bytes);
  }
  return region;
}

void StagingMemory::Free(uint64_t offset, uint64_t bytes) {
  if (stamp_.InChild()) return;
  MutexLock lock(&mutex_);
  auto next = gaps_.lower_bound(offset);
  if (next != gaps_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  gaps_.emplace(offset, bytes);
}

uint64_t StagingMemory::free_bytes() const {
  MutexLock lock(&mutex_);
  uint64_t sum = 0;
  for (const auto& [offset, bytes] : gaps_) sum += bytes;
  return sum;
}

}  // namespace kvarve::client
