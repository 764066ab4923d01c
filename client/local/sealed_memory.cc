#include "client/local/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvarve::local {
namespace {

void* MapShared(int fd, uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, bytes, MADV_DONTFORK);
  ::madvise(memory, bytes, MADV_DONTDUMP);  // it holds prompts' state
  return memory;
}

}  // namespace

absl::StatusOr<void*> MakeSealedMemory(const char* name, uint64_t bytes, UniqueFd* fd) {
  const auto failed = [name](const char* what) {
    return absl::UnavailableError(absl::StrCat(name, ": ", what, ": ", std::strerror(errno)));
  };
  UniqueFd made(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.valid()) return failed("memfd_create");
  if (::ftruncate(made.get(), static_cast<off_t>(bytes)) != 0) return failed("ftruncate");
  if (::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("seal");
  }
  void* const memory = MapShared(made.get(), bytes);
  if (memory == nullptr) return failed("mmap");
  *fd = std::move(made);
  return memory;
}

absl::StatusOr<void*> MapSealedMemory(int fd, uint64_t bytes) {
  if (bytes == 0 || !IsSealedMemory(fd, bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("not sealed memory of ", bytes, " bytes"));
  }
  void* const memory = MapShared(fd, bytes);
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(
      absl::StrCat("mmap of ", bytes, " bytes: ", std::strerror(errno)));
}

bool IsSealedMemory(int fd, uint64_t bytes) {
  struct stat status;
  if (::fstat(fd, &status) != 0 || status.st_size < 0) return false;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return static_cast<uint64_t>(status.st_size) >= bytes && seals >= 0 &&
         (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace kvarve::local
