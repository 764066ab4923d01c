// Representations: the forms in which a block can be stored below the host tier. Every one here is
// lossless. Their numbers stand in records on devices (docs/formats.md): never renumber.
//
// Decode takes any bytes: what is no block in that form is an error, and nothing outside `block` is
// written, nothing outside `stored` read.
//
// THREADS: any; each thread keeps scratch memory and zstd's contexts for itself, at most a block's
// size each way.  BLOCKS: never, but they compute (docs/benchmarks.md has the rates).
#ifndef KVARVE_STORAGE_CODEC_CODEC_H_
#define KVARVE_STORAGE_CODEC_CODEC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "storage/block/layout.h"

namespace kvarve {

enum class Representation : uint8_t {
  kRaw = 0,     // the block's bytes
  kPlanes = 1,  // planes.h
};
inline constexpr std::array<std::string_view, 2> kRepresentationNames = {"raw", "planes"};

inline bool IsKnownRepresentation(uint8_t number) { return number < kRepresentationNames.size(); }
inline std::string_view RepresentationName(Representation of) {
  return kRepresentationNames[static_cast<size_t>(of)];
}
std::optional<Representation> RepresentationOfName(std::string_view name);

// Whether blocks of this layout have the form at all.
bool CanEncode(Representation to, const BlockLayout& layout);
// Writes the block in that form and returns how many bytes it took. None: it does not fit `out`, or
// has no such form. REQUIRES: not kRaw; `block` has the layout's size.
std::optional<size_t> Encode(Representation to, const BlockLayout& layout,
                             std::span<const std::byte> block, std::span<std::byte> out);
// The inverse. DataLoss: `stored` is no block in that form. REQUIRES: not kRaw; `block` has the
// layout's size.
absl::Status Decode(Representation from, const BlockLayout& layout,
                    std::span<const std::byte> stored, std::span<std::byte> block);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CODEC_CODEC_H_
