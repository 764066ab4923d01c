#include "storage/codec/codec.h"

#include <algorithm>

#include "storage/base/status_macros.h"
#include "storage/codec/planes.h"

namespace kvarve {

std::optional<Representation> RepresentationOfName(std::string_view name) {
  const auto it = std::ranges::find(kRepresentationNames, name);
  if (it == kRepresentationNames.end()) return std::nullopt;
  return static_cast<Representation>(it - kRepresentationNames.begin());
}

bool CanEncode(Representation to, const BlockLayout& layout) {
  return to == Representation::kPlanes && HasPlanes(layout);
}

std::optional<size_t> Encode(Representation to, const BlockLayout& layout,
                             std::span<const std::byte> block, std::span<std::byte> out) {
  KV_CHECK(to == Representation::kPlanes);
  return EncodePlanes(layout, block, out);
}

absl::Status Decode(Representation from, const BlockLayout& layout,
                    std::span<const std::byte> stored, std::span<std::byte> block) {
  KV_CHECK(from == Representation::kPlanes);
  return DecodePlanes(layout, stored, block);
}

}  // namespace kvarve
