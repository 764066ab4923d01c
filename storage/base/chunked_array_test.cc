// Goal: a ChunkedArray is a vector whose elements stay where they are. Method: a std::vector as
// oracle under random pushes, pops and resizes; addresses are compared before and after growth.
#include "storage/base/chunked_array.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvarve {
namespace {

constexpr size_t kSmall = 1024;                          // one page of uint32_t
constexpr size_t kHuge = (2u << 20) / sizeof(uint64_t);  // one huge page

TEST(ChunkedArray, IsAVector) {
  ChunkedArray<uint32_t, kSmall> array;
  std::vector<uint32_t> oracle;
  uint64_t state = 1;
  for (uint32_t step = 0; step < 20'000; ++step) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t what = state >> 60;
    if (what == 0) {
      const size_t size = (state >> 20) % 9000;
      array.Resize(size);
      oracle.resize(size);
    } else if (what < 6 && !oracle.empty()) {
      array.PopBack();
      oracle.pop_back();
    } else {
      array.PushBack(step);
      oracle.push_back(step);
    }
    ASSERT_EQ(array.size(), oracle.size());
    if (step % 50 != 0) continue;
    for (size_t i = 0; i < oracle.size(); ++i) ASSERT_EQ(array[i], oracle[i]) << i;
  }
}

TEST(ChunkedArray, ElementsStayWhereTheyAre) {
  ChunkedArray<uint64_t, kHuge, true> array;
  array.PushBack(7);
  const uint64_t* const first = &array[0];
  array.Resize(kHuge + 1);
  array[kHuge] = 8;
  const uint64_t* const in_second = &array[kHuge];
  EXPECT_EQ(reinterpret_cast<uintptr_t>(in_second) % (2u << 20), 0u);
  for (size_t i = 0; i < 5 * kHuge; ++i) array.PushBack(i);
  EXPECT_EQ(&array[0], first);
  EXPECT_EQ(&array[kHuge], in_second);
  EXPECT_EQ(*first, 7u);
  EXPECT_EQ(*in_second, 8u);
  EXPECT_EQ(array[kHuge + 1 + 3 * kHuge], 3 * kHuge);
  for (size_t i = 0; i < 5 * kHuge; ++i) ASSERT_EQ(array[kHuge + 1 + i], i);

  ChunkedArray<uint64_t, kHuge, true> other;
  other.PushBack(1);
  other = std::move(array);
  EXPECT_EQ(&other[0], first);
  EXPECT_EQ(other.size(), 6 * kHuge + 1);
}

TEST(ChunkedArray, MemoryFollowsUse) {
  ChunkedArray<uint32_t, kSmall> array;
  EXPECT_EQ(array.MemoryBytes(), 0u);
  array.Resize(10 * kSmall);
  EXPECT_GE(array.MemoryBytes(), 10 * 4096u);
  EXPECT_LT(array.MemoryBytes(), 11 * 4096u);
  array.Resize(1);
  EXPECT_LT(array.MemoryBytes(), 3 * 4096u);  // one in use, one spare, the directory
}

}  // namespace
}  // namespace kvarve
