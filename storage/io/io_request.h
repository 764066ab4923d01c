// One request to a device: what to move, how urgent it is, and who is told. A value.
// THREADS: any.
#ifndef KVARVE_STORAGE_IO_IO_REQUEST_H_
#define KVARVE_STORAGE_IO_IO_REQUEST_H_

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace kvarve {

// Offsets, lengths and addresses of requests are multiples of this: what O_DIRECT needs everywhere.
inline constexpr uint64_t kIoUnit = 4096;
inline constexpr uint64_t kMaxIoBytes = 64ull << 20;  // a request
inline constexpr size_t kMaxIoBuffers = 1024;         // the kernel's IOV_MAX

enum class IoOp : uint8_t { kRead, kWrite, kSync };
inline constexpr int kIoOps = 3;
std::string_view IoOpName(IoOp op);

// Most urgent first; io_queue.h has what each may have of a device.
enum class IoClass : uint8_t { kDemand, kPrefetch, kFlush, kGc, kScrub };
inline constexpr int kIoClasses = 5;
std::string_view IoClassName(IoClass io_class);

struct IoResult {
  // OK: every byte was moved. Else it names file, operation, offset and reason; a short transfer is
  // DataLoss, a full device or queue ResourceExhausted, a bad request InvalidArgument, the rest
  // Internal.
  absl::Status status;
  int error = 0;       // errno; 0: OK, a short transfer, or not the device's answer
  uint64_t bytes = 0;  // moved
};

// A copy that shares no count with the original, to hand to another thread: the packaged Abseil is
// not instrumented, and ThreadSanitizer then takes the last release for a race.
inline absl::Status Unshared(const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), status.message());
}

struct IoRequest {
  IoOp op = IoOp::kRead;
  IoClass io_class = IoClass::kDemand;
  uint64_t offset = 0;
  // Their memory stays valid until `done` is called.
  std::vector<iovec> buffers;
  std::function<void(const IoResult&)> done;
  // The submitter waits for it, and may as well carry it out: two wake-ups less, where nothing is
  // in its way.
  bool in_callers_thread = false;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const iovec& buffer : buffers) sum += buffer.iov_len;
    return sum;
  }
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_IO_REQUEST_H_
