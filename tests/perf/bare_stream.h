// The bare loop behind runs over gRPC: a process that streams raw slices out of memory of its own,
// or takes them in, and does nothing else; and the client's side of it. Both copy what comes once
// and compute its CRC-64, as a reader of blocks must.
//
// THREADS: one owner.  BLOCKS: as long as the transfer takes.
#ifndef KVARVE_TESTS_PERF_BARE_STREAM_H_
#define KVARVE_TESTS_PERF_BARE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kvarve::perf {

// CPU time that a process has used, all threads, in seconds.
double ProcessCpuSeconds(int pid);

class BareStream {
 public:
  static constexpr size_t kServerBytes = 256ull << 20;  // of memory that blocks come from or go to

  // kvarve_bare_stream, as it is built beside this binary, with its pages present. `tls`: a folder
  // of ca.pem, server.pem, server.key, client.pem, client.key, for mutual TLS; empty: plaintext.
  static absl::StatusOr<std::unique_ptr<BareStream>> Start(const std::string& tls = "");
  virtual ~BareStream() = default;

  virtual int pid() const = 0;
  // Messages of `block_bytes` each, `count` of them; into or out of `memory`, from its start again
  // when its end is reached. REQUIRES: block_bytes <= memory.size().
  virtual void Read(size_t block_bytes, size_t count, std::span<std::byte> memory) = 0;
  virtual void Write(size_t block_bytes, size_t count, std::span<const std::byte> memory) = 0;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BARE_STREAM_H_
