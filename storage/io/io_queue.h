// Which request starts next. Each class has a share of the device by weight when several wait, and
// a cap on the bytes that it may have in flight, so that background work never fills the device
// before a demand read. Bytes in flight are capped in sum too: a longer queue in the device is only
// latency.
//
// Start-time fair queueing over bytes: a class's clock runs by bytes / weight, the class whose
// clock is least goes next, and a class that was idle starts at the present, not with credit.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_IO_IO_QUEUE_H_
#define KVARVE_STORAGE_IO_IO_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "storage/io/io_request.h"

namespace kvarve {

struct IoQueueOptions {
  size_t waiting_max = 4096;                  // requests; more are refused
  size_t inflight_max = 64;                   // requests
  uint64_t inflight_bytes_max = 40ull << 20;  // one request is always let through
  std::array<uint32_t, kIoClasses> weights = {8, 2, 4, 1, 1};
  // Of inflight_bytes_max. Flush needs 8 frames of 4 MiB to keep a device busy.
  std::array<uint64_t, kIoClasses> class_bytes_max = {40ull << 20, 16ull << 20, 32ull << 20,
                                                      8ull << 20, 4ull << 20};
};

class IoQueue {
 public:
  struct Item {
    IoRequest request;
    uint64_t bytes = 0;
    int64_t submitted_nanos = 0;
  };

  explicit IoQueue(const IoQueueOptions& options) : options_(options) {}

  bool full() const { return waiting_ >= options_.waiting_max; }
  // REQUIRES: not full.
  void Push(Item item);
  // The next to start, which is then in flight; none when nothing waits or the caps are reached.
  std::optional<Item> Pop();
  void Finished(IoClass io_class, uint64_t bytes);

  size_t waiting() const { return waiting_; }
  size_t inflight() const { return inflight_; }
  uint64_t queued_bytes(IoClass io_class) const {
    const PerClass& of = classes_[static_cast<int>(io_class)];
    return of.waiting_bytes + of.inflight_bytes;
  }

 private:
  struct PerClass {
    std::deque<Item> waiting;
    uint64_t waiting_bytes = 0;
    uint64_t inflight_bytes = 0;
    size_t inflight = 0;
    uint64_t clock = 0;
  };
  bool MayStart(const PerClass& of, uint64_t class_max) const;

  const IoQueueOptions options_;
  std::array<PerClass, kIoClasses> classes_;
  uint64_t now_ = 0;  // the clock of the class that started last
  size_t waiting_ = 0;
  size_t inflight_ = 0;
  uint64_t inflight_bytes_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_IO_IO_QUEUE_H_
