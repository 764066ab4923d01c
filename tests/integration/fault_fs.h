// What a test tells a filesystem that fails (fault_fs.cc), in a file that both map.
// THREADS: any, in both processes.
#ifndef KVARVE_TESTS_INTEGRATION_FAULT_FS_H_
#define KVARVE_TESTS_INTEGRATION_FAULT_FS_H_

#include <atomic>
#include <cstdint>

namespace kvarve::testing {

inline constexpr char kFaultsFile[] = "faults";  // in the folder below the mount

// All zero: an honest filesystem. `one_in`: so often a fault happens; 0: never.
struct FsFaults {
  std::atomic<uint32_t> read_one_in, write_one_in, sync_one_in;
  std::atomic<int32_t> read_error, write_error, sync_error;  // errno; 0 of a write: a short one
  std::atomic<uint32_t> flip_one_in;                         // reads with one wrong bit
  std::atomic<uint32_t> delay_micros;                        // of every request
  std::atomic<uint64_t> reads, writes, syncs, faults;        // counted
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_FAULT_FS_H_
