// Goal: no bytes make DecodeDescriptor read outside them, and none but a descriptor's one encoding
// decode: a second encoding would be a second name for the same namespace. Under a sanitizer.
#include "storage/base/status_macros.h"
#include "storage/block/golden_testing.h"
#include "storage/block/namespace.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<kvarve::NamespaceDescriptor> decoded = kvarve::DecodeDescriptor(bytes);
  if (!decoded.ok()) return 0;
  KV_CHECK(kvarve::EncodeDescriptor(*decoded) == bytes);
  // Whatever a client claims, validation ends and what passes it has a layout that does not wrap.
  if (kvarve::ValidateDescriptor(*decoded).ok()) {
    KV_CHECK(decoded->block_bytes > 0 && decoded->block_bytes <= kvarve::kMaxBlockBytes);
  }
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const auto& entry : ReadGolden("namespace.json")) seeds.push_back(Unhex(entry["canonical"]));
  return seeds;
}

}  // namespace kvarve::fuzz
