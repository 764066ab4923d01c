#include "storage/base/freed_memory.h"

#include <cstddef>
#include <cstdlib>

namespace kvarve {
namespace {

// The largest that still moves glibc's thresholds is 32 MiB, with its header and rounded to pages.
constexpr size_t kBytes = (size_t{32} << 20) - (64 << 10);

}  // namespace

void KeepFreedMemory() {
  void* volatile block = std::malloc(kBytes);  // volatile: or the compiler leaves both calls out
  std::free(block);
}

}  // namespace kvarve
