// The least that any daemon does that grants blocks over a socket: a ping, and between its two
// halves finding the keys, each in one cache line, and copying out where their blocks lie. No
// leases, limits, touches, counters or checks, no time limits, no room for descriptors, one thread.
// What a real grant cannot be faster than.
//
// THREADS: one owner.
#ifndef KVARVE_TESTS_PERF_LEAST_GRANT_H_
#define KVARVE_TESTS_PERF_LEAST_GRANT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "storage/block/block_key.h"
#include "tests/perf/bare_ping.h"

namespace kvarve::perf {

// Sizes of a request and of a grant for `blocks` blocks.
size_t GrantRequestBytes(size_t blocks);
size_t GrantReplyBytes(size_t blocks);

// A ping for grants of `blocks` out of an index with keys key(0) to key(entries - 1).
std::unique_ptr<BarePing> MakeLeastGrant(uint64_t entries, size_t blocks,
                                         const std::function<BlockKey(uint64_t)>& key);
// Asks it for `keys`, which must be as many as it was made for.
double LeastGrantMicros(BarePing* ping, std::span<const BlockKey> keys);

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_LEAST_GRANT_H_
