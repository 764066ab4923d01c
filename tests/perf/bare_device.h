// What one would write without kvarve to read and write a device: one ring, fixed buffers, `depth`
// requests under way.
// THREADS: one owner.  BLOCKS: Run.
#ifndef KVARVE_TESTS_PERF_BARE_DEVICE_H_
#define KVARVE_TESTS_PERF_BARE_DEVICE_H_

#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"
#include "storage/block/checksum.h"
#include "storage/io/aligned_buffer.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {

// Of this process, all threads.
inline double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Both sides' processor seconds for a gigabyte.
inline double CoreSecondsPerGb(uint64_t bytes, const std::function<void()>& round) {
  const double before = CpuSeconds();
  round();
  return (CpuSeconds() - before) / (static_cast<double>(bytes) / 1e9);
}

// The least that a check of bytes could cost: each word is read and added.
__attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default"))) inline uint64_t SumOf(
    const std::byte* piece, size_t bytes) {
  constexpr size_t kLanes = 32;
  const auto* words = reinterpret_cast<const uint64_t*>(piece);
  uint64_t sums[kLanes] = {};
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i += kLanes) {
    PrefetchForRead(words + i + 512);
    PrefetchForRead(words + i + 520);
    PrefetchForRead(words + i + 528);
    PrefetchForRead(words + i + 536);
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] ^= words[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum ^= lane;
  return sum;
}

// What the log checks: the checksum of each block.
inline uint64_t ChecksumsOf(std::span<const std::byte> piece, size_t block) {
  uint64_t sum = 0;
  for (size_t at = 0; at < piece.size(); at += block)
    sum += BlockChecksum(/*seed=*/at, piece.data() + at, block);
  return sum;
}

class BareLoop {
 public:
  // What is made of a piece that was read. Its answer is only kept from being optimised away.
  using Check = std::function<uint64_t(std::span<const std::byte> piece)>;

  // `places`: with a depth of 1, where the pieces go in turn, as into a cache's memory. A single
  // place stays in the processor's caches.
  BareLoop(const std::string& path, size_t depth, size_t bytes, size_t places = 1)
      : depth_(depth), bytes_(bytes), memory_(std::max(depth, places) * bytes) {
    KV_CHECK(depth == 1 || places == 1);
    fd_.reset(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    KV_CHECK(fd_.valid());
    KV_CHECK(::io_uring_queue_init(64, &ring_, 0) == 0);
    const iovec all{memory_.data(), memory_.size()};
    fixed_ = ::io_uring_register_buffers(&ring_, &all, 1) == 0;
  }
  ~BareLoop() { ::io_uring_queue_exit(&ring_); }

  // Moves a piece at each offset; returns the microseconds. With a check, one place.
  double Run(bool write, const std::vector<uint64_t>& offsets, const Check& check = nullptr) {
    const double start = NowMicros();
    size_t next = 0, inflight = 0;
    for (size_t i = 0; i < depth_ && next < offsets.size(); ++i, ++inflight)
      Prepare(write, offsets[next++], i);
    ::io_uring_submit(&ring_);
    while (inflight > 0) {
      io_uring_cqe* cqe = nullptr;
      KV_CHECK(::io_uring_wait_cqe(&ring_, &cqe) == 0);
      KV_CHECK(cqe->res == static_cast<int>(bytes_));
      const size_t slot = ::io_uring_cqe_get_data64(cqe);
      ::io_uring_cqe_seen(&ring_, cqe);
      --inflight;
      if (check) sum_ = sum_ + check(memory_.span().subspan(slot * bytes_, bytes_));
      if (next == offsets.size()) continue;
      Prepare(write, offsets[next++], slot);
      ::io_uring_submit(&ring_);
      ++inflight;
    }
    return NowMicros() - start;
  }

 private:
  void Prepare(bool write, uint64_t offset, size_t slot) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    const size_t place = depth_ == 1 ? turn_++ % (memory_.size() / bytes_) : slot;
    std::byte* at = memory_.data() + place * bytes_;
    const auto bytes = static_cast<unsigned>(bytes_);
    if (write && fixed_) {
      ::io_uring_prep_write_fixed(sqe, fd_.get(), at, bytes, offset, 0);
    } else if (write) {
      ::io_uring_prep_write(sqe, fd_.get(), at, bytes, offset);
    } else if (fixed_) {
      ::io_uring_prep_read_fixed(sqe, fd_.get(), at, bytes, offset, 0);
    } else {
      ::io_uring_prep_read(sqe, fd_.get(), at, bytes, offset);
    }
    ::io_uring_sqe_set_data64(sqe, slot);
  }

  const size_t depth_, bytes_;
  AlignedBuffer memory_;
  UniqueFd fd_;
  io_uring ring_;
  bool fixed_ = false;
  size_t turn_ = 0;
  volatile uint64_t sum_ = 0;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BARE_DEVICE_H_
