// What nvcc made of the kernels, executed: every entry against the oracle, with every access
// checked, for the oldest target and the newest (they go through two different compilers). And the
// checks themselves, on small texts with planted bugs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "gpu/emulator/planted.h"
#include "gpu/emulator/ptx/ptx_launch_testing.h"
#include "gpu/emulator/ptx/ptx_module.h"
#include "gpu/emulator/ptx/ptx_run.h"
#include "gpu/kernels/kernels_testing.h"

namespace kvarve::ptx {
namespace {

using testing::CheckKernel;
using ::testing::HasSubstr;
using testing::Memory;
using testing::PageLayout;

TEST(PtxTest, EachTargetHasTheKernelsOfTheTableAndNoOther) {
  std::set<std::string> expected;
  for (const KernelInfo& info : kKernels) expected.insert(info.name);
  for (const char* target : kTargets) {
    std::set<std::string> there;
    for (const auto& [name, entry] : ModuleFor(target).entries) there.insert(name);
    EXPECT_EQ(there, expected) << target;
    EXPECT_EQ(ModuleFor(target).target, std::string("sm_") + target);
  }
}

class EveryKernel : public ::testing::TestWithParam<uint32_t> {};

// Each layout and each page size at least once a kernel and target, in pairs that change.
TEST_P(EveryKernel, EqualsTheOracle) {
  constexpr uint32_t kPageTokens[] = {8, 16, 24, 64, 256};
  for (int target = 0; target < 4; ++target) {
    const Module& module = ModuleFor(kTargets[target]);
    for (uint32_t i = 0; i < 5; ++i) {
      const auto layout = testing::kPageLayouts[i];
      const uint32_t page_tokens = kPageTokens[(i + GetParam() + target) % 5];
      const uint64_t seed = 1000 * target + 10 * GetParam() + i;
      CheckKernel({GetParam(), layout, page_tokens, seed},
                  [&](const Launch& launch, const Memory& memory) {
                    return RunOnPtx(module, launch, memory, i % 2 == 1);
                  });
      if (HasFailure()) FAIL() << "sm_" << kTargets[target];
    }
  }
}

// The rest are attention's: ptx_attention_test.cc runs them.
INSTANTIATE_TEST_SUITE_P(Table, EveryKernel,
                         ::testing::Range(0u, *FindKernelRow(KernelFamily::kAttentionFp32, 16)),
                         [](const auto& info) { return std::string(kKernels[info.param].name); });

TEST(PtxTest, FarPagesAndManyPieces) {
  for (const char* target : {"80", "120"}) {
    auto run = [&](const Launch& launch, const Memory& memory) {
      return RunOnPtx(ModuleFor(target), launch, memory, false);
    };
    testing::CheckFarPages(run);
    testing::CheckFarPacks(run);
    testing::CheckManyPieces(run);
  }
}

// ---- Planted bugs: each in a text of its own, each with the words that must name it.

std::string Text(const std::string& body) {
  return ".version 9.5\n.target sm_90\n.address_size 64\n.visible .entry k(\n .param .align 8 .b8 "
         "k_param_0[24]\n)\n"
         "{\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.shared .align 16 .b8 "
         "buffer[32];\n"
         "ld.param.u64 %rd1, [k_param_0];\nld.param.u64 %rd2, [k_param_0+8];\nmov.u32 %r1, "
         "%tid.x;\n" +
         body + "\nret;\n}\n";
}

// Two allocations side by side in one buffer: in (64 bytes) and out (64 bytes).
struct Fixture {
  alignas(16) uint32_t memory[32] = {};
  std::string Run(const std::string& body, uint32_t threads = 1, uint64_t step_limit = 1 << 20) {
    const absl::StatusOr<Module> module = ParseModule(Text(body));
    if (!module.ok()) return std::string(module.status().message());
    const Allocation allocations[] = {{Address(0), 64}, {Address(16), 64}};
    const uint64_t params[3] = {Address(0), Address(16), 0};
    Grid grid;
    grid.threads = threads, grid.step_limit = step_limit;
    return Runner(*module, allocations).Run("k", std::as_bytes(std::span(params)), grid);
  }
  uint64_t Address(int word) const { return reinterpret_cast<uint64_t>(memory + word); }
};

TEST(PtxTest, CatchesPlantedBugs) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"ld.global.u32 %r2, [%rd1+60];\nst.global.u32 [%rd2], %r2;", ""},
      {"ld.global.u32 %r2, [%rd1+64];",
       "a load of 4 bytes outside of its pointer's allocation, inside of another"},
      {"st.global.u32 [%rd2+64], %r1;",
       "a store of 4 bytes outside of its pointer's allocation at"},
      {"add.s64 %rd3, %rd1, 48;\nld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%rd3];", ""},
      {"add.s64 %rd3, %rd1, 52;\nld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%rd3];",
       "misaligned access of 16 bytes"},
      {"mov.u64 %rd3, 4096;\nld.global.u32 %r2, [%rd3];", "which is no allocation's address"},
      {"ld.param.u64 %rd3, [k_param_0+24];", "outside of the parameters"},
      {"mov.u32 %r3, buffer;\nld.shared.u32 %r2, [%r3+4];", "shared memory that nobody wrote"},
      {"st.shared.u32 [buffer+4], %r1;\nld.shared.u32 %r2, [buffer+4];", ""},
      {"st.shared.u32 [buffer+32], %r1;", "outside of shared memory"},
      {"div.u32 %r2, %r1, %r1;", "division by zero"},
      {"$again:\nbra $again;", "step limit"},
      {"tanh.approx.f32 %f1, %f2;", "no support for: tanh.approx.f32"},
      {"ld.volatile.global.u32 %r2, [%rd1];", "no support for: ld.volatile"},
      {"add.cc.u32 %r2, %r1, %r1;", "no support for: add.cc.u32"},
      {"mov.u32 %r2, %laneid.x;", "no support for register"},
      {"bra $nowhere;", "no label $nowhere"},
      {"bar.warp.sync -1;", ""},
      {"bar.warp.sync 255;", "a barrier of other than a whole warp"},
      {"fma.rz.f32 %f1, %f2, %f2, %f2;", "no support for: fma.rz.f32"},
      {"ex2.approx.f32 %f1, %f2;", "no support for: ex2.approx.f32"},
      // fp8 that does not saturate is no PTX at all.
      {"cvt.rn.e4m3x2.f32 %rs1, %f1, %f1;", "no support for: cvt.rn.e4m3x2.f32"},
      {"cp.async.cg.shared.global [buffer], [%rd1], 16;\ncp.async.commit_group;\n"
       "cp.async.wait_group 0;\nld.shared.u32 %r2, [buffer+12];",
       ""},
      {"cp.async.cg.shared.global [buffer], [%rd1], 16;\ncp.async.commit_group;\n"
       "cp.async.ca.shared.global [buffer+16], [%rd1+16], 4;\ncp.async.commit_group;\n"
       "cp.async.wait_group 1;\nld.shared.u32 %r2, [buffer+12];\nld.shared.u32 %r2, [buffer+16];",
       "ld.shared.u32 %r2, [buffer+16]"},
      {"cp.async.cg.shared.global [buffer], [%rd1], 8;", "an asynchronous copy of 8 bytes"},
      {"cp.async.ca.shared.global [buffer], [%rd1+4], 8;", "misaligned access of 8 bytes"},
      {"cp.async.ca.shared.global [buffer], [%rd1+64], 4;", "outside of its pointer's allocation"},
      {"cp.async.ca.shared.global [buffer+32], [%rd1], 4;", "outside of shared memory"},
      {"cp.async.bulk.shared.global [buffer], [%rd1], 16;", "no support for: cp.async"},
  };
  for (const auto& [body, words] : cases) {
    const std::string fault = Fixture().Run(body);
    if (*words == 0) {
      EXPECT_EQ(fault, "") << body;
    } else {
      EXPECT_THAT(fault, HasSubstr(words)) << body;
    }
  }
  // Half of the warp waits at a barrier, the other half at a shuffle, for ever.
  EXPECT_THAT(Fixture().Run("setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $half;\nbar.sync 0;\n$half:\n"
                            "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;",
                            32),
              HasSubstr("wait for ever"));
}

// What nvcc made of kernels with a bug in code that only it sees. The words must name it; where no
// checker owns the class (a conversion's arithmetic), the result must be wrong.
TEST(PtxTest, CatchesPlantedBugsInCompiledCode) {
  struct Planted {
    const char* kernel;
    uint32_t bug;
    const char* words;
  };
  const Planted list[] = {
      {"kv_planted_cp_async", 1, "reads shared memory that nobody wrote"},  // wrong size
      {"kv_planted_cp_async", 2, "which is no allocation's address"},       // swapped operands
      {"kv_planted_cp_async", 3, "that an asynchronous copy has yet to write"},
      {"kv_planted_release", 2, "which is no allocation's address"},  // swapped operands
      {"kv_planted_wide_load", 1, "misaligned access of 16 bytes"},
      {"kv_planted_own_allocation", 1, "outside of its pointer's allocation, inside of another"},
      {"kv_planted_fp8", 1, ""},
  };
  for (const char* target : kTargets) {
    const absl::StatusOr<Module> module = LoadModule(std::string("planted_") + target);
    ASSERT_TRUE(module.ok()) << target << ": " << module.status();
    for (const Planted& planted : list) {
      SCOPED_TRACE(std::string(planted.kernel) + " sm_" + target);
      alignas(16) float memory[128];
      auto run = [&](uint32_t bug) {
        for (int i = 0; i < 64; ++i) memory[i] = static_cast<float>(10 * i), memory[64 + i] = 0;
        const auto in = reinterpret_cast<uint64_t>(memory), out = in + 256;
        const Allocation allocations[] = {{in, 256}, {out, 256}};
        const PlantedParams params{in, out, bug};
        Grid grid;
        grid.threads = std::string_view(planted.kernel) == "kv_planted_cp_async" ? 16 : 64;
        return Runner(*module, allocations)
            .Run(planted.kernel, std::as_bytes(std::span(&params, 1)), grid);
      };
      EXPECT_EQ(run(0), "");
      float clean[64];
      std::copy_n(memory + 64, 64, clean);
      const std::string fault = run(planted.bug);
      if (*planted.words != 0) {
        EXPECT_THAT(fault, HasSubstr(planted.words));
      } else {
        EXPECT_EQ(fault, "");
        EXPECT_NE(std::memcmp(clean, memory + 64, sizeof clean), 0);
      }
    }
  }
}

// A few instructions whose corners differ from C++'s.
TEST(PtxTest, Arithmetic) {
  const std::pair<const char*, uint32_t> cases[] = {
      {"mov.u32 %r2, 1;\nshl.b32 %r3, %r2, 32;", 0},
      {"mov.u32 %r2, -8;\nshr.s32 %r3, %r2, 40;", 0xffffffff},
      {"mov.u32 %r2, -8;\nshr.u32 %r3, %r2, 1;", 0x7ffffffc},
      {"mov.u32 %r2, 0x12345678;\nprmt.b32 %r3, %r2, 0, 0x0123;", 0x78563412},
      {"mov.u32 %r2, 5;\nbfi.b32 %r3, %r2, 0xff, 4, 3;", 0xdf},
      {"mov.f32 %f1, 0f7FC00000;\nsetp.lt.f32 %p1, %f1, 0f3F800000;\nselp.u32 %r3, 1, 2, %p1;", 2},
      {"mov.f32 %f1, 0f7FC00000;\nsetp.leu.f32 %p1, %f1, 0f3F800000;\nselp.u32 %r3, 1, 2, %p1;", 1},
      {"mov.f32 %f1, 0f7FC00000;\nmax.f32 %r3, %f1, 0f3F800000;", 0x3f800000},
      {"mov.u32 %r2, 0x80000001;\nmul.wide.u32 %rd3, %r2, 4;\nshr.u64 %rd4, %rd3, 32;\ncvt.u32.u64 "
       "%r3, %rd4;",
       2},
      {"mov.f32 %f1, 0f44800000;\ncvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f1;\ncvt.u32.u16 %r3, "
       "%rs1;",
       0x7e7e},
      // (1 + 2^-12)^2 - 1: what two roundings lose, the last bit is kept.
      {"mov.f32 %f1, 0f3F800800;\nfma.rn.f32 %r3, %f1, %f1, 0fBF800000;", 0x3a000400},
      {"mov.f32 %f1, 0fBF800000;\ncopysign.f32 %r3, %f1, 0f40400000;", 0xc0400000},
      {"mov.f32 %f1, 0f40800000;\nrcp.rn.f32 %r3, %f1;", 0x3e800000},
      {"mov.f32 %f1, 0f41100000;\nsqrt.rn.f32 %r3, %f1;", 0x40400000},
      {"mov.f32 %f1, 0f40400000;\nex2.approx.ftz.f32 %r3, %f1;", 0x41000000},
      {"mov.f32 %f1, 0fFF800000;\nex2.approx.ftz.f32 %r3, %f1;", 0},
      {"mov.f32 %f1, 0f41000000;\nlg2.approx.ftz.f32 %r3, %f1;", 0x40400000},
      {"mov.f32 %f1, 0f00000001;\nlg2.approx.ftz.f32 %r3, %f1;", 0xff800000},
      {"mov.f32 %f1, 0f477FF000;\ncvt.rn.f16.f32 %rs1, %f1;\ncvt.u32.u16 %r3, %rs1;", 0x7c00},
  };
  for (const auto& [body, expected] : cases) {
    Fixture fixture;
    EXPECT_EQ(fixture.Run(std::string(body) + "\nst.global.u32 [%rd2], %r3;"), "") << body;
    EXPECT_EQ(fixture.memory[16], expected) << body;
  }
}

// The share of the moved sectors' bytes that was asked for.
TEST(PtxTest, TrafficCountsSectors) {
  const absl::StatusOr<Module> module = ParseModule(
      Text("mul.wide.u32 %rd3, %r1, 32;\nadd.s64 %rd4, %rd1, %rd3;\nld.global.u32 %r2, [%rd4];"));
  ASSERT_TRUE(module.ok()) << module.status();
  std::vector<std::byte> memory(32 * 32 + 32);
  const auto base = (reinterpret_cast<uint64_t>(memory.data()) + 31) / 32 * 32;
  const Allocation allocations[] = {{base, 32 * 32}};
  const uint64_t params[3] = {base, base, 0};
  Grid grid;
  grid.threads = 32, grid.measure_traffic = true;
  Runner runner(*module, allocations);
  ASSERT_EQ(runner.Run("k", std::as_bytes(std::span(params)), grid), "");
  EXPECT_EQ(runner.traffic().asked, 32u * 4);
  EXPECT_EQ(runner.traffic().moved, 32u * 32);
}

// The widest mover asks for what it moves: whole sectors of pages, on the oldest and newest target.
TEST(PtxTest, TheWidestGatherWastesFewSectors) {
  for (const char* target : {"80", "120"}) {
    Traffic traffic;
    CheckKernel({*FindKernelRow(KernelFamily::kGather, 16), PageLayout::kHnd, 64, 5},
                [&](const Launch& launch, const Memory& memory) {
                  std::vector<Allocation> allocations;
                  for (const auto& bytes : memory)
                    allocations.push_back({reinterpret_cast<uint64_t>(bytes.data()), bytes.size()});
                  Grid grid;
                  grid.blocks = launch.grid, grid.threads = kKernelThreads;
                  grid.measure_traffic = true;
                  Runner runner(ModuleFor(target), allocations);
                  const std::string fault = runner.Run(kKernels[launch.kernel].name,
                                                       std::span(launch.params).first(64), grid);
                  traffic = runner.traffic();
                  return fault;
                });
    EXPECT_GT(static_cast<double>(traffic.asked) / traffic.moved, 0.9) << target;
  }
}

}  // namespace
}  // namespace kvarve::ptx
