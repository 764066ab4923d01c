// The CUDA device over the fake driver: which device, which driver, what is said when either does
// not fit; streams, events and timelines in held steps; sharing; captures.
#include "gpu/device/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu/emulator/fake_driver.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::byte kModule[1] = {};

std::string Refusal(const FakeDriver::Options& options, std::string_view uuid = "") {
  FakeDriver driver(options);
  const auto device = OpenCudaDevice(driver.table(), uuid, kModule);
  EXPECT_FALSE(device.ok());
  EXPECT_EQ(driver.leaks(), "");
  return std::string(device.status().ToString());
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

class CudaDeviceTest : public ::testing::Test {
 protected:
  void Open(const FakeDriver::Options& options = {}) {
    driver_ = std::make_unique<FakeDriver>(options);
    auto opened = OpenCudaDevice(driver_->table(), "", kModule);
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
  }
  void TearDown() override {
    device_.reset();
    if (driver_ == nullptr) return;
    EXPECT_EQ(driver_->leaks(), "");
    EXPECT_THAT(driver_->diagnostics(), IsEmpty());
  }
  std::unique_ptr<FakeDriver> driver_;
  std::shared_ptr<ComputeDevice> device_;
};

TEST_F(CudaDeviceTest, AnOldDriverIsRefusedWithItsVersionAndTheWantedOne) {
  const std::string text = Refusal({.version = 12080});
  EXPECT_THAT(text, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(text, HasSubstr("speaks CUDA 12.8"));
  EXPECT_THAT(text, HasSubstr("CUDA 13.0 (driver 580 or later)"));
}

TEST_F(CudaDeviceTest, AModuleThatDoesNotLoadNamesDeviceDriverAndVersion) {
  const std::string text =
      Refusal({.version = 13010, .compute_major = 7, .load_result = cuda::kNoBinaryForGpu});
  EXPECT_THAT(text, HasSubstr("do not load on fake GPU (compute 7.0, driver of CUDA 13.1)"));
  EXPECT_THAT(text, HasSubstr("CUDA_ERROR_NO_BINARY_FOR_GPU"));
  EXPECT_THAT(text, HasSubstr("CUDA 13.0 (driver 580 or later)"));
}

TEST_F(CudaDeviceTest, DevicesAreNamedByUuid) {
  const std::string second = "11111111-1111-1111-1111-111111111101";
  EXPECT_THAT(Refusal({.devices = 2}), HasSubstr("not just one"));
  EXPECT_THAT(Refusal({.devices = 1}, "GPU-" + second),
              HasSubstr("there are: GPU-11111111-1111-1111-1111-111111111100 (fake GPU)"));
  EXPECT_THAT(Refusal({.devices = 0}), HasSubstr("there are: none"));
  // nvidia-smi's word for a GPU, for a MIG instance, and what torch prints.
  for (const std::string prefix : {"GPU-", "MIG-", ""}) {
    FakeDriver driver({.devices = 3});
    const auto device = OpenCudaDevice(driver.table(), prefix + second, kModule);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ((*device)->info().uuid, "GPU-" + second);
    EXPECT_EQ((*device)->info().compute_major, 9);
  }
}

TEST_F(CudaDeviceTest, StreamsRunInOrderAndEventsOrderThem) {
  Open();
  auto from = device_->Allocate(4096).value(), to = device_->Allocate(4096).value();
  std::vector<std::byte> host(4096, std::byte{7}), back(4096);
  ASSERT_TRUE(device_->Register(host, HostAccess::kReadOnly).ok());
  ASSERT_TRUE(device_->Register(back, HostAccess::kReadWrite).ok());
  auto a = device_->NewStream().value(), b = device_->NewStream().value();
  driver_->Hold();
  const CopyJob in{AddressOf(host.data()), from.address(), 4096};
  const CopyJob across{from.address(), to.address(), 4096};
  const CopyJob out{to.address(), AddressOf(back.data()), 4096};
  ASSERT_TRUE(a->Copy({&in, 1}, CopyOrder::kAny).ok());
  const auto copied = a->Record().value();
  ASSERT_TRUE(b->WaitFor(*copied).ok());
  ASSERT_TRUE(b->Copy({&across, 1}, CopyOrder::kStream).ok());
  ASSERT_TRUE(b->Copy({&out, 1}, CopyOrder::kStream).ok());
  const auto end = b->Record().value();
  EXPECT_FALSE(*copied->Done());
  EXPECT_EQ(driver_->Step(1), 1);  // half of the first copy
  EXPECT_FALSE(*copied->Done());
  EXPECT_EQ(driver_->Step(100), 8);  // the other half, two records, a wait, two copies in halves
  EXPECT_TRUE(*copied->Done() && *end->Done());
  driver_->HostReads(back.data(), back.size(), "the test");
  EXPECT_EQ(back, host);
  driver_->Go();
  EXPECT_TRUE(device_->Unregister(host.data()).ok());
  EXPECT_TRUE(device_->Unregister(back.data()).ok());
}

TEST_F(CudaDeviceTest, ATimelineOrdersAStreamWithAnother) {
  Open();
  auto word = device_->Allocate(8).value();
  std::memset(reinterpret_cast<void*>(word.address()), 0, 8);
  auto memory = device_->Allocate(64).value(), other = device_->Allocate(64).value();
  auto a = device_->NewStream().value(), b = device_->NewStream().value();
  const CopyJob read{memory.address(), other.address(), 64};
  ASSERT_TRUE(b->WaitValue(word.address(), 3).ok());
  ASSERT_TRUE(b->Copy({&read, 1}, CopyOrder::kStream).ok());
  const auto end = b->Record().value();
  EXPECT_FALSE(*end->Done());
  const CopyJob write{other.address(), memory.address(), 64};
  ASSERT_TRUE(a->Copy({&write, 1}, CopyOrder::kStream).ok());
  ASSERT_TRUE(a->WriteValue(word.address(), 3).ok());
  EXPECT_TRUE(end->Wait().ok());
  EXPECT_TRUE(a->Record().value()->Wait().ok());
}

TEST_F(CudaDeviceTest, SharedMemoryIsTheSameOnBothSides) {
  Open();
  absl::StatusOr<ComputeDevice::Shareable> shared = device_->AllocateShareable(100);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->memory.bytes(), 2u << 20) << "whole granules";
  absl::StatusOr<DeviceMemory> other =
      device_->Import(shared->export_fd.get(), shared->memory.bytes());
  ASSERT_TRUE(other.ok()) << other.status();
  std::memset(reinterpret_cast<void*>(shared->memory.address()), 5, 100);
  EXPECT_EQ(*reinterpret_cast<const char*>(other->address() + 99), 5);
  EXPECT_FALSE(device_->Import(shared->export_fd.get(), 4u << 20).ok()) << "longer than it is";
}

TEST_F(CudaDeviceTest, ReadOnlyRegistrationOnlyWhereTheDeviceCan) {
  Open({.read_only_registration = false});
  std::vector<std::byte> host(4096);
  EXPECT_EQ(device_->Register(host, HostAccess::kReadOnly).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(driver_->calls("cuMemHostRegister"), 0u);
  EXPECT_TRUE(device_->Register(host, HostAccess::kReadWrite).ok());
  EXPECT_TRUE(device_->Unregister(host.data()).ok());
}

// An engine captures on another thread's stream: what is safe goes on, nothing of ours is on it.
TEST_F(CudaDeviceTest, WorkDuringACaptureLeavesItValid) {
  Open();
  auto from = device_->Allocate(4096).value(), to = device_->Allocate(4096).value();
  auto stream = device_->NewStream().value();
  const cuda::Stream engine = driver_->NewEngineStream();
  driver_->BeginCapture(engine);
  const CopyJob job{from.address(), to.address(), 4096};
  ASSERT_TRUE(stream->Copy({&job, 1}, CopyOrder::kStream).ok());
  const auto event = stream->Record().value();
  EXPECT_TRUE(event->Wait().ok()) << "relaxed";
  EXPECT_TRUE(*event->Done());
  const auto handle = reinterpret_cast<EngineStream>(engine);
  EXPECT_EQ(device_->RecordEngine(handle).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->EngineAfter(handle, *event).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(driver_->EndCapture());
  EXPECT_TRUE(device_->RecordEngine(handle).ok());
}

// A wait that a capture forbids has not waited: it is made again, and a look says "not yet".
TEST_F(CudaDeviceTest, ARefusedWaitStillWaits) {
  Open();
  auto from = device_->Allocate(4096).value(), to = device_->Allocate(4096).value();
  auto stream = device_->NewStream().value();
  for (const bool by_event : {true, false}) {
    driver_->Hold();
    const CopyJob job{from.address(), to.address(), 4096};
    ASSERT_TRUE(stream->Copy({&job, 1}, CopyOrder::kStream).ok());
    const auto event = stream->Record().value();
    driver_->RefuseNext(4);
    EXPECT_FALSE(*event->Done());
    std::thread later([&] { driver_->Go(); });
    EXPECT_TRUE((by_event ? event->Wait() : stream->Synchronize()).ok());
    later.join();
    EXPECT_EQ(driver_->queued(), 0u);
    driver_->HostWrites(reinterpret_cast<void*>(to.address()), 4096, "the test");
  }
  EXPECT_TRUE(driver_->EndCapture());
}

TEST_F(CudaDeviceTest, EveryErrorOfACaptureIsOnlyForNow) {
  const FakeDriver driver({});
  for (int error = 900; error <= 908; ++error)
    EXPECT_TRUE(absl::IsUnavailable(cuda::ToStatus(driver.table(), error, "x"))) << error;
  for (const int error : {1, 700, 899, 909, 999})
    EXPECT_TRUE(absl::IsInternal(cuda::ToStatus(driver.table(), error, "x"))) << error;
}

TEST(CudaDevicePlantedTest, PlantedUnsafeCallsDuringACaptureAreNamed) {
  FakeDriver driver({});
  {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    std::vector<std::byte> host(4096);
    driver.BeginCapture(driver.NewEngineStream());
    EXPECT_EQ(device->Register(host, HostAccess::kReadWrite).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(device->Allocate(64).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(OpenCudaDevice(driver.table(), "", kModule).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_FALSE(driver.EndCapture());
  }
  EXPECT_THAT(driver.diagnostics(), ElementsAre("unsafe call during a capture: cuMemHostRegister",
                                                "unsafe call during a capture: cuMemAlloc",
                                                "unsafe call during a capture: cuLibraryLoadData"));
}

}  // namespace
}  // namespace kvarve
