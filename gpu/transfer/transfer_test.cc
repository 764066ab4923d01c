// Random geometries against an oracle that copies element by element, bytes of everything compared.
#include "gpu/transfer/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "gpu/transfer/transfer_testing.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using testing::CpuTransfer;
using ::testing::HasSubstr;
using testing::MoveNow;

// From the begin of a cache line on, so that vectorised loops are met whenever rows allow it.
template <typename T>
struct LineAllocator {
  using value_type = T;
  T* allocate(size_t n) { return static_cast<T*>(::operator new (n, std::align_val_t{64})); }
  void deallocate(T* memory, size_t) { ::operator delete (memory, std::align_val_t{64}); }
  friend bool operator==(LineAllocator, LineAllocator) { return true; }
};
using Bytes = std::vector<std::byte, LineAllocator<std::byte>>;

// An engine: one allocation that all layers' tensors lie in, with gaps.
struct Engine {
  Bytes memory;
  KvView view;
  BlockLayout layout;
  uint32_t pages_per_block = 0;
};

void Fill(Bytes& bytes, std::mt19937_64& random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

// Strides of a random nesting of page, head and token over rows of `row_bytes`, with padding now
// and then; returns the bytes that all rows take.
int64_t RandomStrides(PagedTensor& tensor, const KvView& view, int64_t row_bytes,
                      std::mt19937_64& random) {
  std::array<std::pair<int64_t*, int64_t>, 3> dimensions = {
      {{&tensor.page_stride, view.pages},
       {&tensor.head_stride, view.kv_heads},
       {&tensor.token_stride, view.page_tokens}}};
  std::shuffle(dimensions.begin(), dimensions.end(), random);
  int64_t extent = row_bytes;
  const int64_t unit = row_bytes % 32 == 0 ? 32 : 1;  // padding keeps the alignment that rows have
  for (auto& [stride, count] : dimensions) {
    *stride = extent + (random() % 3 == 0 ? static_cast<int64_t>(random() % 40) * unit : 0);
    extent = *stride * count;
  }
  return extent;
}

Engine RandomEngine(std::mt19937_64& random) {
  Engine engine;
  KvView& view = engine.view;
  view.pages = 3 + random() % 12;
  view.page_tokens = 1 + random() % 9;
  view.kv_heads = 1 + random() % 4;
  const bool vectors = random() % 3 == 0;  // rows of whole 32-byte pieces
  view.k_dim = vectors ? 32 * (1 + random() % 3) : 1 + random() % 20;
  view.element_bytes = std::array{1, 2, 4}[random() % 3];
  const int kind = random() % 4;  // MLA, fused rows, two tensors, halves of one tensor
  if (kind == 0) {
    view.kv_heads = 1;
    view.v_dim = 0;
  } else {
    view.v_dim = random() % 3 == 0 ? (vectors ? 64 : 1 + random() % 20) : view.k_dim;
  }
  engine.pages_per_block = 1 + random() % std::min<int64_t>(view.pages, 4);
  const uint32_t layers = 1 + random() % 4;
  engine.layout = {layers,     view.kv_heads, engine.pages_per_block * view.page_tokens,
                   view.k_dim, view.v_dim,    view.element_bytes};
  const int64_t k_row = view.KRowBytes(), v_row = view.VRowBytes();
  std::vector<std::array<int64_t, 2>> begins;
  const int64_t gap = vectors && random() % 4 != 0 ? 32 : 1;  // now and then rows are not aligned
  int64_t at = random() % 70 * gap;
  for (uint32_t i = 0; i < layers; ++i) {
    LayerView& layer = view.layers.emplace_back();
    if (kind == 1) {
      const int64_t bytes = RandomStrides(layer.k, view, k_row + v_row, random);
      layer.v = layer.k;
      layer.k.bytes = bytes;
      layer.v.bytes = bytes - k_row;
      begins.push_back({at, at + k_row});
      at += bytes;
    } else {
      layer.k.bytes = RandomStrides(layer.k, view, k_row, random);
      if (kind != 0) layer.v.bytes = RandomStrides(layer.v, view, v_row, random);
      begins.push_back({at, at + layer.k.bytes});
      at += layer.k.bytes + layer.v.bytes;
    }
    at += random() % 70 * gap;
  }
  engine.memory.resize(at + 64);
  Fill(engine.memory, random);
  for (uint32_t i = 0; i < layers; ++i) {
    view.layers[i].k.base = engine.memory.data() + begins[i][0];
    if (view.v_dim > 0) view.layers[i].v.base = engine.memory.data() + begins[i][1];
  }
  return engine;
}

std::vector<int64_t> RandomPages(const Engine& engine, std::mt19937_64& random) {
  std::vector<int64_t> pages(engine.view.pages);
  std::iota(pages.begin(), pages.end(), 0);
  if (random() % 3 != 0) std::shuffle(pages.begin(), pages.end(), random);
  pages.resize(engine.pages_per_block);
  return pages;
}

// The naive statement of where each byte lies; calls move(byte of a page, byte of the block).
template <typename Move>
void EachByte(const Engine& engine, std::span<const int64_t> pages, uint32_t begin, uint32_t end,
              Bytes& block, Move move) {
  const KvView& view = engine.view;
  size_t at = 0;
  for (uint32_t layer = 0; layer < engine.layout.layers; ++layer) {
    for (const bool is_v : {false, true}) {
      const PagedTensor& tensor = is_v ? view.layers[layer].v : view.layers[layer].k;
      const uint32_t dim = is_v ? view.v_dim : view.k_dim;
      for (uint32_t head = 0; head < view.kv_heads; ++head) {
        for (uint32_t token = 0; token < engine.layout.tokens; ++token) {
          for (uint32_t i = 0; i < dim * view.element_bytes; ++i, ++at) {
            if (token < begin || token >= end) continue;
            move(tensor.base[pages[token / view.page_tokens] * tensor.page_stride +
                             head * tensor.head_stride +
                             token % view.page_tokens * tensor.token_stride + i],
                 block[at]);
          }
        }
      }
    }
  }
  ASSERT_EQ(at, block.size());
}

TEST(TransferTest, GatherAndScatterEqualTheOracle) {
  const uint64_t seed = 20261130;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 1500; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    Engine engine = RandomEngine(random);
    auto mover = CpuTransfer(engine.view, engine.layout);
    ASSERT_TRUE(mover.ok()) << mover.status();
    ASSERT_EQ((*mover)->pages_per_block(), engine.pages_per_block);
    std::vector<int64_t> pages = RandomPages(engine, random);
    uint32_t begin = random() % (engine.layout.tokens + 1),
             end = random() % (engine.layout.tokens + 1);
    if (begin > end) std::swap(begin, end);
    if (round % 3 == 0 || begin == end) begin = 0, end = engine.layout.tokens;

    Bytes block(engine.layout.BlockBytes());
    Fill(block, random);
    Bytes expected_block = block;
    EachByte(engine, pages, begin, end, expected_block,
             [](std::byte page, std::byte& b) { b = page; });
    const Bytes before = engine.memory;
    // Pages outside the range need no valid id.
    std::vector<int64_t> ids = pages;
    for (uint32_t i = 0; i < engine.pages_per_block; ++i) {
      if ((i + 1) * engine.view.page_tokens <= begin || i * engine.view.page_tokens >= end)
        ids[i] = -1;
    }
    ASSERT_TRUE(MoveNow(**mover, MoveDirection::kGather, ids, begin, end, block).ok());
    ASSERT_TRUE(block == expected_block);
    ASSERT_TRUE(engine.memory == before);

    Fill(block, random);
    EachByte(engine, pages, begin, end, block, [](std::byte& page, std::byte b) { page = b; });
    const Bytes expected_memory = engine.memory;
    std::copy(before.begin(), before.end(), engine.memory.begin());
    ASSERT_TRUE(MoveNow(**mover, MoveDirection::kScatter, ids, begin, end, block).ok());
    ASSERT_TRUE(engine.memory == expected_memory);
  }
}

// Large enough for runs that go around the cache, in the two layouts that coalesce most and least.
TEST(TransferTest, LongRuns) {
  const uint64_t seed = 77;
  std::mt19937_64 random(seed);
  for (const bool fused : {false, true}) {
    Engine engine;
    engine.view.pages = 5;
    engine.view.page_tokens = 128;
    engine.view.kv_heads = 3;
    engine.view.k_dim = engine.view.v_dim = 64;
    engine.view.element_bytes = 2;
    engine.layout = {2, 3, 256, 64, 64, 2};
    engine.pages_per_block = 2;
    engine.memory.resize(2 * 2 * 5 * 49152);
    Fill(engine.memory, random);
    for (int layer = 0; layer < 2; ++layer) {
      std::byte* base = engine.memory.data() + layer * 2 * 5 * 49152;
      if (fused) {
        engine.view.layers.push_back(
            {{base, 491520, 98304, 32768, 256}, {base + 128, 491392, 98304, 32768, 256}});
      } else {
        engine.view.layers.push_back(
            {{base, 245760, 49152, 16384, 128}, {base + 245760, 245760, 49152, 16384, 128}});
      }
    }
    auto mover = CpuTransfer(engine.view, engine.layout);
    ASSERT_TRUE(mover.ok()) << mover.status();
    const int64_t pages[] = {3, 1};
    Bytes block(engine.layout.BlockBytes()), expected(block.size());
    EachByte(engine, pages, 0, 256, expected, [](std::byte page, std::byte& b) { b = page; });
    ASSERT_TRUE(MoveNow(**mover, MoveDirection::kGather, pages, 0, 256, block).ok());
    ASSERT_TRUE(block == expected);
    Fill(block, random);
    const Bytes before = engine.memory;
    EachByte(engine, pages, 100, 256, block, [](std::byte& page, std::byte b) { page = b; });
    const Bytes expected_memory = engine.memory;
    std::copy(before.begin(), before.end(), engine.memory.begin());
    ASSERT_TRUE(MoveNow(**mover, MoveDirection::kScatter, pages, 100, 256, block).ok());
    ASSERT_TRUE(engine.memory == expected_memory);
  }
}

TEST(TransferTest, NothingMovesWhenAnythingIsWrong) {
  std::mt19937_64 random(3);
  Engine engine;
  do {
    engine = RandomEngine(random);
  } while (engine.pages_per_block < 3 || engine.view.page_tokens < 2);
  auto mover = CpuTransfer(engine.view, engine.layout);
  ASSERT_TRUE(mover.ok());
  const uint32_t n = engine.pages_per_block, tokens = engine.layout.tokens;
  std::vector<int64_t> good = RandomPages(engine, random);
  Bytes block(engine.layout.BlockBytes()), longer(block.size() + 1);
  const Bytes memory = engine.memory, zeros = block;

  struct Case {
    const char* text;
    std::vector<int64_t> pages;
    uint32_t begin, end;
    bool wrong_size = false;
  };
  std::vector<Case> cases = {
      {"page ids for a block of", {good.begin(), good.end() - 1}, 0, 1},
      {"of a block of", good, 1, 0},
      {"of a block of", good, 0, tokens + 1},
      {"of a block of", good, ~0u, ~0u},
      {"a move of 1 blocks, tokens", good, 1, 1},
      {"bytes where the layout has", good, 0, tokens, true},
  };
  for (const int64_t bad : {int64_t{-1}, engine.view.pages, std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()}) {
    cases.push_back({"of the block: id", good, 0, tokens});
    cases.back().pages[n - 1] = bad;
  }
  cases.push_back({"stands twice", good, 0, tokens});
  cases.back().pages[n - 1] = good[0];
  for (const Case& c : cases) {
    for (const bool scatter : {false, true}) {
      Bytes& buffer = c.wrong_size ? longer : block;
      const auto direction = scatter ? MoveDirection::kScatter : MoveDirection::kGather;
      const absl::Status status = MoveNow(**mover, direction, c.pages, c.begin, c.end, buffer);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(ToStd(status.message()), HasSubstr(c.text));
      EXPECT_TRUE(engine.memory == memory && block == zeros);
    }
  }
  EXPECT_TRUE(engine.memory == memory);
}

}  // namespace
}  // namespace kvarve
