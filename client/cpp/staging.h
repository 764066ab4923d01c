// The staging memory of one connection: made and sealed by the daemon, written here, cut into
// regions. A region is busy from its allocation until its last holder lets go; the connection holds
// the region of a request that timed out until the answer comes (the daemon may still be reading or
// writing there).
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_CLIENT_CPP_STAGING_H_
#define KVARVE_CLIENT_CPP_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/host_memory.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

class StagingMemory;

// A range of staging memory, given back on destruction; keeps the memory mapped.
class StagingRegion {
 public:
  ~StagingRegion();
  StagingRegion(const StagingRegion&) = delete;
  StagingRegion& operator=(const StagingRegion&) = delete;
  std::byte* data() const;
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }  // rounded up to kUnitBytes
  const StagingMemory* memory() const { return memory_.get(); }

 private:
  friend class StagingMemory;
  StagingRegion(std::shared_ptr<StagingMemory> memory, uint64_t offset, uint64_t bytes)
      : memory_(std::move(memory)), offset_(offset), bytes_(bytes) {}
  std::shared_ptr<StagingMemory> memory_;
  uint64_t offset_;
  uint64_t bytes_;
};

class StagingMemory : public std::enable_shared_from_this<StagingMemory> {
 public:
  static constexpr uint64_t kUnitBytes = 4096;

  // Maps `fd`. InvalidArgument: shorter than `bytes`, or it could shrink. ResourceExhausted: no
  // address space.
  static absl::StatusOr<std::shared_ptr<StagingMemory>> Map(
      int fd, uint64_t bytes, std::shared_ptr<HostMemoryObserver> observer = nullptr);
  // Memory of this process alone, for a plane that sends what lies there. ResourceExhausted: no
  // address space.
  static absl::StatusOr<std::shared_ptr<StagingMemory>> Private(
      uint64_t bytes, std::shared_ptr<HostMemoryObserver> observer = nullptr);
  ~StagingMemory();

  // First fit: low addresses, whose pages are there already, are used again first.
  // ResourceExhausted when no gap is long enough. REQUIRES: bytes > 0.
  absl::StatusOr<std::shared_ptr<StagingRegion>> Allocate(uint64_t bytes);
  // For as many of `*blocks` (at least one) as there is a gap for, halving; says how many.
  absl::StatusOr<std::shared_ptr<StagingRegion>> AllocateBlocks(uint64_t block_bytes,
                                                                size_t* blocks);
  uint64_t bytes() const { return bytes_; }
  uint64_t free_bytes() const;

 private:
  friend class StagingRegion;
  StagingMemory(std::byte* data, uint64_t bytes, std::shared_ptr<HostMemoryObserver> observer)
      : data_(data), bytes_(bytes), observer_(std::move(observer)) {}
  static std::shared_ptr<StagingMemory> Take(void* data, uint64_t bytes,
                                             std::shared_ptr<HostMemoryObserver> observer);
  void Free(uint64_t offset, uint64_t bytes);

  ForkStamp stamp_;
  std::byte* const data_;
  const uint64_t bytes_;
  const std::shared_ptr<HostMemoryObserver> observer_;
  mutable Mutex mutex_;
  std::map<uint64_t, uint64_t> gaps_ ABSL_GUARDED_BY(mutex_);  // offset -> bytes; never adjacent
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_STAGING_H_
