// The data plane and the cache as in kvarved, except that the bytes of blocks are not copied: a
// bench of the index then needs memory for 8,000,000 entries but not for 8,000,000 blocks. The
// linker sends the cache's calls of CopyAndChecksum to the function below (see CMakeLists.txt);
// everything else is the product's code.
//   kvarve_sparse_daemon SOCKET CAPACITY_BYTES
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "services/local/local_server.h"
#include "storage/cache/cache.h"

// The name that the linker's --wrap gives to kvarve::CopyAndChecksum(void*, const void*, size_t,
// uint64_t).
uint64_t CopyNothing(void* dst, const void* src, size_t size,
                     uint64_t seed) asm("__wrap__ZN6kvarve15CopyAndChecksumEPvPKvmm");
uint64_t CopyNothing(void* /*dst*/, const void* /*src*/, size_t /*size*/, uint64_t seed) {
  return seed;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigprocmask(SIG_BLOCK, &stop, nullptr);  // also in the threads made below

  kvarve::CacheOptions cache_options;
  cache_options.arena.capacity_bytes = std::strtoull(argv[2], nullptr, 10);
  cache_options.arena.huge_pages = false;
  cache_options.arena.prefault = false;
  cache_options.arena.hold_dropped = true;
  cache_options.policy = "hazard";  // as kvarved
  auto cache = kvarve::Cache::Create(cache_options);
  if (!cache.ok()) {
    std::fprintf(stderr, "%s\n", cache.status().ToString().c_str());
    return 1;
  }
  kvarve::LocalServerOptions options;
  options.socket_path = argv[1];
  auto server = kvarve::LocalServer::Start(options, cache->get());
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  int signal = 0;
  sigwait(&stop, &signal);
  return 0;
}
