// The one seam to CUDA: a table of the driver's entry points, filled from libcuda.so.1 at run time
// or by a test's fake. Nothing links CUDA; a host without a driver learns so from LoadDriver.
//
// Types and constants are our own declarations of the driver's ABI (CUDA Driver API
// reference, 13.0: versions of entries as cuGetProcAddress takes them); driver_abi_test compares
// them with NVIDIA's header where nvcc is there.
//
// THREADS: any.
#ifndef KVARVE_GPU_DEVICE_DRIVER_H_
#define KVARVE_GPU_DEVICE_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve::cuda {

using Result = int;
using DeviceOrdinal = int;
using Address = unsigned long long;
using AllocationHandle = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;

struct Uuid {
  unsigned char bytes[16];
};

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kUnsupportedPtxVersion = 222,
  kNotFound = 500,
  kNotReady = 600,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,  // the first of those that a capture is the reason of
  kStreamCaptureInvalidated = 901,
  kStreamCaptureImplicit = 906,
  kStreamCaptureWrongThread = 908,  // the last
};
enum Attribute : int {
  kComputeMajor = 75,
  kComputeMinor = 76,
  kReadOnlyHostRegister = 113,
};
enum HostRegisterFlags : unsigned { kPortable = 1, kDeviceMap = 2, kReadOnly = 8 };
inline constexpr unsigned kStreamNonBlocking = 1;
enum EventFlags : unsigned { kEventBlockingSync = 1, kEventDisableTiming = 2 };
inline constexpr unsigned kWaitGreaterOrEqual = 0;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kNotCapturing = 0;

struct MemoryLocation {
  int type;  // 1: a device
  int id;
};
enum AccessOrder : int { kOrderStream = 1, kOrderAny = 3 };
struct CopyAttributes {
  int source_access_order;
  MemoryLocation source_hint, target_hint;
  unsigned flags;
};
inline constexpr int kLocationDevice = 1;
inline constexpr int kHandlePosixFd = 1;
struct AllocationProperties {
  int type;  // 1: pinned
  int handle_types;
  MemoryLocation location;
  void* win32_metadata;
  struct {
    unsigned char compression, rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
struct AccessDescription {
  MemoryLocation location;
  int flags;  // 3: read and write
};
struct IpcMemoryHandle {
  char reserved[64];
};

// name, symbol, the version whose ABI is asked for, parameters
#define KV_DRIVER_ENTRIES(X)                                                                       \
  X(Init, "cuInit", 2000, (unsigned))                                                              \
  X(DriverGetVersion, "cuDriverGetVersion", 2020, (int*))                                          \
  X(GetErrorName, "cuGetErrorName", 6000, (Result, const char**))                                  \
  X(DeviceGetCount, "cuDeviceGetCount", 2000, (int*))                                              \
  X(DeviceGet, "cuDeviceGet", 2000, (DeviceOrdinal*, int))                                         \
  X(DeviceGetName, "cuDeviceGetName", 2000, (char*, int, DeviceOrdinal))                           \
  X(DeviceGetUuid, "cuDeviceGetUuid", 11040, (Uuid*, DeviceOrdinal))                               \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", 2000, (int*, Attribute, DeviceOrdinal))            \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (Context*, DeviceOrdinal))           \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 11000, (DeviceOrdinal))                  \
  X(CtxPushCurrent, "cuCtxPushCurrent", 4000, (Context))                                           \
  X(CtxPopCurrent, "cuCtxPopCurrent", 4000, (Context*))                                            \
  X(LibraryLoadData, "cuLibraryLoadData", 12000,                                                   \
    (Library*, const void*, int*, void**, unsigned, int*, void**, unsigned))                       \
  X(LibraryUnload, "cuLibraryUnload", 12000, (Library))                                            \
  X(LibraryGetKernel, "cuLibraryGetKernel", 12000, (Kernel*, Library, const char*))                \
  X(LaunchKernel, "cuLaunchKernel", 4000,                                                          \
    (Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, \
     void**))                                                                                      \
  X(MemAlloc, "cuMemAlloc", 3020, (Address*, size_t))                                              \
  X(MemFree, "cuMemFree", 3020, (Address))                                                         \
  X(MemHostRegister, "cuMemHostRegister", 6050, (void*, size_t, unsigned))                         \
  X(MemHostUnregister, "cuMemHostUnregister", 4000, (void*))                                       \
  X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer", 3020, (Address*, void*, unsigned))       \
  X(MemcpyAsync, "cuMemcpyAsync", 4000, (Address, Address, size_t, Stream))                        \
  X(MemcpyBatchAsync, "cuMemcpyBatchAsync", 13000,                                                 \
    (Address*, Address*, size_t*, size_t, CopyAttributes*, size_t*, size_t, Stream))               \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, (Stream*, unsigned, int))        \
  X(StreamDestroy, "cuStreamDestroy", 4000, (Stream))                                              \
  X(StreamSynchronize, "cuStreamSynchronize", 2000, (Stream))                                      \
  X(StreamWaitEvent, "cuStreamWaitEvent", 3020, (Stream, Event, unsigned))                         \
  X(StreamIsCapturing, "cuStreamIsCapturing", 10000, (Stream, int*))                               \
  X(StreamWriteValue64, "cuStreamWriteValue64", 11070, (Stream, Address, uint64_t, unsigned))      \
  X(StreamWaitValue64, "cuStreamWaitValue64", 11070, (Stream, Address, uint64_t, unsigned))        \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, (int*))           \
  X(EventCreate, "cuEventCreate", 2000, (Event*, unsigned))                                        \
  X(EventDestroy, "cuEventDestroy", 4000, (Event))                                                 \
  X(EventRecord, "cuEventRecord", 2000, (Event, Stream))                                           \
  X(EventQuery, "cuEventQuery", 2000, (Event))                                                     \
  X(EventSynchronize, "cuEventSynchronize", 2000, (Event))                                         \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,                           \
    (size_t*, const AllocationProperties*, int))                                                   \
  X(MemCreate, "cuMemCreate", 10020,                                                               \
    (AllocationHandle*, size_t, const AllocationProperties*, unsigned long long))                  \
  X(MemRelease, "cuMemRelease", 10020, (AllocationHandle))                                         \
  X(MemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                             \
    (void*, AllocationHandle, int, unsigned long long))                                            \
  X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,                         \
    (AllocationHandle*, void*, int))                                                               \
  X(MemAddressReserve, "cuMemAddressReserve", 10020,                                               \
    (Address*, size_t, size_t, Address, unsigned long long))                                       \
  X(MemAddressFree, "cuMemAddressFree", 10020, (Address, size_t))                                  \
  X(MemMap, "cuMemMap", 10020, (Address, size_t, size_t, AllocationHandle, unsigned long long))    \
  X(MemUnmap, "cuMemUnmap", 10020, (Address, size_t))                                              \
  X(MemSetAccess, "cuMemSetAccess", 10020, (Address, size_t, const AccessDescription*, size_t))    \
  X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, (AllocationHandle*, void*))   \
  X(MemGetAddressRange, "cuMemGetAddressRange", 3020, (Address*, size_t*, Address))                \
  X(IpcGetMemHandle, "cuIpcGetMemHandle", 4010, (IpcMemoryHandle*, Address))                       \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle", 11000, (Address*, IpcMemoryHandle, unsigned))          \
  X(IpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, (Address))

struct Driver {
#define KV_DRIVER_FIELD(name, symbol, version, parameters) Result(*name) parameters = nullptr;
  KV_DRIVER_ENTRIES(KV_DRIVER_FIELD)
#undef KV_DRIVER_FIELD
};

// The kernels' cubins are of CUDA 13 and load in any of its drivers: 580 is the first.
inline constexpr int kWantedVersion = 13000;
inline constexpr const char* kWantedDriver = "CUDA 13.0 (driver 580 or later)";

// "13.0" of 13000.
std::string VersionText(int version);

// Fills the table by dlopen, once a process. NotFound: no driver on this host, with what the linker
// said. FailedPrecondition: too old a one, with its version and the one wanted.
absl::StatusOr<const Driver*> LoadDriver();
// cuInit and the version, of any table: what LoadDriver refuses an old driver by.
absl::Status StartDriver(const Driver& driver);

// OK for kSuccess; else the call's name and the driver's for the error. ResourceExhausted: no
// memory. Unimplemented: not supported. Unavailable: a capture forbids it now. Internal: the rest.
absl::Status ToStatus(const Driver& driver, Result result, const char* call);

}  // namespace kvarve::cuda

#endif  // KVARVE_GPU_DEVICE_DRIVER_H_
