// The list of planted bugs: which checker must catch each, and by which words. A wrong result alone
// does not count. Without its bug each kernel must run clean under the same checker.
#include "gpu/emulator/planted.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "gpu/emulator/shim.h"

namespace kvarve::shim {
namespace {

// Checkers: the shim's own rules in every build, ASan and UBSan in one, TSan in another.
enum class Checker { kShim, kAddress, kThread };
#if defined(__SANITIZE_THREAD__)
constexpr Checker kHere = Checker::kThread;
#elif defined(__SANITIZE_ADDRESS__)
constexpr Checker kHere = Checker::kAddress;
#else
constexpr Checker kHere = Checker::kShim;
#endif

struct Planted {
  const char* kernel;
  Checker owner;
  const char* words;
};
constexpr Planted kList[] = {
    {"kv_planted_divergent_barrier", Checker::kShim, "divergent __syncthreads"},
    {"kv_planted_wrong_mask", Checker::kShim, "does not name it"},
    {"kv_planted_lost_lanes", Checker::kShim, "wait for ever"},
    {"kv_planted_shared_overrun", Checker::kAddress, "use-after-poison"},
    {"kv_planted_global_overrun", Checker::kAddress, "heap-buffer-overflow"},
    {"kv_planted_misaligned", Checker::kAddress, "misaligned address"},
    {"kv_planted_index_overflow", Checker::kAddress, "signed integer overflow"},
    {"kv_planted_missing_barrier", Checker::kThread, "data race"},
    {"kv_planted_write_after_read", Checker::kThread, "data race"},
    {"kv_planted_race_between_blocks", Checker::kThread, "data race"},
    {"kv_planted_race_in_a_block", Checker::kThread, "data race"},
};

// In a process of its own: sanitizers end it, or say at its end what they saw.
[[noreturn]] void RunAndExit(const Planted& planted, bool bug) {
  const auto in = std::make_unique<float[]>(64), out = std::make_unique<float[]>(64);
  for (int i = 0; i < 64; ++i) in[i] = static_cast<float>(i);
  const PlantedParams params{reinterpret_cast<uint64_t>(in.get()),
                             reinterpret_cast<uint64_t>(out.get()), bug};
  const KernelEntry* const entry = FindKernel(planted.kernel);
  if (entry == nullptr) std::_Exit(99);
  Grid grid;
  grid.grid.x = std::string_view(planted.kernel) == "kv_planted_race_between_blocks" ? 8 : 1;
  grid.block.x = 64;
  const std::string fault = RunGrid(grid, [&] { entry->run(&params); });
  std::fprintf(stderr, "%s\n", fault.empty() ? "no fault" : fault.c_str());
  std::exit(fault.empty() ? 0 : 3);
}

TEST(PlantedTest, EachCheckerCatchesItsBugs) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  int mine = 0;
  for (const Planted& planted : kList) {
    EXPECT_EXIT(RunAndExit(planted, false), ::testing::ExitedWithCode(0), "^no fault")
        << planted.kernel;
    if (planted.owner != Checker::kShim && planted.owner != kHere) continue;
    ++mine;
    EXPECT_EXIT(
        RunAndExit(planted, true),
        [](int status) { return !(WIFEXITED(status) && WEXITSTATUS(status) == 0); }, planted.words)
        << planted.kernel;
  }
  EXPECT_GE(mine, 3);
}

TEST(PlantedTest, EveryKernelStandsInTheList) {
  EXPECT_EQ(Kernels().size(), sizeof(kList) / sizeof(kList[0]));
}

}  // namespace
}  // namespace kvarve::shim
