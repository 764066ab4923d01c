// driver.h's own declarations against NVIDIA's header: each entry's parameters, by number and size,
// and each constant.
#include <cuda.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "gpu/device/driver.h"

namespace kvarve::cuda {
namespace {

template <typename A, typename B>
constexpr bool kSameParameter =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename Mine, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename S, typename... Mine, typename... Theirs>
requires(sizeof...(Mine) == sizeof...(Theirs)) struct SameCall<R (*)(Mine...), S (*)(Theirs...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && (kSameParameter<Mine, Theirs> && ...)> {
};

// The header's macros turn a plain name into its newest version: the one that driver.h asks for.
#define KV_SAME(name) \
  static_assert(SameCall<decltype(Driver::name), decltype(&::cu##name)>::value, #name)
#define KV_SAME_ENTRY(name, symbol, version, parameters) KV_SAME(name);
KV_DRIVER_ENTRIES(KV_SAME_ENTRY)

static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(offsetof(CopyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
static_assert(offsetof(AllocationProperties, location) == offsetof(CUmemAllocationProp, location));

#define KV_VALUE(mine, theirs) static_assert(static_cast<int>(mine) == static_cast<int>(theirs))
KV_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
KV_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE);
KV_VALUE(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
KV_VALUE(kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
KV_VALUE(kNotFound, CUDA_ERROR_NOT_FOUND);
KV_VALUE(kNotReady, CUDA_ERROR_NOT_READY);
KV_VALUE(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
KV_VALUE(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
KV_VALUE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
KV_VALUE(kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
KV_VALUE(kStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
KV_VALUE(kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
KV_VALUE(kStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
KV_VALUE(kComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
KV_VALUE(kComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
KV_VALUE(kReadOnlyHostRegister, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
KV_VALUE(kPortable, CU_MEMHOSTREGISTER_PORTABLE);
KV_VALUE(kDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
KV_VALUE(kReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
KV_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
KV_VALUE(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC);
KV_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
KV_VALUE(kWaitGreaterOrEqual, CU_STREAM_WAIT_VALUE_GEQ);
KV_VALUE(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
KV_VALUE(kNotCapturing, CU_STREAM_CAPTURE_STATUS_NONE);
KV_VALUE(kOrderStream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
KV_VALUE(kOrderAny, CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
KV_VALUE(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
KV_VALUE(kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
KV_VALUE(1, CU_MEM_ALLOCATION_TYPE_PINNED);
KV_VALUE(3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
KV_VALUE(0, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

TEST(DriverAbiTest, TheHeaderIsOfTheMajorVersionWanted) {
  EXPECT_EQ(CUDA_VERSION / 1000, kWantedVersion / 1000);
}

// This machine may have a driver or not; either way the answer says what it found.
TEST(DriverAbiTest, LoadsADriverOrSaysWhatIsMissing) {
  const absl::StatusOr<const Driver*> driver = LoadDriver();
  if (driver.ok()) {
    EXPECT_NE((*driver)->MemcpyBatchAsync, nullptr);
  } else {
    EXPECT_NE(driver.status().message().find(kWantedDriver), absl::string_view::npos)
        << driver.status();
  }
}

}  // namespace
}  // namespace kvarve::cuda
