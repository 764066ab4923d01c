// Every kernel of the table on the host shim: plain, and under the sanitizers of the build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gpu/emulator/shim.h"
#include "gpu/emulator/shim_launch.h"
#include "gpu/kernels/kernels_testing.h"
#include "gpu/kernels/packers_oracle_testing.h"

namespace kvarve::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST(KernelsTest, TheShimHasTheKernelsOfTheTableAndNoOther) {
  std::set<std::string> expected, there;
  for (const KernelInfo& info : kKernels) {
    EXPECT_TRUE(expected.insert(info.name).second) << info.name << " stands twice";
    const shim::KernelEntry* const entry = shim::FindKernel(info.name);
    ASSERT_NE(entry, nullptr) << info.name;
    EXPECT_EQ(entry->params_bytes, info.params_bytes) << info.name;
  }
  for (const shim::KernelEntry* entry : shim::Kernels()) there.insert(entry->name);
  EXPECT_EQ(there, expected);
}

class EveryKernel : public ::testing::TestWithParam<uint32_t> {};

TEST_P(EveryKernel, EqualsTheOracle) {
  uint64_t seed = 1;
  int turn = 0;
  for (const PageLayout layout : kPageLayouts) {
    for (const uint32_t page_tokens : {8u, 16u, 24u, 64u, 256u}) {
      // Sanitized runs take every layout and every size, not every pair of them.
      if (kSanitized && page_tokens != 8 && (turn + page_tokens / 8) % 4 != 0) continue;
      const auto order = static_cast<shim::Order>(turn++ % 3);
      CheckKernel({GetParam(), layout, page_tokens, seed},
                  [&](const Launch& launch, const Memory&) {
                    return shim::RunOnShim(launch, order, seed);
                  });
      ++seed;
      if (HasFailure()) return;
    }
  }
}

// The rest are attention's: gpu/attention/attention_kernels_test.cc runs them.
INSTANTIATE_TEST_SUITE_P(Table, EveryKernel,
                         ::testing::Range(0u, *FindKernelRow(KernelFamily::kAttentionFp32, 16)),
                         [](const auto& info) { return std::string(kKernels[info.param].name); });

TEST(KernelsTest, FarPages) {
  const RunLaunch run = [](const Launch& l, const Memory&) {
    return shim::RunOnShim(l, shim::Order::kForward, 1);
  };
  CheckFarPages(run);
  CheckFarPacks(run);
}

TEST(KernelsTest, ManyPieces) {
  CheckManyPieces(
      [](const Launch& l, const Memory&) { return shim::RunOnShim(l, shim::Order::kRandom, 1); });
}

// The oracle against values known otherwise: OCP's fp8 table, IEEE's halves, bf16's roundings.
TEST(PackersOracleTest, KnownValues) {
  EXPECT_EQ(NearestFp8(448), 0x7e);
  EXPECT_EQ(NearestFp8(1e9f), 0x7e);
  EXPECT_EQ(NearestFp8(-1e9f), 0xfe);
  EXPECT_EQ(NearestFp8(1), 0x38);
  EXPECT_EQ(NearestFp8(0.001953125f), 0x01);   // 2^-9, the smallest
  EXPECT_EQ(NearestFp8(0.0009765625f), 0x00);  // half of it: to even
  EXPECT_EQ(NearestFp8(17), 0x58);             // between 16 and 18: to even
  EXPECT_EQ(NearestFp8(19), 0x5a);
  std::byte two[2];
  StoreNumber(two, kF16, 65520);
  EXPECT_EQ(LoadNumber(two, kF16), HUGE_VALF);
  StoreNumber(two, kF16, 65519);
  EXPECT_EQ(LoadNumber(two, kF16), 65504);
  StoreNumber(two, kBf16, 1.00390625f);  // halfway between 1 and the next: to even
  EXPECT_EQ(LoadNumber(two, kBf16), 1);
  StoreNumber(two, kBf16, 1.01171875f);
  EXPECT_EQ(LoadNumber(two, kBf16), 1.015625f);
}

}  // namespace
}  // namespace kvarve::testing
