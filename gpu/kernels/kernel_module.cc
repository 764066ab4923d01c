#include "gpu/kernels/kernel_module.h"

#ifdef KV_FATBIN
// The loader wants 8 bytes of alignment.
asm(R"(
.section .rodata
.balign 16
.globl kv_fatbin_begin
.globl kv_fatbin_end
kv_fatbin_begin:
.incbin ")" KV_FATBIN R"("
kv_fatbin_end:
.byte 0
.previous
)");
extern "C" const std::byte kv_fatbin_begin[], kv_fatbin_end[];
#endif

namespace kvarve {

absl::StatusOr<std::span<const std::byte>> KernelModule() {
#ifdef KV_FATBIN
  return std::span(kv_fatbin_begin, kv_fatbin_end);
#else
  return absl::FailedPreconditionError(
      "this build has no GPU kernels: nvcc was not found (./dev setup brings it) or "
      "KVARVE_CUDA is OFF");
#endif
}

}  // namespace kvarve
