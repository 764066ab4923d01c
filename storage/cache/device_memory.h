// The arena's pages that devices know beforehand, so that a read into them does not look up and pin
// each page anew: with pages of 4 KiB that is twice as dear as all the rest of a read. A saving
// only: where a device cannot (RLIMIT_MEMLOCK, the thread pool), reads go on as they did.
//
// THREADS: any; in effect the arena's page thread, and who adds or removes a device.  BLOCKS: while
// a device pins memory. The mutex is taken by nobody else, and nothing else is taken under it.
#ifndef KVARVE_STORAGE_CACHE_DEVICE_MEMORY_H_
#define KVARVE_STORAGE_CACHE_DEVICE_MEMORY_H_

#include <cstddef>
#include <map>

#include "storage/base/mutex.h"
#include "storage/io/device.h"

namespace kvarve {

class DeviceMemory {
 public:
  // A piece of memory that stays until Gone of a range around it.
  void Present(std::byte* base, size_t bytes);
  void Gone(std::byte* base, size_t bytes);
  // `device` outlives its place here.
  void Add(Device* device);
  void Remove(Device* device);

 private:
  void Register(Device* device, std::byte* base, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::map<std::byte*, size_t> pieces_ ABSL_GUARDED_BY(mutex_);
  std::map<Device*, bool> devices_ ABSL_GUARDED_BY(mutex_);  // whether it takes more
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_DEVICE_MEMORY_H_
