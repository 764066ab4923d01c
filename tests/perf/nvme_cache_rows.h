// Rows of the suite "nvme" for the cache over a device: in this process, and through a daemon.
// THREADS: one.  BLOCKS: for as long as the rounds take.
#ifndef KVARVE_TESTS_PERF_NVME_CACHE_ROWS_H_
#define KVARVE_TESTS_PERF_NVME_CACHE_ROWS_H_

#include "tests/perf/bench_table.h"

namespace kvarve::perf {

void RunNvmeCacheRows(BenchTable* table);

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_NVME_CACHE_ROWS_H_
