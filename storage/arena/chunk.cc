#include "storage/arena/chunk.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/huge_pages.h"
#include "storage/base/status_macros.h"

// Newer than the headers of the oldest supported C library.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvarve {
namespace {

constexpr uint64_t kSmallPageBytes = 4096;
// In a row; then the kernel has none to give, and looking for one costs time.
constexpr int kMaxCollapseFailures = 4;

absl::Status Failed(const char* call, uint64_t bytes) {
  const int error = errno;
  return absl::ResourceExhaustedError(
      absl::StrFormat("arena chunk of %d bytes: %s: %s", bytes, call, std::strerror(error)));
}

UniqueFd CreateMemfd(const std::string& name, unsigned flags) {
  flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL));
  if (!fd.valid() && errno == EINVAL) fd.reset(::memfd_create(name.c_str(), flags));
  return fd;
}

struct Mapped {
  UniqueFd fd;
  std::byte* base = nullptr;
  uint64_t page_bytes = kSmallPageBytes;
};

absl::StatusOr<Mapped> Map(const std::string& name, uint64_t bytes, uint64_t page_bytes) {
  const bool huge = page_bytes == kHugePageBytes;
  Mapped mapped{CreateMemfd(name, huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0), nullptr, page_bytes};
  if (!mapped.fd.valid()) return Failed("memfd_create", bytes);
  if (::ftruncate(mapped.fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed("ftruncate", bytes);
  }
  // Huge pages are reserved here: ENOMEM when the host has too few.
  void* base = MapShared(mapped.fd.get(), bytes, PROT_READ | PROT_WRITE);
  if (base == MAP_FAILED) return Failed("mmap", bytes);
  mapped.base = static_cast<std::byte*>(base);
  // A reservation says nothing about a cgroup that forbids huge pages: there the first touch is a
  // SIGBUS, unless it is this one, which only fails.
  if (huge && ::madvise(base, kHugePageBytes, MADV_POPULATE_WRITE) != 0) {
    const absl::Status status = Failed("touching a huge page", bytes);
    ::munmap(base, bytes);
    return status;
  }
  return mapped;
}

bool PopulateSmall(std::byte* at, uint64_t size) {
  int rc;
  do {
    rc = ::madvise(at, size, MADV_POPULATE_WRITE);
  } while (rc != 0 && errno == EINTR);
  return rc == 0;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ChunkMemory>> ChunkMemory::Create(const std::string& name,
                                                                 uint64_t bytes, bool huge_pages,
                                                                 bool is_writable) {
  KV_CHECK(bytes > 0 && bytes % kHugePageBytes == 0);
  absl::StatusOr<Mapped> mapped = absl::ResourceExhaustedError("");
  if (huge_pages) mapped = Map(name, bytes, kHugePageBytes);
  if (!mapped.ok()) mapped = Map(name, bytes, kSmallPageBytes);
  if (!mapped.ok()) return mapped.status();

  const bool is_reserved = mapped->page_bytes == kHugePageBytes;
  const bool collapses = huge_pages && !is_reserved && IsHugePageAligned(mapped->base);
  std::shared_ptr<ChunkMemory> memory(
      new ChunkMemory(mapped->base, bytes, mapped->page_bytes, collapses));
  if (!is_reserved) ::madvise(memory->base_, bytes, MADV_HUGEPAGE);
  // Prompts of users are in here: neither core dumps nor forked children get them.
  if (::madvise(memory->base_, bytes, MADV_DONTDUMP) != 0 ||
      ::madvise(memory->base_, bytes, MADV_DONTFORK) != 0) {
    return Failed("madvise", bytes);
  }
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(mapped->fd.get(), F_ADD_SEALS, is_writable ? seals : seals | F_SEAL_FUTURE_WRITE) !=
      0) {
    return Failed("sealing", bytes);
  }
  const std::string path = absl::StrFormat("/proc/self/fd/%d", mapped->fd.get());
  UniqueFd shared(::open(path.c_str(), (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (!shared.valid()) return Failed(path.c_str(), bytes);
  memory->fd_ = std::make_shared<const UniqueFd>(std::move(shared));
  return memory;
}

ChunkMemory::ChunkMemory(std::byte* base, uint64_t bytes, uint64_t page_bytes, bool collapses)
    : base_(base),
      bytes_(bytes),
      page_bytes_(page_bytes),
      collapse_failures_left_(collapses ? kMaxCollapseFailures : 0) {}

ChunkMemory::~ChunkMemory() { ::munmap(base_, bytes_); }

ChunkMemory::Present ChunkMemory::Populate(uint64_t offset, uint64_t size) const {
  KV_CHECK(offset <= bytes_ && size <= bytes_ - offset);
  Present all = Present::kYes;
  while (size > 0) {
    const bool by_huge_pages = collapse_failures_left_.load(std::memory_order_relaxed) > 0 &&
                               offset % kHugePageBytes == 0 && size >= kHugePageBytes;
    const uint64_t step = by_huge_pages ? kHugePageBytes : size;
    Present one = by_huge_pages ? PopulateHuge(base_ + offset) : Present::kNo;
    if (one != Present::kYes && !PopulateSmall(base_ + offset, step)) return Present::kNo;
    if (one == Present::kBusy) all = Present::kBusy;
    offset += step;
    size -= step;
  }
  return all;
}

// kNo: it will be small pages.
ChunkMemory::Present ChunkMemory::PopulateHuge(std::byte* at) const {
  if (PopulateHugePage(at)) {
    collapse_failures_left_.store(kMaxCollapseFailures, std::memory_order_relaxed);
    page_bytes_.store(kHugePageBytes, std::memory_order_relaxed);
    return Present::kYes;
  }
  page_bytes_.store(kSmallPageBytes, std::memory_order_relaxed);
  if (errno == EAGAIN) return Present::kBusy;
  collapse_failures_left_.fetch_sub(1, std::memory_order_relaxed);
  return Present::kNo;
}

}  // namespace kvarve
