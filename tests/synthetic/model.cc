#include "tests/synthetic/model.h"

#include <cstring>

#include "storage/base/status_macros.h"
#include "storage/block/layout.h"
#include "storage/block/prefix_hash.h"

namespace kvarve::synthetic {
namespace {

// Rounds of mixing a word: what makes computing a page cost dozens of times what copying it costs.
constexpr int kRoundsPerWord = 16;

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

NamespaceDescriptor Descriptor() {
  NamespaceDescriptor d;
  d.model = "synthetic-135m";
  d.model_digest = "synthetic-arithmetic-1";
  d.element_type = ElementType::kBf16;
  d.layer_count = d.layer_total = 30;
  d.kv_head_count = d.kv_head_total = 3;
  d.k_dim = d.v_dim = 64;
  d.block_tokens = kBlockTokens;
  d.hash_version = kChainHashVersion;
  d.block_bytes = BlockLayout::Of(d).BlockBytes();
  return d;
}

std::vector<uint32_t> PromptTokens(uint64_t seed, size_t tokens) {
  std::vector<uint32_t> out(tokens);
  uint64_t x = Mix(seed);
  for (uint32_t& token : out) {
    x = Mix(x);
    token = static_cast<uint32_t>(x % 49152);
  }
  if (!out.empty()) out[0] = static_cast<uint32_t>(seed % 49152);
  return out;
}

void State::Prefill(std::span<const uint32_t> block_tokens, std::span<std::byte> page) {
  KV_CHECK(page.size() % sizeof(uint64_t) == 0 && !page.empty());
  for (const uint32_t token : block_tokens) state_ = Mix(state_ ^ token);
  for (size_t at = 0; at < page.size(); at += sizeof(uint64_t)) {
    for (int round = 0; round < kRoundsPerWord; ++round) state_ = Mix(state_);
    std::memcpy(page.data() + at, &state_, sizeof(state_));
  }
}

void State::Resume(std::span<const std::byte> page) {
  KV_CHECK(page.size() >= sizeof(state_));
  std::memcpy(&state_, page.data() + page.size() - sizeof(state_), sizeof(state_));
}

}  // namespace kvarve::synthetic
