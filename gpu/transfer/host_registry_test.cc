// Host memory as a device may touch it: pieces, what cannot be registered, captures.
#include "gpu/transfer/host_registry.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "gpu/device/cuda_device.h"
#include "gpu/emulator/fake_driver.h"
#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::byte kModule[1] = {};
constexpr int64_t kLong = 60'000'000'000;

TEST(HostRegistryTest, PathsByCapability) {
  ComputeDeviceInfo cpu, old, can;
  cpu.is_cpu = true;
  can.read_only_registration = true;
  EXPECT_EQ(ChooseHostPath(cpu, true), HostPath::kHost);
  EXPECT_EQ(ChooseHostPath(can, false), HostPath::kArena);
  EXPECT_EQ(ChooseHostPath(old, false), HostPath::kStaging);
  EXPECT_EQ(ChooseHostPath(old, true), HostPath::kWritable);
}

// Memory that exists only where it is touched, in three pieces.
TEST(HostRegistryTest, PiecesAreWholeExtentsAndNoCopySpansTwo) {
  FakeDriver driver({.max_registration = 64 * kMiB});
  {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    HostRegistry registry(device, 64 * kMiB);
    const auto at = reinterpret_cast<std::byte*>(uint64_t{1} << 40);  // a fake needs no memory
    registry.Add({at, 160 * kMiB}, HostRegistry::Use::kReadOnly);
    ASSERT_TRUE(registry.WaitIdle(kLong));
    EXPECT_EQ(registry.stats().pieces, 3u);
    EXPECT_EQ(registry.stats().bytes, 160 * kMiB);
    EXPECT_EQ(registry.AddressOf(at + 64 * kMiB - 4096, 4096),
              reinterpret_cast<uint64_t>(at) + 64 * kMiB - 4096);
    EXPECT_EQ(registry.AddressOf(at + 64 * kMiB - 4096, 4097), std::nullopt);
    EXPECT_EQ(registry.AddressOf(at + 160 * kMiB - 4096, 4097), std::nullopt);
    EXPECT_EQ(registry.AddressOf(at - 1, 1), std::nullopt);
    registry.Remove(at);
    EXPECT_EQ(registry.stats().pieces, 0u);
    EXPECT_EQ(registry.AddressOf(at, 1), std::nullopt);
    // One call for all of it would have failed: counted, and without an address.
    HostRegistry large(device, 256 * kMiB);
    large.Add({at, 160 * kMiB}, HostRegistry::Use::kReadWrite);
    ASSERT_TRUE(large.WaitIdle(kLong));
    EXPECT_EQ(large.stats().failed, 1u);
    EXPECT_THAT(large.stats().last_error, HasSubstr("OUT_OF_MEMORY"));
    EXPECT_EQ(large.AddressOf(at, 1), std::nullopt);
  }
  EXPECT_EQ(driver.leaks(), "");
}

TEST(HostRegistryTest, NothingIsRegisteredWhileTheEngineMayCapture) {
  FakeDriver driver({});
  {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    HostRegistry registry(device);
    registry.SetQuiet(true);
    driver.BeginCapture(driver.NewEngineStream());
    std::vector<std::byte> memory(4096);
    registry.Add(memory, HostRegistry::Use::kReadWrite);
    EXPECT_FALSE(registry.WaitIdle(20'000'000));
    EXPECT_EQ(driver.calls("cuMemHostRegister"), 0u);
    EXPECT_TRUE(driver.EndCapture());
    registry.SetQuiet(false);
    EXPECT_TRUE(registry.WaitIdle(kLong));
    EXPECT_NE(registry.AddressOf(memory.data(), 4096), std::nullopt);
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
  EXPECT_EQ(driver.leaks(), "");
}

// What a capture forbids to unregister is unregistered after it: its memory goes when this returns.
TEST(HostRegistryTest, ARefusedUnregistrationIsMadeAgain) {
  FakeDriver driver({});
  {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    std::vector<std::byte> memory(4096), others(4096);
    HostRegistry registry(device);
    registry.Add(memory, HostRegistry::Use::kReadWrite);
    registry.Add(others, HostRegistry::Use::kReadWrite);
    ASSERT_TRUE(registry.WaitIdle(kLong));
    driver.RefuseNext(2);
    registry.Remove(memory.data());
    EXPECT_EQ(registry.stats().pieces, 1u);
    EXPECT_EQ(registry.AddressOf(memory.data(), 1), std::nullopt);
    EXPECT_NE(registry.AddressOf(others.data(), 1), std::nullopt);
    EXPECT_EQ(driver.leaks(), "1 registrations, 1 contexts, 1 libraries");
    driver.RefuseNext(2);  // and by the end of the registry
  }
  EXPECT_EQ(driver.leaks(), "");
}

// A pool that others write, too, is never left writable by this process's own mistakes.
TEST(HostRegistryTest, AWritableMappingIsProtectedEvenIfItsRegistrationFails) {
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  for (const bool fails : {false, true}) {
    FakeDriver driver({.max_registration = fails ? 1u : 1u << 20});
    void* const at =
        ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    {
      const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
      HostRegistry registry(device);
      ASSERT_EQ(::read(zero.get(), at, 1), 1);
      registry.Add({static_cast<std::byte*>(at), 8192}, HostRegistry::Use::kProtect);
      ASSERT_TRUE(registry.WaitIdle(kLong));
      EXPECT_EQ(registry.stats().failed, fails ? 1u : 0u);
      EXPECT_EQ(::read(zero.get(), at, 1), -1) << "this process cannot write it any more";
      EXPECT_EQ(errno, EFAULT);
    }
    ::munmap(at, 8192);
  }
}

}  // namespace
}  // namespace kvarve
