// Goal: no stored bytes make a decoder read or write outside what it was given, and what decodes
// can be encoded again. The first bytes say which layout. Under a sanitizer.
#include <algorithm>
#include <cstring>

#include "storage/base/status_macros.h"
#include "storage/codec/codec.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace kvarve;  // NOLINT: one file, one subject

constexpr size_t kHead = 4;

BlockLayout LayoutOf(const std::string& head) {
  BlockLayout layout;
  const auto at = [&head](size_t i) { return static_cast<uint8_t>(head[i]); };
  layout.layers = 1 + at(0) % 2;
  layout.kv_heads = 1 + at(0) / 2 % 2;
  layout.tokens = 1 + at(1) % 20;
  layout.k_dim = 1 + at(2) % 20;
  layout.v_dim = at(3) % 20;
  layout.element_bytes = 1u << at(0) / 4 % 4;
  return layout;
}

// Of a block that can be encoded. `head` has kHead bytes.
std::string Seed(const char* head) {
  const std::string first(head, kHead);
  const BlockLayout layout = LayoutOf(first);
  std::vector<std::byte> block(layout.BlockBytes(), std::byte{0x3d}), out(block.size() + 256);
  const auto bytes = Encode(Representation::kPlanes, layout, block, out);
  KV_CHECK(bytes.has_value());
  return first + std::string(reinterpret_cast<const char*>(out.data()), *bytes);
}

}  // namespace

// In allocations of exactly their sizes, so that a sanitizer sees the first byte past them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  const BlockLayout layout = LayoutOf(std::string(reinterpret_cast<const char*>(data), kHead));
  const std::vector<std::byte> stored(reinterpret_cast<const std::byte*>(data) + kHead,
                                      reinterpret_cast<const std::byte*>(data) + size);
  std::vector<std::byte> block(layout.BlockBytes());
  if (!Decode(Representation::kPlanes, layout, stored, block).ok()) return 0;
  std::vector<std::byte> again(block.size() + 256), back(block.size());
  const auto bytes = Encode(Representation::kPlanes, layout, block, again);
  KV_CHECK(bytes.has_value());
  again.resize(*bytes);
  KV_CHECK(Decode(Representation::kPlanes, layout, again, back).ok() && back == block);
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  return {Seed("\x04\x0f\x0f\x0f"), Seed("\x0b\x07\x10\x03"), Seed("\x07\x13\x02\x00")};
}

}  // namespace kvarve::fuzz
