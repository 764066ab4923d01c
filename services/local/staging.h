// Staging: memory that one client writes and the daemon copies from (puts) and to (copy-out). The
// daemon makes it, sizes it, seals its size, and counts it in a budget; the client gets a
// descriptor once, with WELCOME.
//
// The client writes at any time: nothing here may be read twice and believed.
// THREADS: StagingBudget any; SessionStaging is immutable after Create.  BLOCKS: Create, on mmap
// (pages come when touched).
#ifndef KVARVE_SERVICES_LOCAL_STAGING_H_
#define KVARVE_SERVICES_LOCAL_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

// Bytes of staging, of a process or of all; a child's charges count in its parent too.
class StagingBudget {
 public:
  explicit StagingBudget(uint64_t max_bytes, StagingBudget* parent = nullptr)
      : max_bytes_(max_bytes), parent_(parent) {}
  // Takes as much of `wanted` as there is, in steps of kUnitBytes; may be 0.
  uint64_t Take(uint64_t wanted);
  void GiveBack(uint64_t bytes);
  uint64_t used() const;
  const StagingBudget* parent() const { return parent_; }

  static constexpr uint64_t kUnitBytes = 2ull << 20;

 private:
  const uint64_t max_bytes_;
  StagingBudget* const parent_;  // outlives this
  mutable Mutex mutex_;
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

class SessionStaging {
 public:
  // As much of `wanted` as the budget gives; null when that is nothing. Unavailable: no memory.
  static absl::StatusOr<std::unique_ptr<SessionStaging>> Create(uint64_t wanted,
                                                                StagingBudget* budget);
  ~SessionStaging();
  SessionStaging(const SessionStaging&) = delete;
  SessionStaging& operator=(const SessionStaging&) = delete;

  uint64_t bytes() const { return bytes_; }
  // The block at `offset`; null unless all of [offset, offset + bytes) lies inside.
  std::byte* At(uint64_t offset, uint64_t bytes) const {
    return bytes <= bytes_ && offset <= bytes_ - bytes ? base_ + offset : nullptr;
  }
  // The descriptor to pass on; the daemon itself needs none. The second call answers null.
  std::shared_ptr<const UniqueFd> TakeFd() { return std::move(fd_); }

 private:
  SessionStaging() = default;

  StagingBudget* budget_ = nullptr;
  uint64_t bytes_ = 0;
  std::byte* base_ = nullptr;
  std::shared_ptr<const UniqueFd> fd_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_STAGING_H_
