// What the suites do through libkvarve, with every error a KV_CHECK: a bench that misses measures
// nothing.
//
// THREADS: one owner.  BLOCKS: as the client does.
#ifndef KVARVE_TESTS_PERF_BENCH_CLIENT_H_
#define KVARVE_TESTS_PERF_BENCH_CLIENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "tests/perf/bench_daemon.h"

namespace kvarve::perf {

class BenchClient {
 public:
  static constexpr uint64_t kStagingBytes = 64ull << 20;

  // Connected; its staging's pages are present.
  static absl::StatusOr<std::unique_ptr<BenchClient>> Connect(const BenchDaemon& daemon);
  static absl::StatusOr<std::unique_ptr<BenchClient>> Connect(const std::string& endpoint,
                                                              const std::string& token_file,
                                                              const ClientTls& tls = {});

  Client* client() { return client_.get(); }
  // A namespace of opaque blocks of this size. `name` keeps namespaces of one size apart.
  ClientNamespace Open(uint64_t block_bytes, const char* name = "bench");

  // All of the staging in pieces of `bytes`. Pieces are given back with their puts.
  std::vector<Staging> StageAll(size_t bytes);
  // One chain, its first block a root, out of staging that is filled already.
  void PutStaged(ClientNamespace ns, std::span<const BlockKey> keys, Staging staging);
  // Stores the blocks of a chain, whatever bytes lie in the staging, in messages of at most
  // `keys_per_put`.
  void Fill(ClientNamespace ns, std::span<const BlockKey> keys, size_t keys_per_put);
  void Invalidate(ClientNamespace ns);
  // Returns when the daemon has done what was sent before.
  void Settle(ClientNamespace ns);

 private:
  BenchClient() = default;
  std::unique_ptr<Client> client_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BENCH_CLIENT_H_
