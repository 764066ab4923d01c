// An engine's paged KV as the benchmark has it, and attention over it again and again.
//
// THREADS: one.  BLOCKS: Create, until all is on the device.
#ifndef KVARVE_GPU_BENCH_BENCH_PAGES_H_
#define KVARVE_GPU_BENCH_BENCH_PAGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/bench/gpu_steps.h"
#include "gpu/device/device.h"
#include "gpu/paged/kv_view.h"
#include "storage/block/layout.h"

namespace kvarve::gpu_bench {

// [layer][K, V][page], a page [token][head] (NHD) or [head][token]; `base` is the device's.
KvView DeviceView(uint64_t base, const BlockLayout& layout, int64_t pages, uint32_t page_tokens,
                  bool nhd);
uint64_t ViewBytes(const BlockLayout& layout, int64_t pages, uint32_t page_tokens);

// Decoding: one query token of each sequence, bf16, 32 query heads over 8 KV heads of 128, pages of
// 16 tokens, splits of 512. Tiny: less of all.
class AttentionLoop {
 public:
  static absl::StatusOr<std::unique_ptr<AttentionLoop>> Create(
      const std::shared_ptr<ComputeDevice>& device, uint32_t sequences, uint32_t tokens, bool tiny);
  // Queues it once.
  absl::Status Run(DeviceStream& stream) const;
  uint64_t kv_bytes() const { return memory_.bytes(); }  // that one run reads

 private:
  AttentionLoop() = default;
  DeviceMemory memory_, tables_;
  std::vector<Launch> launches_;
};

}  // namespace kvarve::gpu_bench

#endif  // KVARVE_GPU_BENCH_BENCH_PAGES_H_
