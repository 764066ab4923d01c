// Attention of a batch on whatever device has the pages: one call, with queries and answers in host
// memory. On the CPU device it is PagedAttention, on a CUDA device AttentionPlan's launches, with
// the plan's tables, queries and answers carried there and back. An answer is (output, log-sum-exp)
// either way, so that parts from different devices merge (MergeStates).
//
// An engine that has its queries on the device, or a step to lose by waiting, launches an
// AttentionPlan itself.
//
// THREADS: one at a time.  BLOCKS: Run, until the answer is there.
#ifndef KVARVE_GPU_ATTENTION_ATTEND_H_
#define KVARVE_GPU_ATTENTION_ATTEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/attention_launch.h"
#include "gpu/device/device.h"

namespace kvarve {

struct AttendRequest {
  AttentionPages pages;  // where the device finds them; what writes them is over
  AttentionOptions options;
  std::span<const AttentionSequence> sequences;
  std::span<const float> sinks;  // one a query head, or none
  std::span<const float> q;      // [query tokens of all sequences][q_heads][k_dim]
  std::span<float> out;          // [query tokens][q_heads][v_dim]
  std::span<float> lse;          // [query tokens][q_heads]
  uint32_t threads = 1;          // the CPU device's
};

class Attender {
 public:
  // `scratch_bytes` of device memory, and as much of host memory for the device, bound a batch:
  // queries, answers, tables and splits. Allocates all there ever is; the CPU device has none.
  static absl::StatusOr<std::unique_ptr<Attender>> Create(std::shared_ptr<ComputeDevice> device,
                                                          uint64_t scratch_bytes);
  ~Attender();
  Attender(const Attender&) = delete;
  Attender& operator=(const Attender&) = delete;

  // InvalidArgument, Unimplemented: as PagedAttention::Create and AttentionPlan::Create; besides,
  // spans of another size. ResourceExhausted: more than the scratch holds. Internal: the device
  // failed. Only with OK are out and lse written.
  absl::Status Run(const AttendRequest& request);

 private:
  explicit Attender(std::shared_ptr<ComputeDevice> device) : device_(std::move(device)) {}
  absl::Status RunOnDevice(const AttendRequest& request);

  const std::shared_ptr<ComputeDevice> device_;
  std::vector<std::byte> memory_;  // its whole pages are `host_`
  std::span<std::byte> host_;
  uint64_t host_at_ = 0;  // the device's address of it; 0: none
  DeviceMemory scratch_;
  std::unique_ptr<DeviceStream> stream_;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_ATTENTION_ATTEND_H_
