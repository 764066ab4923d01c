// The memory of one chunk: a memfd that this process maps writable and that nobody can map writable
// after it, unless it is made so (arena.trust).
//
// Order matters: map writable first, then seal (F_SEAL_FUTURE_WRITE spares mappings that exist),
// then re-open read-only; only the re-opened descriptor leaves this file, the writable one is
// closed.
//
// OWNS: the mapping and the read-only descriptor. The last reference unmaps, which takes about 60
// ms a GiB: drop it where nobody waits (PageWorker). THREADS: any; the object does not change after
// Create but for `cancelled` and the size of its pages. BLOCKS: Create: microseconds (no page is
// touched but one, with reserved huge pages); Populate: as pages are zeroed.
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
  // `name` shows in /proc/PID/maps. With `huge_pages`, 2 MiB pages: reserved ones if the host
  // has enough of them, else Populate asks for single ones. Without: what the host gives by itself.
  // ResourceExhausted, with errno's text: no memfd, no mapping.
  static absl::StatusOr<std::shared_ptr<ChunkMemory>> Create(const std::string& name,
                                                             uint64_t bytes, bool huge_pages,
                                                             bool is_writable = false);
  ~ChunkMemory();
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  // Of what was made present last: 2 MiB or 4096. One that the host gave by itself is not seen.
  uint64_t page_bytes() const { return page_bytes_.load(std::memory_order_relaxed); }
  const std::shared_ptr<const UniqueFd>& fd() const { return fd_; }

  enum class Present {
    kNo,    // the kernel cannot (too old, no memory): the first copy will do it
    kYes,   // in the largest pages that are to be had
    kBusy,  // in small pages, as some are in hand just now: worth another call
  };
  // Makes the pages of [offset, offset + size) present without changing their contents.
  Present Populate(uint64_t offset, uint64_t size) const;

  // Set when the arena has dropped the chunk: a Populate under way stops soon.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  ChunkMemory(std::byte* base, uint64_t bytes, uint64_t page_bytes, bool collapses);
  Present PopulateHuge(std::byte* at) const;

  std::byte* const base_;
  const uint64_t bytes_;
  mutable std::atomic<uint64_t> page_bytes_;
  mutable std::atomic<int> collapse_failures_left_;
  std::shared_ptr<const UniqueFd> fd_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_CHUNK_H_
