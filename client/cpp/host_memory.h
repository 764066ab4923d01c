// Who wants to know of memory that a Client maps: what copies from it with a device registers it
// there first, and takes it back before it is unmapped.
//
// THREADS: any.  BLOCKS: OnUnmapping, until nothing of the device's touches the memory.
#ifndef KVARVE_CLIENT_CPP_HOST_MEMORY_H_
#define KVARVE_CLIENT_CPP_HOST_MEMORY_H_

#include <cstddef>
#include <span>

namespace kvarve {

class HostMemoryObserver {
 public:
  virtual ~HostMemoryObserver() = default;
  enum class Kind {
    kStaging,        // this process writes it, the daemon too
    kChunk,          // of the arena, mapped read-only
    kWritableChunk,  // of the arena, mapped writable, as was wished (trust=writable)
  };
  virtual void OnMapped(std::span<std::byte> memory, Kind kind) = 0;
  virtual void OnUnmapping(std::byte* memory) = 0;
  // Whether chunks are to be mapped writable, where the daemon lets them be.
  virtual bool WantsWritableChunks() const = 0;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_HOST_MEMORY_H_
