// The CPU's movers against the oracle that the kernels are tested by, and what the CPU device
// shares with other processes.
#include "gpu/device/cpu_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "gpu/device/cpu_kernels.h"
#include "gpu/kernels/kernels_testing.h"

namespace kvarve {
namespace {

std::string RunHere(const Launch& launch, const testing::Memory&) {
  const absl::Status status = RunOnCpu(launch);
  return status.ok() ? "" : std::string(status.message());
}

class EveryKernel : public ::testing::TestWithParam<uint32_t> {};

TEST_P(EveryKernel, EqualsTheOracleOrSaysThatItIsNotThere) {
  const KernelInfo& info = kKernels[GetParam()];
  for (const testing::PageLayout layout : testing::kPageLayouts) {
    for (const uint32_t page_tokens : {8u, 16u, 24u, 256u}) {
      const testing::KernelCase which{GetParam(), layout, page_tokens,
                                      GetParam() * 10 + page_tokens};
      if (info.family >= KernelFamily::kGatherFp8) {
        Launch launch;
        launch.kernel = GetParam();
        EXPECT_EQ(RunOnCpu(launch).code(), absl::StatusCode::kUnimplemented);
      } else {
        CheckKernel(which, RunHere);
      }
      if (HasFailure()) FAIL() << testing::NameOf(layout) << " " << page_tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryKernel, ::testing::Range<uint32_t>(0, kKernelCount),
                         [](const auto& info) { return std::string(kKernels[info.param].name); });

TEST(CpuDeviceTest, FarPagesAndManyPieces) {
  testing::CheckFarPages(RunHere);
  testing::CheckManyPieces(RunHere);
}

TEST(CpuDeviceTest, SharedMemoryIsTheSameOnBothSides) {
  const std::shared_ptr<ComputeDevice> device = NewCpuDevice();
  absl::StatusOr<ComputeDevice::Shareable> shared = device->AllocateShareable(8192);
  ASSERT_TRUE(shared.ok()) << shared.status();
  absl::StatusOr<DeviceMemory> other = device->Import(shared->export_fd.get(), 8192);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_NE(other->address(), shared->memory.address());
  auto* const mine = reinterpret_cast<uint64_t*>(shared->memory.address());
  const auto* const theirs = reinterpret_cast<const uint64_t*>(other->address());
  mine[1000] = 77;
  EXPECT_EQ(theirs[1000], 77u);
  EXPECT_EQ(device->Import(shared->export_fd.get(), 8193).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A timeline orders two streams of two threads: what is written before the word is read behind it.
TEST(CpuDeviceTest, ATimelineOrdersStreams) {
  const std::shared_ptr<ComputeDevice> device = NewCpuDevice();
  alignas(8) uint64_t word = 0;
  std::vector<uint64_t> from(1000), to(1000), last(1000);
  std::iota(from.begin(), from.end(), 1);
  auto address = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  std::thread writer([&] {
    const auto stream = device->NewStream().value();
    const CopyJob job{address(from.data()), address(to.data()), 8000};
    EXPECT_TRUE(stream->Copy({&job, 1}, CopyOrder::kStream).ok());
    EXPECT_TRUE(stream->WriteValue(address(&word), 5).ok());
  });
  const auto stream = device->NewStream().value();
  EXPECT_TRUE(stream->WaitValue(address(&word), 5).ok());
  const CopyJob job{address(to.data()), address(last.data()), 8000};
  EXPECT_TRUE(stream->Copy({&job, 1}, CopyOrder::kStream).ok());
  EXPECT_EQ(last, from);
  writer.join();
}

}  // namespace
}  // namespace kvarve
