// What the host can give to the arena: the kernel's MemAvailable, and the limits of the control
// groups that this process lives in (version 1 and 2, all levels up to the root: the smallest
// counts).
//
// THREADS: any.  BLOCKS: reads a few small files of /proc and /sys.
#ifndef KVARVE_STORAGE_ARENA_HOST_MEMORY_H_
#define KVARVE_STORAGE_ARENA_HOST_MEMORY_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"

namespace kvarve {

inline constexpr int kDefaultArenaPercent = 40;
inline constexpr int kMaxArenaPercent = 80;

struct HostMemoryPaths {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct HostMemory {
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  uint64_t total_bytes = 0;                // MemTotal
  uint64_t available_bytes = 0;            // MemAvailable, in which reserved huge pages are not
  uint64_t free_huge_bytes = 0;            // reserved huge pages of 2 MiB that nobody has yet
  uint64_t cgroup_limit_bytes = kNoLimit;  // the lowest memory.max or memory.high on the way up
  uint64_t cgroup_available_bytes =
      kNoLimit;                   // the lowest limit minus usage; cached files count as free
  std::string cgroup_limit_path;  // the file of cgroup_limit_bytes

  // min(control groups' limit, MemAvailable): what arena sizes are percentages of. An arena that
  // exists already is part of what there is: tell its bytes.
  uint64_t BudgetBytes(uint64_t held_bytes = 0) const;
  // What can be taken now.
  uint64_t FreeBytes() const;
};

// Unavailable when meminfo cannot be read; missing cgroup files are no limits.
absl::StatusOr<HostMemory> ReadHostMemory(const HostMemoryPaths& paths = {});

// kDefaultArenaPercent of the budget, in whole extents.
uint64_t DefaultArenaBytes(const HostMemory& host);
// InvalidArgument above kMaxArenaPercent of the budget, or below one extent; ResourceExhausted when
// it is the host's memory and would fit if others gave theirs back; the message says what to do.
// With `huge_pages` free reserved ones come on top, to the last: nothing else can use them, and
// neither MemAvailable nor a control group's memory limit counts them.
absl::Status CheckArenaBytes(const HostMemory& host, uint64_t wanted_bytes, uint64_t held_bytes = 0,
                             bool huge_pages = false);

// For ArenaOptions::available_bytes: FreeBytes(), or with `huge_pages` the free reserved ones where
// these are more, read at most every `interval_nanos`. When nothing can be read it answers
// kNoLimit: the arena's capacity then is the only limit.
std::function<uint64_t()> HostAvailableBytes(bool huge_pages, const HostMemoryPaths& paths = {},
                                             int64_t interval_nanos = 100'000'000,
                                             const Clock* clock = SystemClock::Get());

}  // namespace kvarve

#endif  // KVARVE_STORAGE_ARENA_HOST_MEMORY_H_
