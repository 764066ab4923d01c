// The table's calls by which memory gets to another process: who has an address, handles of what is
// mapped there, and CUDA IPC, whose handle names a memfd of the process that exports it.
// THREADS: any.
#ifndef KVARVE_GPU_EMULATOR_FAKE_IPC_H_
#define KVARVE_GPU_EMULATOR_FAKE_IPC_H_

#include <cstddef>

#include "gpu/device/driver.h"

namespace kvarve::fake {

struct IpcEntries {
  static cuda::Result MemRetainAllocationHandle(cuda::AllocationHandle* handle, void* at);
  static cuda::Result MemGetAddressRange(cuda::Address* begin, size_t* bytes, cuda::Address at);
  static cuda::Result IpcGetMemHandle(cuda::IpcMemoryHandle* handle, cuda::Address at);
  static cuda::Result IpcOpenMemHandle(cuda::Address* at, cuda::IpcMemoryHandle handle, unsigned);
  static cuda::Result IpcCloseMemHandle(cuda::Address at);
  // Memory of a memfd.
  static void* Allocate(size_t bytes, int* fd);
};

}  // namespace kvarve::fake

#endif  // KVARVE_GPU_EMULATOR_FAKE_IPC_H_
