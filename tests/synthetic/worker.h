// The half of the synthetic engine that owns the pages, in a process of its own as in a real
// engine: it maps what the scheduler's process leased, computes the rest, and saves what was new.
// THREADS: one.  BLOCKS: Serve, until the scheduler's end of the socket closes.
#ifndef KVARVE_TESTS_SYNTHETIC_WORKER_H_
#define KVARVE_TESTS_SYNTHETIC_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace kvarve::synthetic {

// What the scheduler sends: one packet, this and then `grant_items` x local::GrantItem.
struct Job {
  uint64_t seed = 0;
  uint64_t tokens = 0;
  uint64_t incarnation = 0, lease = 0, block_bytes = 0;
  uint64_t grant_items = 0;  // leading blocks to load
};

// What the worker answers: once when the last page is there, once more when all saves are.
struct Outcome {
  uint64_t loaded_blocks = 0;  // 0 after a failed load: everything was computed
  uint64_t load_us = 0, compute_us = 0;
  uint64_t pages_crc = 0;  // of all pages in order; in the second answer, as saved_blocks is
  uint64_t saved_blocks = 0;
};

absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& endpoint,
                                                const std::string& engine_id, local::Role role);

// Returns when the other end of `socket` is closed.
absl::Status Serve(const std::string& endpoint, const std::string& engine_id, int socket);

}  // namespace kvarve::synthetic

#endif  // KVARVE_TESTS_SYNTHETIC_WORKER_H_
