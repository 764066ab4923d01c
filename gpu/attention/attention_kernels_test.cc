// Every attention kernel of the table on the host shim: plain, and under the sanitizers of the
// build.
#include "gpu/attention/attention_kernels_testing.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gpu/emulator/shim_launch.h"

namespace kvarve::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr ElementType kTypes[] = {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16,
                                  ElementType::kFp8E4m3};
constexpr uint32_t kPageTokens[] = {1, 8, 16, 128};
constexpr uint32_t kGroups[] = {1, 4, 8};

class EveryAttention : public ::testing::TestWithParam<uint32_t> {};

// All types, layouts, page sizes and groups for a dimension; sanitized runs take a part of them in
// which every two meet.
TEST_P(EveryAttention, AgreesWithTheDefinition) {
  const uint32_t dim = kAttentionDims[GetParam()];
  std::set<std::string> kernels;
  uint64_t seed = 1000 * GetParam();
  for (uint32_t t = 0; t < std::size(kTypes); ++t) {
    if (!HasAttentionKernel(kTypes[t], dim)) continue;
    for (uint32_t l = 0; l < std::size(kAttentionLayouts); ++l) {
      for (uint32_t p = 0; p < std::size(kPageTokens); ++p) {
        for (uint32_t g = 0; g < 3; ++g) {
          ++seed;
          if (kSanitized && (t + l + p) % 4 != 0 && (p + 2 * l + g) % 8 != 0) continue;
          if (kSanitized && g != (t + l) % 3) continue;
          const auto order = static_cast<shim::Order>(seed % 3);
          CheckAttention({kTypes[t], dim, kAttentionLayouts[l], kPageTokens[p], kGroups[g], seed},
                         [&](const Launch& launch, const Memory&) {
                           kernels.insert(kKernels[launch.kernel].name);
                           return shim::RunOnShim(launch, order, seed);
                         });
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GE(kernels.size(), dim == kMlaDim ? 2u : 5u);  // of each type, and the merging one
}

INSTANTIATE_TEST_SUITE_P(Dims, EveryAttention,
                         ::testing::Range<uint32_t>(0, std::size(kAttentionDims)),
                         [](const auto& info) {
                           return std::to_string(kAttentionDims[info.param]);
                         });

class OddAttention : public ::testing::TestWithParam<uint32_t> {};

TEST_P(OddAttention, Holds) {
  const OddCase& odd = OddCases()[GetParam()];
  const bool is_long = std::string(odd.name) == "SplitsMergeToTheUndivided";
  for (const auto order : {shim::Order::kForward, shim::Order::kRandom}) {
    if (kSanitized && is_long && order == shim::Order::kRandom) continue;
    odd.check(
        [&](const Launch& launch, const Memory&) { return shim::RunOnShim(launch, order, 7); });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, OddAttention,
                         ::testing::Range<uint32_t>(0, static_cast<uint32_t>(OddCases().size())),
                         [](const auto& info) { return OddCases()[info.param].name; });

TEST(AttentionKernelsTest, LongContext) {
  if (kSanitized) return;  // the same code as SplitsMergeToTheUndivided, for minutes
  CheckLongContext([](const Launch& launch, const Memory&) {
    return shim::RunOnShim(launch, shim::Order::kForward, 1);
  });
}

}  // namespace
}  // namespace kvarve::testing
