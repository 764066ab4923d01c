// Every mover and packer of the table launched on a CUDA device, over the fake driver: what it
// touches is what the driver is told of, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gpu/device/cuda_device.h"
#include "gpu/emulator/fake_driver.h"
#include "gpu/kernels/kernels_testing.h"

namespace kvarve::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::byte kModule[1] = {};

// With the first `registered` of the memories; what the driver said first, or nothing.
std::string RunOnDevice(const Launch& launch, const Memory& memory, size_t registered) {
  fake::FakeDriver driver({});
  {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    for (const auto& bytes : std::span(memory).first(registered)) {
      auto* const at = const_cast<std::byte*>(bytes.data());
      EXPECT_TRUE(device->Register({at, bytes.size()}, HostAccess::kReadWrite).ok());
    }
    const auto stream = device->NewStream().value();
    EXPECT_TRUE(stream->Run(launch).ok());
    EXPECT_TRUE(stream->Synchronize().ok());
  }
  return driver.diagnostics().empty() ? "" : driver.diagnostics().front();
}

class EveryKernel : public ::testing::TestWithParam<uint32_t> {};

TEST_P(EveryKernel, EqualsTheOracleAndTouchesWhatIsItsOwn) {
  constexpr uint32_t kPageTokens[] = {8, 16, 24, 8, 64};
  for (uint32_t i = 0; i < 5; ++i) {
    CheckKernel({GetParam(), kPageLayouts[i], kPageTokens[i], 100 * GetParam() + i},
                [&](const Launch& launch, const Memory& memory) {
                  // The last memory is always touched but where a completion is not asked for.
                  const KernelFamily family = kKernels[launch.kernel].family;
                  const bool scaled =
                      family == KernelFamily::kGatherFp8 || family == KernelFamily::kScatterFp8;
                  if (scaled || family == KernelFamily::kCopyPages ||
                      family == KernelFamily::kReshapeAndCache) {
                    EXPECT_THAT(RunOnDevice(launch, memory, memory.size() - 1),
                                HasSubstr("touches memory that is neither"));
                  }
                  return RunOnDevice(launch, memory, memory.size());
                });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryKernel,
                         ::testing::Range(0u, *FindKernelRow(KernelFamily::kAttentionFp32, 16)),
                         [](const auto& info) { return std::string(kKernels[info.param].name); });

}  // namespace
}  // namespace kvarve::testing
