// The attention kernels as nvcc compiled them, executed with every access checked: against the
// definition, for all targets.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <set>
#include <span>
#include <string>
#include <vector>

#include "gpu/attention/attention_kernels_testing.h"
#include "gpu/attention/key_diff_testing.h"
#include "gpu/emulator/ptx/ptx_launch_testing.h"
#include "gpu/emulator/ptx/ptx_run.h"

namespace kvarve::ptx {
namespace {

using testing::Memory;

constexpr ElementType kTypes[] = {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16,
                                  ElementType::kFp8E4m3};
constexpr uint32_t kPageTokens[] = {8, 1, 16, 128};
constexpr uint32_t kGroups[] = {4, 1, 8};

class PtxAttention : public ::testing::TestWithParam<uint32_t> {};

// Each kernel on each target; layouts, page sizes and groups in pairs that change.
TEST_P(PtxAttention, AgreesWithTheDefinition) {
  const std::string target = kTargets[GetParam()];
  std::set<std::string> kernels;
  uint32_t turn = GetParam();
  for (const uint32_t dim : kAttentionDims) {
    for (const ElementType type : kTypes) {
      if (!testing::HasAttentionKernel(type, dim)) continue;
      const uint32_t page = kPageTokens[turn / 4 % 4];
      testing::CheckAttention({type, dim, testing::kAttentionLayouts[turn % 4], page,
                               kGroups[turn % 3], 10'000 + 100 * GetParam() + turn},
                              [&](const Launch& launch, const Memory& memory) {
                                kernels.insert(kKernels[launch.kernel].name);
                                return RunOnPtx(ModuleFor(target), launch, memory, turn % 2 == 1);
                              });
      ++turn;
      if (HasFailure()) return;
    }
  }
  uint32_t attention = 0;
  for (const KernelInfo& info : kKernels)
    attention +=
        info.family >= KernelFamily::kAttentionFp32 && info.family <= KernelFamily::kMergeStates;
  EXPECT_EQ(kernels.size(), attention);
}

INSTANTIATE_TEST_SUITE_P(Targets, PtxAttention, ::testing::Range<uint32_t>(0, std::size(kTargets)),
                         [](const auto& info) {
                           return std::string("sm_") + kTargets[info.param];
                         });

class PtxOddAttention : public ::testing::TestWithParam<uint32_t> {};

// On the two compilers' targets in turn.
TEST_P(PtxOddAttention, Holds) {
  const Module& module = ModuleFor(GetParam() % 2 == 0 ? "90" : "120");
  testing::OddCases()[GetParam()].check([&](const Launch& launch, const Memory& memory) {
    return RunOnPtx(module, launch, memory, false);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PtxOddAttention,
    ::testing::Range<uint32_t>(0, static_cast<uint32_t>(testing::OddCases().size())),
    [](const auto& info) { return testing::OddCases()[info.param].name; });

// Reading pages, warps ask for whole sectors; whoever reads rows one by one does not.
TEST(PtxAttentionTraffic, WastesFewSectors) {
  for (const char* target : {"80", "120"}) {
    for (const auto layout : {testing::AttentionLayout::kHnd, testing::AttentionLayout::kNhd}) {
      Traffic traffic;
      testing::CheckAttention(
          {ElementType::kBf16, 128, layout, 16, 4, /*seed=*/4},
          [&](const Launch& launch, const Memory& memory) {
            std::vector<Allocation> allocations;
            for (const auto& bytes : memory) {
              allocations.push_back({reinterpret_cast<uint64_t>(bytes.data()), bytes.size()});
            }
            const KernelInfo& info = kKernels[launch.kernel];
            Grid grid;
            grid.blocks = launch.grid, grid.threads = kKernelThreads;
            grid.measure_traffic = true;
            Runner runner(ModuleFor(target), allocations);
            const std::string fault =
                runner.Run(info.name, std::span(launch.params).first(info.params_bytes), grid);
            if (traffic.moved == 0) traffic = runner.traffic();
            return fault;
          });
      EXPECT_GT(traffic.moved, 0u);
      // .92 where the memory begins with a sector, as a device's does, .83 where it does not.
      EXPECT_GT(static_cast<double>(traffic.asked), 0.8 * static_cast<double>(traffic.moved));
    }
  }
}

TEST(PtxKeyDiff, AgreesWithTheDefinition) {
  uint64_t seed = 0;
  for (const char* target : kTargets) {
    const auto run = [&](const Launch& launch, const Memory& memory) {
      return RunOnPtx(ModuleFor(target), launch, memory, seed % 2 == 1);
    };
    for (const ElementType type : kTypes) {
      ++seed;
      testing::CheckKeyDiff(type, kAttentionDims[seed % std::size(kAttentionDims)], seed, run);
    }
    testing::CheckOddKeyDiff(run);
  }
}

// ---- Planted bugs (plant.py): which check must catch each, and by which words.

struct Planted {
  const char* bug;
  const char* odd_case;
  const char* words;
};
constexpr Planted kPlanted[] = {
    {"lse_in_base_2", "UnattendedStaysOut", "log-sum-exps are not the natural ones"},
    {"sink_per_split", "MergesOfParts", "the sink counts once"},
    {"sink_per_split", "SinksCountOnce", "log-sum-exps are not the natural ones"},
    {"fully_masked_split", "SplitOutsideTheWindow", "outputs are not the weighted means"},
    {"int32_page_offset", "FarPages", "outside of its pointer's allocation"},
    {"early_exit", "NothingAttended", "nothing is attended"},
};

std::string FailuresOf(const Module& module, const char* odd_case) {
  ::testing::TestPartResultArray failures;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    testing::CheckOddCase(odd_case, [&](const Launch& launch, const Memory& memory) {
      return RunOnPtx(module, launch, memory, false);
    });
  }
  std::string text;
  for (int i = 0; i < failures.size(); ++i)
    text += std::string(failures.GetTestPartResult(i).message()) + "\n";
  return text;
}

TEST(PtxPlantedAttention, EachBugIsCaughtByItsCheck) {
  const auto clean = LoadModule("planted_attention_none");
  ASSERT_TRUE(clean.ok()) << clean.status();
  for (const Planted& planted : kPlanted) {
    const auto module = LoadModule(std::string("planted_attention_") + planted.bug);
    ASSERT_TRUE(module.ok()) << planted.bug << ": " << module.status();
    EXPECT_EQ(FailuresOf(*clean, planted.odd_case), "") << planted.odd_case;
    const std::string failures = FailuresOf(*module, planted.odd_case);
    EXPECT_NE(failures.find(planted.words), std::string::npos)
        << planted.bug << " shows in " << planted.odd_case << " as: " << failures;
  }
}

}  // namespace
}  // namespace kvarve::ptx
