// Copies rows at a stride around the cache: the inner loop of the CPU's movers. Vectorised where
// the rows are whole 32-byte pieces and aligned for it, memcpy otherwise; the CPU is asked at run
// time. THREADS: any.
#ifndef KVARVE_GPU_DEVICE_ROW_COPY_H_
#define KVARVE_GPU_DEVICE_ROW_COPY_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarve {

struct RowCopy {
  std::byte* dst = nullptr;
  int64_t dst_stride = 0;  // bytes from row to row
  const std::byte* src = nullptr;
  int64_t src_stride = 0;
  uint64_t row_bytes = 0;
  uint32_t rows = 0;
};

void StreamRows(const RowCopy& copy);
// As many rows of as many bytes of each, a little of each in turn: where one stream from a place in
// memory that nobody expects begins slowly, several make up for it.
inline constexpr size_t kMaxLanes = 4;
void StreamLanes(std::span<const RowCopy> lanes);
// Must follow the last of these before another thread is told of the bytes.
void StreamFence();

}  // namespace kvarve

#endif  // KVARVE_GPU_DEVICE_ROW_COPY_H_
