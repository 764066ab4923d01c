// Byte planes: what can be compressed of an element is its exponent (2.7 to 3 bits of 8 on real
// KV); sign and mantissa are noise. So the highest byte of all elements goes through zstd's level
// 1, and the others are stored as they are. K goes channel by channel, since a channel's keys are
// of one size over all tokens.
//
// Stored: the lower bytes, a plane each from the higher to the lower, in the block's own order;
// then one zstd frame of the highest bytes, layer by layer, K as [head][dim][token], V as
// [head][token][dim].
//
// Elements of two and four bytes; 1.43 to 1.47 on bf16 (docs/benchmarks.md).
// THREADS: any, as codec.h says.
#ifndef KVARVE_STORAGE_CODEC_PLANES_H_
#define KVARVE_STORAGE_CODEC_PLANES_H_

#include <cstddef>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "storage/block/layout.h"

namespace kvarve {

bool HasPlanes(const BlockLayout& layout);
// As Encode and Decode in codec.h.
std::optional<size_t> EncodePlanes(const BlockLayout& layout, std::span<const std::byte> block,
                                   std::span<std::byte> out);
absl::Status DecodePlanes(const BlockLayout& layout, std::span<const std::byte> stored,
                          std::span<std::byte> block);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CODEC_PLANES_H_
