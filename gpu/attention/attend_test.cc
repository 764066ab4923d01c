// One call on both devices, CUDA by the fake driver, against the definition in double; parts of a
// context on both of them, merged; what is refused.
#include "gpu/attention/attend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "gpu/attention/attention_kernels_testing.h"
#include "gpu/device/cpu_device.h"
#include "gpu/device/cuda_device.h"
#include "gpu/emulator/fake_driver.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using testing::AttentionAnswer;
using testing::DeviceAnswer;
using ::testing::IsEmpty;
using testing::TestPages;

constexpr std::byte kModule[1] = {};
constexpr uint64_t kScratch = 1 << 20;
constexpr uint32_t kHeads = 2, kGroup = 4, kDim = 128;

// Pages on the CPU, and the same in a device's memory.
struct Rig {
  explicit Rig(bool cuda, ElementType type = ElementType::kBf16)
      : driver(cuda ? std::make_unique<FakeDriver>(FakeDriver::Options()) : nullptr),
        pages({.type = type, .pages = 12, .page_tokens = 16, .kv_heads = kHeads, .k_dim = kDim}, 3),
        table(testing::ShuffledTable(12, 4)) {
    device = cuda ? OpenCudaDevice(driver->table(), "", kModule).value() : NewCpuDevice();
    attender = Attender::Create(device, kScratch).value();
    on_device = pages.pages();
    if (!cuda) return;
    memory = device->Allocate(pages.memory().size()).value();
    std::memcpy(reinterpret_cast<void*>(memory.address()), pages.memory().data(),
                pages.memory().size());
    const auto moved = reinterpret_cast<std::byte*>(memory.address()) - pages.memory().data();
    on_device.k.base += moved;
    on_device.v.base += moved;
  }
  // Numbers of rows follow from the sequences.
  absl::Status Run(const AttentionOptions& options, const std::vector<AttentionSequence>& sequences,
                   const std::vector<float>& sinks, const std::vector<float>& q,
                   DeviceAnswer* answer) {
    answer->lse.assign(q.size() / kDim, 7);
    answer->out.assign(q.size(), 7);
    return attender->Run({.pages = on_device,
                          .options = options,
                          .sequences = sequences,
                          .sinks = sinks,
                          .q = q,
                          .out = answer->out,
                          .lse = answer->lse,
                          .threads = 2});
  }
  std::unique_ptr<FakeDriver> driver;  // of CUDA
  TestPages pages;
  std::vector<int32_t> table;
  std::shared_ptr<ComputeDevice> device;
  DeviceMemory memory;
  AttentionPages on_device;
  std::unique_ptr<Attender> attender;
};

AttentionOptions Options(uint32_t split_tokens) {
  return {.q_heads = kHeads * kGroup, .scale = 0.1f, .split_tokens = split_tokens};
}

class AttenderTest : public ::testing::TestWithParam<bool> {};

TEST_P(AttenderTest, AgreesWithTheDefinition) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kFp8E4m3}) {
    Rig rig(GetParam(), type);
    for (const uint32_t split : {0u, 64u}) {
      for (const bool with_sinks : {false, true}) {
        const std::vector<float> sinks(with_sinks ? kHeads * kGroup : 0, 0.5f);
        const std::vector<AttentionSequence> sequences = {
            {.table = rig.table, .kv_tokens = 180, .q_position = 177, .q_tokens = 3},
            {.table = rig.table, .kv_tokens = 0, .q_position = 0},
            {.table = rig.table, .kv_tokens = 1, .q_position = 0}};
        const auto q = testing::RandomQueries(5 * kHeads * kGroup * kDim, kF32, split);
        DeviceAnswer answer;
        ASSERT_EQ(rig.Run(Options(split), sequences, sinks, q, &answer), absl::OkStatus());
        testing::ExpectNear(answer,
                            testing::Attention(rig.pages, Options(split), sequences, sinks, q));
      }
    }
    if (GetParam()) {
      EXPECT_THAT(rig.driver->diagnostics(), IsEmpty());
    }
  }
}

TEST_P(AttenderTest, WhatDoesNotFitIsRefusedAndNothingIsWritten) {
  Rig rig(GetParam());
  const std::vector<AttentionSequence> one = {
      {.table = rig.table, .kv_tokens = 16, .q_position = 15}};
  DeviceAnswer answer;
  std::vector<float> q(kHeads * kGroup * kDim - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(rig.Run(Options(0), one, {}, q, &answer)));
  q.resize(kHeads * kGroup * kDim);
  EXPECT_TRUE(absl::IsInvalidArgument(rig.Run(Options(0), one, {1, 2}, q, &answer)));
  const std::vector<int32_t> bad = {12};
  EXPECT_TRUE(absl::IsInvalidArgument(
      rig.Run(Options(0), {{.table = bad, .kv_tokens = 16, .q_position = 15}}, {}, q, &answer)));
  EXPECT_THAT(answer.out, ::testing::Each(7));
  EXPECT_THAT(answer.lse, ::testing::Each(7));
  EXPECT_EQ(rig.Run(Options(0), one, {}, q, &answer), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Devices, AttenderTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "cuda" : "cpu"; });

TEST(AttenderOnCudaTest, ABatchThatIsLargerThanTheScratchIsRefused) {
  Rig rig(true);
  const std::vector<AttentionSequence> many(
      64, {.table = rig.table, .kv_tokens = 180, .q_position = 179});
  const std::vector<float> q(64 * kHeads * kGroup * kDim);
  DeviceAnswer answer;
  EXPECT_TRUE(absl::IsResourceExhausted(rig.Run(Options(16), many, {}, q, &answer)));
  const uint64_t allocations = rig.driver->calls("cuMemAlloc");
  EXPECT_EQ(rig.Run(Options(0), {many[0]}, {}, std::vector<float>(kHeads * kGroup * kDim), &answer),
            absl::OkStatus());
  EXPECT_EQ(rig.driver->calls("cuMemAlloc"), allocations) << "allocates in a step";
}

// The old part of a context in host memory, the recent one on the device: as if nothing were apart.
TEST(AttenderOnCudaTest, PartsOfTwoDevicesMerge) {
  Rig gpu(true), cpu(false);
  constexpr int64_t kOld = 112, kAll = 180;
  const auto q = testing::RandomQueries(kHeads * kGroup * kDim, kF32, 1);
  DeviceAnswer old, recent;
  ASSERT_TRUE(cpu.Run(Options(0), {{.table = cpu.table, .kv_tokens = kOld, .q_position = kAll - 1}},
                      {}, q, &old)
                  .ok());
  ASSERT_TRUE(gpu.Run(Options(0),
                      {{.table = std::span(gpu.table).subspan(kOld / 16),
                        .kv_tokens = kAll - kOld,
                        .kv_position = kOld,
                        .q_position = kAll - 1}},
                      {}, q, &recent)
                  .ok());
  DeviceAnswer merged = old;
  const AttentionState states[] = {{old.out.data(), old.lse.data()},
                                   {recent.out.data(), recent.lse.data()}};
  MergeStates(states, old.lse.size(), kDim, {}, merged.out.data(), merged.lse.data());
  const std::vector<AttentionSequence> whole = {
      {.table = gpu.table, .kv_tokens = kAll, .q_position = kAll - 1}};
  testing::ExpectNear(merged, testing::Attention(gpu.pages, Options(0), whole, {}, q));
}

TEST(AttenderOnCudaTest, EverythingIsGivenBack) {
  FakeDriver driver({});
  {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    ASSERT_TRUE(Attender::Create(device, kScratch).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(Attender::Create(device, 1ull << 40).status()));
  }
  EXPECT_EQ(driver.leaks(), "");
}

}  // namespace
}  // namespace kvarve
