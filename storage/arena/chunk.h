// The memory of one chunk: a memfd that this process maps writable and that nobody can map writable
// after it, unless it is made so (arena.trust).
//
// Order matters: map writable first, then seal (F_SEAL_FUTURE_WRITE spares mappings that exist),
// then re-open read-only; only the re-opened descriptor leaves this file, the writable one is
// closed.
//
// OWNS: the mapping and the read-only descriptor. The last reference unmaps, which takes about 60
// ms a GiB: drop it where nobody waits (PageWorker). THREADS: any; the object does not change after
// Create but for `cancelled`. BLOCKS: Create: microseconds (no page is touched but one, with huge
// pages); Populate: as pages are zeroed.
#ifndef KVARVE_STORAGE_ARENA_CHUNK_H_
#define KVARVE_STORAGE_ARENA_CHUNK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

class ChunkMemory {
 public:
  // `name` shows in /proc/PID/maps. With `hugetlb`, 2 MiB pages if the host has reserved enough of
  // them; else small pages with transparent huge pages asked for. ResourceExhausted, with errno's
  // text: no memfd, no mapping.
  static absl::StatusOr<std::shared_ptr<ChunkMemory>> Create(const std::string& name,
                                                             uint64_t bytes, bool hugetlb,
                                                             bool is_writable = false);
  ~ChunkMemory();
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t page_bytes() const { return page_bytes_; }
  const std::shared_ptr<const UniqueFd>& fd() const { return fd_; }

  // Makes the pages of [offset, offset + size) present without changing their contents. False when
  // the kernel cannot (too old, no memory): the first copy will do it then.
  bool Populate(uint64_t offset, uint64_t size) const;

  // Set when the arena has dropped the chunk: a Populate under way stops soon.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  ChunkMemory(std::byte* base, uint64_t bytes, uint64_t page_bytes)
      : base_(base), bytes_(bytes), page_bytes_(page_bytes) {}

  std::byte* const base_;
  const uint64_t bytes_;
  const uint64_t page_bytes_;
  std::shared_ptr<const UniqueFd> fd_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_CHUNK_H_
