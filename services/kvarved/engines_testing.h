// What engines ask of a cache, for tests: requests that read what is there and put the rest.
// THREADS: one.  BLOCKS: never.
#ifndef KVARVE_SERVICES_KVARVED_ENGINES_TESTING_H_
#define KVARVE_SERVICES_KVARVED_ENGINES_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "storage/cache/cache.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {

// Engines of 24 sessions whose prompts grow, and of some prompts that come once.
class Engines {
 public:
  Engines(Cache* cache, uint64_t block_bytes) : cache_(*cache), block_(block_bytes) {
    NamespaceDescriptor descriptor = OpaqueNamespace("model", block_bytes);
    descriptor.tenant = "default";
    ns_ = *cache->OpenNamespace(descriptor);
  }
  void Run(int requests) {
    for (int n = 0; n < requests; ++n) Request(NextPrompt());
  }
  const std::vector<BlockKey>& last() const { return last_; }

 private:
  std::vector<BlockKey> NextPrompt() {
    if (random_.OneIn(6)) return KeyChain(1'000'000 + once_++, 3 + random_.Below(9));
    auto& [id, turn] = sessions_[random_.Below(sessions_.size())];
    if (turn == 8 || id == 0) {
      id = ++begun_;
      turn = 0;
    }
    ++turn;
    return KeyChain(id, 3 * turn);
  }
  void Request(const std::vector<BlockKey>& keys) {
    last_ = keys;
    const uint64_t request = ++requests_;
    cache_.Lookup(ns_.handle, keys);
    const AcquireResult got = cache_.Acquire(ns_.handle, keys, &account_, request);
    if (got.lease != 0) cache_.Release(got.lease, &account_);
    const size_t found = got.grants.size();
    if (found == keys.size()) return;
    PutRequest put;
    put.ns = ns_.handle;
    if (found > 0) put.parent = keys[found - 1];
    put.first_depth = static_cast<uint32_t>(found);
    put.keys = std::span(keys).subspan(found);
    const std::vector<const std::byte*> sources(put.keys.size(), block_.data());
    put.sources = sources;
    put.request_id = request;
    std::vector<PutResult> results(put.keys.size());
    EXPECT_EQ(cache_.Put(put, results), absl::OkStatus());
  }

  Cache& cache_;
  NamespaceInfo ns_;
  LeaseAccount account_;
  SeededRandom random_{17};
  std::vector<std::pair<uint64_t, size_t>> sessions_ = std::vector<std::pair<uint64_t, size_t>>(24);
  uint64_t once_ = 0, begun_ = 0, requests_ = 0;
  std::vector<BlockKey> last_;
  const std::vector<std::byte> block_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_SERVICES_KVARVED_ENGINES_TESTING_H_
