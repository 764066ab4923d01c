#include "services/local/staging.h"

#include <sys/mman.h>

#include <algorithm>

#include "client/local/sealed_memory.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {

uint64_t StagingBudget::Take(uint64_t wanted) {
  uint64_t taken = 0;
  {
    MutexLock lock(&mutex_);
    const uint64_t left = (max_bytes_ - used_) / kUnitBytes * kUnitBytes;
    taken = wanted >= left ? left : RoundUp(wanted, kUnitBytes);
    used_ += taken;
  }
  if (parent_ == nullptr) return taken;
  const uint64_t granted = parent_->Take(taken);
  MutexLock lock(&mutex_);
  used_ -= taken - granted;
  return granted;
}

void StagingBudget::GiveBack(uint64_t bytes) {
  {
    MutexLock lock(&mutex_);
    KV_CHECK(bytes <= used_);
    used_ -= bytes;
  }
  if (parent_ != nullptr) parent_->GiveBack(bytes);
}

uint64_t StagingBudget::used() const {
  MutexLock lock(&mutex_);
  return used_;
}

absl::StatusOr<std::unique_ptr<SessionStaging>> SessionStaging::Create(uint64_t wanted,
                                                                       StagingBudget* budget) {
  const uint64_t bytes = wanted == 0 ? 0 : budget->Take(wanted);
  if (bytes == 0) return std::unique_ptr<SessionStaging>();
  std::unique_ptr<SessionStaging> staging(new SessionStaging());
  staging->budget_ = budget;
  staging->bytes_ = bytes;
  auto fd = std::make_shared<UniqueFd>();
  KV_ASSIGN_OR_RETURN(void* const base, local::MakeSealedMemory("kvarve-staging", bytes, fd.get()));
  staging->base_ = static_cast<std::byte*>(base);
  ::madvise(base, bytes, MADV_HUGEPAGE);  // where the host has it for shared memory
  staging->fd_ = std::move(fd);
  return staging;
}

SessionStaging::~SessionStaging() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
  budget_->GiveBack(bytes_);
}

}  // namespace kvarve
