// What a stored block costs in memory besides its bytes: index, policy and the arena's descriptors
// together. THREADS: one.  BLOCKS: for seconds.
#ifndef KVARVE_TESTS_PERF_ENTRY_MEMORY_H_
#define KVARVE_TESTS_PERF_ENTRY_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace kvarve::perf {

struct EntryMemory {
  double worst_bytes_an_entry = 0;
  uint64_t worst_entries = 0;  // where that was
};

// Fills index, policy and arena one entry after the other and reads the resident private memory of
// the process (RssAnon, above what it was when empty) every `step` entries from `begin` to `end`.
// The fill runs in a forked process, so that nothing freed earlier is used again. Internal: the
// child or /proc failed.
absl::StatusOr<EntryMemory> MeasureEntryMemory(uint64_t begin, uint64_t end, uint64_t step);

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_ENTRY_MEMORY_H_
