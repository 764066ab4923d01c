#include "storage/codec/planes.h"

#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int kLevel = 1;
constexpr size_t kTile = 8;

// A thread's own: contexts are costly to make, and planes are as large as blocks.
struct Scratch {
  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> compress{nullptr, &ZSTD_freeCCtx};
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decompress{nullptr, &ZSTD_freeDCtx};
  std::vector<uint8_t> top;     // the highest bytes, in the stored order
  std::vector<uint8_t> matrix;  // of one head
};
Scratch& OwnScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Eight rows of eight bytes, one a word: swaps rows and columns (Hacker's Delight 7-3).
void Transpose(uint64_t x[kTile]) {
  const auto swap = [&](size_t distance, int bits, uint64_t mask) {
    for (size_t i = 0; i < kTile; ++i) {
      if ((i & distance) != 0) continue;
      const uint64_t moved = ((x[i] >> bits) ^ x[i + distance]) & mask;
      x[i] ^= moved << bits;
      x[i + distance] ^= moved;
    }
  };
  swap(4, 32, 0x00000000ffffffffu);
  swap(2, 16, 0x0000ffff0000ffffu);
  swap(1, 8, 0x00ff00ff00ff00ffu);
}

// [rows][columns] -> [columns][rows]. No overlap.
void TransposeMatrix(const uint8_t* from, size_t rows, size_t columns, uint8_t* to) {
  const size_t whole_rows = rows - rows % kTile, whole_columns = columns - columns % kTile;
  for (size_t c = 0; c < whole_columns; c += kTile) {
    for (size_t r = 0; r < whole_rows; r += kTile) {
      uint64_t tile[kTile];
      for (size_t i = 0; i < kTile; ++i) {
        std::memcpy(&tile[i], from + (r + i) * columns + c, kTile);
      }
      Transpose(tile);
      for (size_t i = 0; i < kTile; ++i) std::memcpy(to + (c + i) * rows + r, &tile[i], kTile);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) {
      to[c * rows + r] = from[r * columns + c];
    }
  }
}

template <typename Word>
struct Planes {
  static constexpr size_t kLower = sizeof(Word) - 1;
  static constexpr int kTopShift = 8 * kLower;

  // `lower` are the planes of the whole block, `stride` apart.
  static void Split(const std::byte* from, size_t count, uint8_t* top, std::byte* lower,
                    size_t stride) {
    for (size_t i = 0; i < count; ++i) {
      Word word;
      std::memcpy(&word, from + i * sizeof(Word), sizeof(Word));
      top[i] = static_cast<uint8_t>(word >> kTopShift);
      for (size_t plane = 0; plane < kLower; ++plane) {
        lower[plane * stride + i] =
            static_cast<std::byte>(word >> (kTopShift - 8 * static_cast<int>(plane + 1)));
      }
    }
  }
  static void Join(const uint8_t* top, const std::byte* lower, size_t stride, size_t count,
                   std::byte* to) {
    for (size_t i = 0; i < count; ++i) {
      auto word = static_cast<Word>(Word{top[i]} << kTopShift);
      for (size_t plane = 0; plane < kLower; ++plane) {
        word |= static_cast<Word>(static_cast<Word>(lower[plane * stride + i])
                                  << (kTopShift - 8 * static_cast<int>(plane + 1)));
      }
      std::memcpy(to + i * sizeof(Word), &word, sizeof(Word));
    }
  }

  // Calls fn(first element, elements, is K) for each part that is one matrix: a head's K, or a
  // layer's whole V.
  template <typename Fn>
  static void ForEachPart(const BlockLayout& layout, Fn fn) {
    const size_t head = size_t{layout.tokens} * layout.k_dim;
    const size_t v = layout.VBytes() / sizeof(Word);
    size_t at = 0;
    for (uint32_t layer = 0; layer < layout.layers; ++layer) {
      for (uint32_t h = 0; h < layout.kv_heads; ++h, at += head) fn(at, head, true);
      fn(at, v, false);
      at += v;
    }
  }

  static void SplitBlock(const BlockLayout& layout, const std::byte* block, Scratch* scratch,
                         std::byte* lower, size_t elements) {
    scratch->matrix.resize(size_t{layout.tokens} * layout.k_dim);
    ForEachPart(layout, [&](size_t at, size_t count, bool is_k) {
      uint8_t* const top = scratch->top.data() + at;
      uint8_t* const rows = is_k ? scratch->matrix.data() : top;
      Split(block + at * sizeof(Word), count, rows, lower + at, elements);
      if (is_k) TransposeMatrix(rows, layout.tokens, layout.k_dim, top);
    });
  }
  static void JoinBlock(const BlockLayout& layout, Scratch* scratch, const std::byte* lower,
                        size_t elements, std::byte* block) {
    scratch->matrix.resize(size_t{layout.tokens} * layout.k_dim);
    ForEachPart(layout, [&](size_t at, size_t count, bool is_k) {
      const uint8_t* rows = scratch->top.data() + at;
      if (is_k) {
        TransposeMatrix(rows, layout.k_dim, layout.tokens, scratch->matrix.data());
        rows = scratch->matrix.data();
      }
      Join(rows, lower + at, elements, count, block + at * sizeof(Word));
    });
  }
};

}  // namespace

bool HasPlanes(const BlockLayout& layout) {
  return (layout.element_bytes == 2 || layout.element_bytes == 4) && layout.BlockBytes() > 0;
}

std::optional<size_t> EncodePlanes(const BlockLayout& layout, std::span<const std::byte> block,
                                   std::span<std::byte> out) {
  if (!HasPlanes(layout)) return std::nullopt;
  KV_CHECK(block.size() == layout.CappedBlockBytes());
  const size_t elements = block.size() / layout.element_bytes;
  const size_t lower_bytes = block.size() - elements;
  if (out.size() <= lower_bytes) return std::nullopt;
  Scratch& scratch = OwnScratch();
  if (scratch.compress == nullptr) scratch.compress.reset(ZSTD_createCCtx());
  KV_CHECK(scratch.compress != nullptr);
  scratch.top.resize(elements);
  if (layout.element_bytes == 2) {
    Planes<uint16_t>::SplitBlock(layout, block.data(), &scratch, out.data(), elements);
  } else {
    Planes<uint32_t>::SplitBlock(layout, block.data(), &scratch, out.data(), elements);
  }
  const std::span<std::byte> rest = out.subspan(lower_bytes);
  const size_t frame = ZSTD_compressCCtx(scratch.compress.get(), rest.data(), rest.size(),
                                         scratch.top.data(), elements, kLevel);
  if (ZSTD_isError(frame)) return std::nullopt;  // no room
  return lower_bytes + frame;
}

absl::Status DecodePlanes(const BlockLayout& layout, std::span<const std::byte> stored,
                          std::span<std::byte> block) {
  if (!HasPlanes(layout)) return absl::DataLossError("no planes in blocks of this layout");
  KV_CHECK(block.size() == layout.CappedBlockBytes());
  const size_t elements = block.size() / layout.element_bytes;
  const size_t lower_bytes = block.size() - elements;
  if (stored.size() <= lower_bytes) return absl::DataLossError("byte planes that are too short");
  Scratch& scratch = OwnScratch();
  if (scratch.decompress == nullptr) scratch.decompress.reset(ZSTD_createDCtx());
  KV_CHECK(scratch.decompress != nullptr);
  scratch.top.resize(elements);
  const std::span<const std::byte> frame = stored.subspan(lower_bytes);
  const size_t got = ZSTD_decompressDCtx(scratch.decompress.get(), scratch.top.data(), elements,
                                         frame.data(), frame.size());
  if (ZSTD_isError(got) || got != elements) {
    return absl::DataLossError("the highest byte plane cannot be decompressed");
  }
  if (layout.element_bytes == 2) {
    Planes<uint16_t>::JoinBlock(layout, &scratch, stored.data(), elements, block.data());
  } else {
    Planes<uint32_t>::JoinBlock(layout, &scratch, stored.data(), elements, block.data());
  }
  return absl::OkStatus();
}

}  // namespace kvarve
