// How many lines a second somebody else can make us log.
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_SERVICES_RPC_LINE_LIMIT_H_
#define KVARVE_SERVICES_RPC_LINE_LIMIT_H_

#include <atomic>
#include <cstdint>

namespace kvarve {

class LineLimit {
 public:
  constexpr explicit LineLimit(uint64_t per_second) : per_second_(per_second) {}

  // Counts by the second; two threads that meet at its end may write a few more.
  bool MayWrite(int64_t now_nanos) {
    const int64_t second = now_nanos / 1'000'000'000;
    if (second_.exchange(second) != second) lines_ = 0;
    return lines_.fetch_add(1) < per_second_;
  }

 private:
  const uint64_t per_second_;
  std::atomic<int64_t> second_{0};  // in which lines_ were written
  std::atomic<uint64_t> lines_{0};
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_LINE_LIMIT_H_
