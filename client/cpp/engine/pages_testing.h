// A small engine's pages and a store of blocks for the tests of this folder.
#ifndef KVARVE_CLIENT_CPP_ENGINE_PAGES_TESTING_H_
#define KVARVE_CLIENT_CPP_ENGINE_PAGES_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "gpu/transfer/transfer.h"
#include "gpu/transfer/transfer_testing.h"
#include "storage/block/block_key.h"
#include "storage/block/layout.h"

namespace kvarve {

// 2 layers, 2 heads, fused rows of K and V, pages of 4 tokens, blocks of 8.
struct TestPages {
  static constexpr int64_t kPages = 64;
  static constexpr BlockLayout kLayout = {2, 2, 8, 4, 4, 2};
  static constexpr int64_t kRow = 16, kHead = 4 * kRow, kPage = 2 * kHead, kLayer = kPages * kPage;

  TestPages() : memory(2 * kLayer) {
    view = {.pages = kPages,
            .page_tokens = 4,
            .kv_heads = 2,
            .k_dim = 4,
            .v_dim = 4,
            .element_bytes = 2};
    for (int layer = 0; layer < 2; ++layer) {
      std::byte* base = memory.data() + layer * kLayer;
      view.layers.push_back(
          {{base, kLayer, kPage, kHead, kRow}, {base + 8, kLayer - 8, kPage, kHead, kRow}});
    }
    mover = testing::CpuTransfer(view, kLayout).value();
  }

  // Every byte of a block, in the order of the block, as an address in the pages: the oracle.
  std::vector<std::byte*> Bytes(std::span<const int64_t> ids, uint32_t token_begin,
                                uint32_t token_end) {
    std::vector<std::byte*> bytes;
    for (int layer = 0; layer < 2; ++layer) {
      for (int v = 0; v < 2; ++v) {
        for (int head = 0; head < 2; ++head) {
          for (uint32_t token = 0; token < 8; ++token) {
            for (int i = 0; i < 8; ++i) {
              const bool inside = token >= token_begin && token < token_end;
              bytes.push_back(!inside ? nullptr
                                      : memory.data() + layer * kLayer + ids[token / 4] * kPage +
                                            head * kHead + token % 4 * kRow + v * 8 + i);
            }
          }
        }
      }
    }
    return bytes;
  }

  std::vector<std::byte> memory;
  KvView view;
  std::shared_ptr<Transfer> mover;
};

inline BlockKey KeyOf(uint64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &number, 8);
  return key;
}

inline std::vector<std::byte> RandomBytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_ENGINE_PAGES_TESTING_H_
