// A model of plain arithmetic: its KV depends on every token before, as a transformer's does, and
// any process computes the same bytes. It stands where a test or a demonstration needs an engine in
// seconds. THREADS: any.
#ifndef KVARVE_TESTS_SYNTHETIC_MODEL_H_
#define KVARVE_TESTS_SYNTHETIC_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/block/namespace.h"

namespace kvarve::synthetic {

inline constexpr uint32_t kBlockTokens = 128;

// 30 layers of 3 KV heads with 64 dimensions in bf16: 23,040 bytes a token, 2.8 MiB a block.
NamespaceDescriptor Descriptor();

// The tokens of prompt number `seed`; two seeds differ from the first token on.
std::vector<uint32_t> PromptTokens(uint64_t seed, size_t tokens);

// What the model knows after some blocks. `Prefill` is the expensive part; it also fills in `page`,
// which must have the descriptor's block_bytes.
class State {
 public:
  void Prefill(std::span<const uint32_t> block_tokens, std::span<std::byte> page);
  // The state after a block whose page was loaded: its bytes carry it.
  void Resume(std::span<const std::byte> page);

 private:
  uint64_t state_ = 0;
};

}  // namespace kvarve::synthetic

#endif  // KVARVE_TESTS_SYNTHETIC_MODEL_H_
