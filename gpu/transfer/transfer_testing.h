// A Transfer on the CPU device, and moves that are over when the call is.
// THREADS: one.
#ifndef KVARVE_GPU_TRANSFER_TRANSFER_TESTING_H_
#define KVARVE_GPU_TRANSFER_TRANSFER_TESTING_H_

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "gpu/device/cpu_device.h"
#include "gpu/transfer/transfer.h"

namespace kvarve::testing {

inline absl::StatusOr<std::unique_ptr<Transfer>> CpuTransfer(KvView view,
                                                             const BlockLayout& layout) {
  std::shared_ptr<ComputeDevice> cpu = NewCpuDevice();
  auto registry = std::make_shared<HostRegistry>(cpu);
  return Transfer::Create(std::move(cpu), std::move(registry), std::move(view), layout, {});
}

inline absl::Status MoveNow(Transfer& transfer, MoveDirection direction,
                            std::span<const int64_t> page_ids, uint32_t token_begin,
                            uint32_t token_end, std::span<std::byte> block) {
  const BlockMove moved{block, page_ids};
  const absl::StatusOr<std::unique_ptr<Move>> move =
      transfer.Start(direction, {&moved, 1}, token_begin, token_end);
  return move.ok() ? (*move)->Wait() : move.status();
}

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_TRANSFER_TRANSFER_TESTING_H_
