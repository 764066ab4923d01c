// What the files of the fake driver's entries share.
// THREADS: any.
#ifndef KVARVE_GPU_EMULATOR_FAKE_ENTRIES_H_
#define KVARVE_GPU_EMULATOR_FAKE_ENTRIES_H_

#include "gpu/emulator/fake_driver.h"

// The driver that is there, locked.
#define KV_ENTER(d)                     \
  FakeDriver& d = *FakeDriver::current; \
  const MutexLock lock(&d.mutex_)

namespace kvarve::cuda {

// Those by which memory gets to another process (fake_sharing.cc, fake_ipc.cc); fake_entries.cc has
// the others in its own.
struct FakeEntries {
#define KV_FAKE_DECLARE(name, symbol, version, parameters) static Result name parameters;
  KV_DRIVER_ENTRIES(KV_FAKE_DECLARE)
#undef KV_FAKE_DECLARE
  static void* Allocate(size_t bytes, int* fd);  // memory of a memfd
};

}  // namespace kvarve::cuda

namespace kvarve::fake {

inline std::byte* Host(uint64_t at) { return reinterpret_cast<std::byte*>(at); }

}  // namespace kvarve::fake

#endif  // KVARVE_GPU_EMULATOR_FAKE_ENTRIES_H_
