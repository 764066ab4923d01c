// A device: a file or block device of fixed size that is read and written in units of 4 KiB,
// without the kernel's page cache where the filesystem allows that.
//
// Three implementations with one meaning, held by one test suite (device_conformance_test.cc):
// io_uring, a pool of POSIX threads, and the simulated disk of tests.
//
// What is promised:
//  * Every request's `done` is called exactly once: on a thread of the device, inside Submit when
//    the request is refused or asked for that (in_callers_thread), or inside RunOne. It must not
//    block; it may Submit.
//  * Requests may finish in any order, and of requests that overlap and are in flight together any
//    may win. Who needs an order waits for `done`.
//  * A write that is done is seen by every read submitted after. After a power loss it may be lost,
//    whole or sector by sector, until a sync that was submitted after its `done` is done itself.
//
// THREADS: Submit, info, Stats, RegisterMemory: any.  BLOCKS: never, but for Submit of a request
// that asks for it, RegisterMemory, and the destructor, which waits for all requests.
#ifndef KVARVE_STORAGE_IO_DEVICE_H_
#define KVARVE_STORAGE_IO_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "storage/io/io_request.h"

namespace kvarve {

enum class IoBackend : uint8_t { kUring, kPosix, kSimulated };
std::string_view IoBackendName(IoBackend backend);

struct DeviceInfo {
  std::string path;
  uint64_t bytes = 0;  // a multiple of kIoUnit
  IoBackend backend = IoBackend::kPosix;
  bool direct = false;          // past the page cache
  std::string fallback_reason;  // why not io_uring, why not direct; empty: both as wanted
};

struct IoStats {
  struct Counters {
    uint64_t requests = 0;  // finished, failed ones included
    uint64_t bytes = 0;     // moved
    uint64_t errors = 0;    // of the device
    uint64_t nanos = 0;     // from Submit to done, summed
  };
  std::array<std::array<Counters, kIoOps>, kIoClasses> of{};  // [class][op]
  std::array<uint64_t, kIoClasses> queued_bytes{};            // waiting and in flight, now
  uint64_t refused = 0;                                       // the queue was full
  uint64_t fixed_buffer_requests = 0;                         // used registered memory
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual void Submit(IoRequest request) = 0;
  virtual IoStats Stats() const = 0;

  // A device without threads of its own finishes one request here, in the caller's thread; false:
  // none is waiting, or the device has threads.
  virtual bool RunOne() { return false; }

  // Memory that many requests will use, page aligned, at most 1 GiB a piece: saves pinning it each
  // time. A hint: whatever the answer, all memory can be used. Unregister before it is unmapped.
  virtual absl::Status RegisterMemory(void* base, size_t bytes);
  virtual void UnregisterMemory(void* base) {}
};

// InvalidArgument says what is wrong with the request; OK: `device` can take it.
absl::Status CheckRequest(const DeviceInfo& device, const IoRequest& request);
// What became of a request: `result` is what the system call answered, bytes or -errno.
IoResult ResultOf(const DeviceInfo& device, IoOp op, uint64_t offset, uint64_t wanted,
                  int64_t result);

// The same in one call.  BLOCKS: until the request is done.
absl::Status ReadNow(Device* device, IoClass io_class, uint64_t offset, std::span<std::byte> into);
absl::Status WriteNow(Device* device, IoClass io_class, uint64_t offset,
                      std::span<const std::byte> from);
absl::Status SyncNow(Device* device, IoClass io_class);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_DEVICE_H_
