#include "storage/base/freed_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace kvarve {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr size_t kBlockBytes = 1 << 20;
constexpr int kBlocks = 16;
constexpr int kRounds = 20;
const long kPages = kBlocks * static_cast<long>(kBlockBytes) / ::sysconf(_SC_PAGESIZE);

// Page faults of this process while it takes, writes and frees the blocks so many times.
long FaultsOf(int rounds) {
  rusage before, after;
  ::getrusage(RUSAGE_SELF, &before);
  for (int round = 0; round < rounds; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::malloc(kBlockBytes));
      std::memset(blocks.back(), round, kBlockBytes);
    }
    while (!blocks.empty()) {
      std::free(blocks.back());
      blocks.pop_back();
    }
  }
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(FreedMemory, IsKeptForTheNextAllocation) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  for (const char* name : {"GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_",
                           "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}) {
    if (std::getenv(name) != nullptr) GTEST_SKIP() << name << " decides";
  }
  FaultsOf(1);
  ASSERT_GT(FaultsOf(kRounds), kRounds * kPages / 2) << "glibc gives it back by itself no longer";
  KeepFreedMemory();
  FaultsOf(1);
  EXPECT_LT(FaultsOf(kRounds), kPages / 2);
  std::thread([] {  // whose heap is another
    FaultsOf(1);
    EXPECT_LT(FaultsOf(kRounds), kPages / 2);
  })
      .join();
}

}  // namespace
}  // namespace kvarve
