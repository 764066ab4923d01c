#include "services/local/staging.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
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
  const auto failed = [](const char* what) {
    return absl::UnavailableError(absl::StrCat("staging: ", what, ": ", std::strerror(errno)));
  };
  auto fd =
      std::make_shared<UniqueFd>(::memfd_create("kvarve-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd->valid()) return failed("memfd_create");
  if (::ftruncate(fd->get(), static_cast<off_t>(bytes)) != 0) return failed("ftruncate");
  // The size is what keeps the daemon's own accesses from a SIGBUS.
  if (::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("seal");
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (base == MAP_FAILED) return failed("mmap");
  staging->base_ = static_cast<std::byte*>(base);
  ::madvise(base, bytes, MADV_HUGEPAGE);  // where the host has it for shared memory
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);  // it holds prompts' state
  staging->fd_ = std::move(fd);
  return staging;
}

SessionStaging::~SessionStaging() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
  budget_->GiveBack(bytes_);
}

}  // namespace kvarve
