// What the shim itself promises: CUDA's order where CUDA gives one, none where it gives none, and a
// report for what CUDA forbids. Kernels with planted faults are in planted.cc.
#include "gpu/emulator/shim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvarve::shim {
namespace {

using ::testing::HasSubstr;

Grid Of(unsigned blocks, unsigned threads, Order order) {
  Grid grid;
  grid.grid.x = blocks, grid.block.x = threads, grid.order = order;
  return grid;
}

TEST(ShimTest, RunsEachThreadOnceWithItsOwnIndices) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    Grid grid = Of(3, 4, order);
    grid.grid.y = 2, grid.block.z = 2;
    std::vector<int> ran(3 * 2 * 8);
    ASSERT_EQ(
        RunGrid(grid,
                [&] { ++ran[(blockIdx.y * 3 + blockIdx.x) * 8 + threadIdx.z * 4 + threadIdx.x]; }),
        "");
    EXPECT_EQ(ran, std::vector<int>(ran.size(), 1));
  }
}

TEST(ShimTest, ABarrierShowsWhatAllWroteBefore) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    std::vector<int> there(100), sums(100);
    ASSERT_EQ(RunGrid(Of(1, 100, order),
                      [&] {
                        there[threadIdx.x] = 1;
                        __syncthreads();
                        for (const int i : there) sums[threadIdx.x] += i;
                      }),
              "");
    EXPECT_EQ(sums, std::vector<int>(100, 100));
  }
}

TEST(ShimTest, ShufflesUnderDisjointMasksAndInDivergedWarps) {
  std::vector<float> got(64);
  ASSERT_EQ(RunGrid(Of(1, 64, Order::kRandom),
                    [&] {
                      const unsigned t = threadIdx.x;
                      if (t >= 32) {
                        got[t] = __shfl_xor_sync(~0u, static_cast<float>(t), 16);
                      } else if (t < 8) {
                        got[t] = __shfl_xor_sync(0xffu, static_cast<float>(t), 1);
                      } else {
                        got[t] = __shfl_xor_sync(0xffffff00u, static_cast<float>(t), 1);
                      }
                    }),
            "");
  for (unsigned t = 0; t < 64; ++t) EXPECT_EQ(got[t], t >= 32 ? t ^ 16 : t ^ 1) << t;
}

TEST(ShimTest, AThreadThatEndedHoldsNobodyUp) {
  int passed = 0;
  ASSERT_EQ(RunGrid(Of(1, 64, Order::kForward),
                    [&] {
                      if (threadIdx.x % 2 == 0) return;
                      __syncthreads();
                      __syncwarp();
                      if (threadIdx.x == 33) ++passed;
                    }),
            "");
  EXPECT_EQ(passed, 1);
}

TEST(ShimTest, SharedMemoryIsFreshInEachBlock) {
  std::vector<int> first(4);
  ASSERT_EQ(RunGrid(Of(4, 2, Order::kForward),
                    [&] {
                      static char key;
                      auto* const shared = static_cast<int*>(StaticShared(&key, sizeof(int)));
                      if (threadIdx.x != 0) return;
                      first[blockIdx.x] = *shared;
                      *shared = 7;
                    }),
            "");
  EXPECT_EQ(first, std::vector<int>(4, -1));
}

TEST(ShimTest, ReportsWhatCudaForbids) {
  // Named outside of the macros, in which all lines are one.
  auto fault = [](auto body) { return RunGrid(Of(1, 64, Order::kForward), body); };
  auto two_barriers = [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  EXPECT_THAT(fault(two_barriers), HasSubstr("divergent __syncthreads"));
  auto wrong_mask = [] { __syncwarp(1); };
  EXPECT_THAT(fault(wrong_mask), HasSubstr("does not name it"));
  auto two_operations = [] {
    if (threadIdx.x % 2 == 0) {
      __syncwarp();
    } else {
      __shfl_xor_sync(~0u, 0, 1);
    }
  };
  EXPECT_THAT(fault(two_operations), HasSubstr("divergent warp operations"));
  auto half_waits = [] {
    if (threadIdx.x < 48) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  };
  EXPECT_THAT(fault(half_waits), HasSubstr("wait for ever: 48 at __syncthreads"));
  auto absent_lane = [] {
    if (threadIdx.x < 16) __shfl_xor_sync(0xffff, 0, 16);
  };
  EXPECT_THAT(fault(absent_lane), HasSubstr("takes no part"));
  Grid grid = Of(1, 1, Order::kForward);
  grid.grid.y = 65536;
  EXPECT_THAT(RunGrid(grid, [] {}), HasSubstr("beyond CUDA's"));
  EXPECT_THAT(RunGrid(Of(1, 1025, Order::kForward), [] {}), HasSubstr("too many threads"));
}

TEST(ShimTest, AnAsynchronousCopyIsThereAfterItsWaitAndNotBefore) {
  alignas(16) const int source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  int before = 0, first = 0, second_early = 0, second = 0;
  ASSERT_EQ(RunGrid(Of(1, 1, Order::kForward),
                    [&] {
                      static char key;
                      auto* const shared = static_cast<int*>(StaticShared(&key, 32));
                      CopyAsync(shared, source, 16);
                      CopyAsyncCommit();
                      CopyAsync(shared + 4, source + 4, 16);
                      CopyAsyncCommit();
                      before = shared[0];
                      CopyAsyncWait(1);
                      first = shared[0], second_early = shared[4];
                      CopyAsyncWait(0);
                      second = shared[4];
                    }),
            "");
  EXPECT_EQ(before, -1);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second_early, -1);
  EXPECT_EQ(second, 5);
}

}  // namespace
}  // namespace kvarve::shim
