// Goal: at most 96 bytes an entry all in, as the kernel counts them, at the worst point of a sweep.
#include "tests/perf/entry_memory.h"

#include "gtest/gtest.h"

namespace kvarve::perf {
namespace {

TEST(EntryMemory, StaysWithin96Bytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow counts as resident memory";
#endif
  const auto memory = MeasureEntryMemory(500'000, 1'000'000, 5'000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LE(memory->worst_bytes_an_entry, 96) << "at " << memory->worst_entries << " entries";
  EXPECT_GE(memory->worst_bytes_an_entry, 64) << "an entry is 64 bytes: this measured nothing";
}

}  // namespace
}  // namespace kvarve::perf
