// Kernels over pages far apart, and over more of them than a grid's y could count.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>

#include "gpu/kernels/kernels_testing.h"
#include "gpu/kernels/packers_oracle_testing.h"

namespace kvarve::testing {
namespace {

using Bytes = std::vector<std::byte>;

void Fill(std::span<std::byte> bytes, SeededRandom* random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random->Next());
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

template <typename Container>
std::span<const std::byte> BytesOf(const Container& values) {
  return std::as_bytes(std::span(values));
}

// bf16 pages 3 GiB apart: the third begins beyond 2^31 elements, and beyond 2^32 bytes.
struct FarMemory {
  static constexpr int64_t kStride = int64_t{3} << 30;
  static constexpr size_t kBytes = 2 * kStride + 4096;
  static constexpr BlockLayout kLayout = {1, 1, 8, 32, 0, 2};
  FarMemory() {
    view.pages = 3, view.page_tokens = 8, view.kv_heads = 1, view.k_dim = 32;
    view.element_bytes = 2;
    view.layers.push_back({{static_cast<std::byte*>(base), kBytes, kStride, 0, 64}, {}});
  }
  ~FarMemory() { ::munmap(base, kBytes); }
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;
  void* const base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KvView view;
};

// Page 2 packed, and unpacked to page 1: one head of bf16 rows, K alone.
void CheckFarPack(KernelFamily gather, KernelFamily scatter, uint32_t group, const KvView& view,
                  const BlockLayout& layout, const RunLaunch& run) {
  SCOPED_TRACE(group == 0 ? "fp8" : "int4");
  const PagedTensor& k = view.layers[0].k;
  const auto tensors = group == 0 ? Fp8Tensors(view, layout) : Int4Tensors(view, layout, group);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  const size_t row = view.KRowBytes(), page_bytes = row * view.page_tokens;
  for (size_t i = 0; i < page_bytes; i += 2)
    StoreNumber(k.Row(2, 0, 0) + i, kBf16, static_cast<float>(i % 37) - 11);
  Bytes page(k.Row(2, 0, 0), k.Row(2, 0, 0) + page_bytes);
  Bytes block(PackedBlockBytes(*tensors, layout)), packed = block;
  const PackOracle oracle{kBf16, group, view};
  std::vector<PackedRow> rows;
  for (size_t token = 0; token < view.page_tokens; ++token)
    rows.push_back({page.data() + token * row,
                    packed.data() + token * static_cast<size_t>((*tensors)[0].row_bytes), false});
  float scale = 0;
  const float expected = group == 0 ? oracle.GatherFp8(rows) : (oracle.GatherInt4(rows), 0.0f);
  std::vector<int64_t> ids = {2};
  const std::vector<uint64_t> blocks = {AddressOf(block.data())};
  PackRequest pack;
  pack.move = {ids,
               blocks,
               0,
               view.page_tokens,
               AddressOf(tensors->data()),
               AddressOf(ids.data()),
               AddressOf(blocks.data())};
  pack.type = kBf16, pack.group = group, pack.scales_at = AddressOf(&scale);
  const Memory touched = {{k.base, static_cast<size_t>(k.bytes)},
                          block,
                          BytesOf(*tensors),
                          BytesOf(ids),
                          BytesOf(blocks),
                          BytesOf(std::span(&scale, 1))};
  auto launch = PlanPack(gather, view, layout, pack);
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_EQ(run(*launch, touched), "");
  EXPECT_TRUE(block == packed);
  EXPECT_EQ(scale, expected);
  ids[0] = 1;
  launch = PlanPack(scatter, view, layout, pack);
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_EQ(run(*launch, touched), "");
  if (group == 0) oracle.ScatterFp8(rows, scale);
  if (group != 0) oracle.ScatterInt4(rows);
  EXPECT_EQ(std::memcmp(k.Row(1, 0, 0), page.data(), page_bytes), 0);
}

}  // namespace

void CheckFarPages(const RunLaunch& run) {
  const FarMemory far;
  ASSERT_NE(far.base, MAP_FAILED);
  const KvView& view = far.view;
  constexpr int64_t kStride = FarMemory::kStride;
  auto* const base = static_cast<std::byte*>(far.base);
  const BlockLayout& layout = FarMemory::kLayout;
  const std::vector<MoveTensor> tensors = MoveTensors(view, layout);
  SeededRandom random(8);
  Bytes page(512), block(512);
  Fill(page, &random);
  std::memcpy(base + 2 * kStride, page.data(), page.size());
  const std::vector<int64_t> ids = {2}, back = {1};
  const std::vector<uint64_t> blocks = {AddressOf(block.data())};
  const std::vector<PageCopy> copies = {{2, 0}};
  const std::vector<int64_t> slots = {2 * 8 + 5};
  const Memory touched = {
      {base, FarMemory::kBytes}, block,           BytesOf(tensors), BytesOf(ids), BytesOf(back),
      BytesOf(blocks),           BytesOf(copies), BytesOf(slots)};
  MoveRequest request{ids,
                      blocks,
                      0,
                      8,
                      AddressOf(tensors.data()),
                      AddressOf(ids.data()),
                      AddressOf(blocks.data())};
  auto launch = PlanGather(view, layout, request);
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_EQ(run(*launch, touched), "");
  EXPECT_TRUE(block == page);
  request.page_ids = back, request.page_ids_at = AddressOf(back.data());
  launch = PlanScatter(view, layout, request);
  ASSERT_EQ(run(*launch, touched), "");
  EXPECT_EQ(std::memcmp(base + kStride, page.data(), 512), 0);
  launch = PlanCopyPages(view, copies, AddressOf(tensors.data()), AddressOf(copies.data()));
  ASSERT_EQ(run(*launch, touched), "");
  EXPECT_EQ(std::memcmp(base, page.data(), 512), 0);
  launch =
      PlanReshapeAndCache(view, 0, {blocks[0], 0, 64, 64, 0, 0}, slots, AddressOf(slots.data()));
  ASSERT_EQ(run(*launch, touched), "");
  EXPECT_EQ(std::memcmp(base + 2 * kStride + 5 * 64, block.data(), 64), 0);
}

void CheckFarPacks(const RunLaunch& run) {
  const FarMemory far;
  ASSERT_NE(far.base, MAP_FAILED);
  const BlockLayout& layout = FarMemory::kLayout;
  CheckFarPack(KernelFamily::kGatherFp8, KernelFamily::kScatterFp8, 0, far.view, layout, run);
  CheckFarPack(KernelFamily::kGatherInt4, KernelFamily::kScatterInt4, 16, far.view, layout, run);
}

void CheckManyPieces(const RunLaunch& run) {
  KvView view;
  constexpr int64_t kTokens = 70'000;
  Bytes cache(kTokens * 4 * 2), rows(kTokens * 4);
  view.pages = kTokens / 8 * 2, view.page_tokens = 8, view.kv_heads = 1, view.k_dim = 4;
  view.element_bytes = 1;
  view.layers.push_back({{cache.data(), static_cast<int64_t>(cache.size()), 32, 0, 4}, {}});
  SeededRandom random(9);
  Fill(rows, &random);
  std::vector<int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  auto launch = PlanReshapeAndCache(view, 0, {AddressOf(rows.data()), 0, 4, 4, 0, 0}, slots,
                                    AddressOf(slots.data()));
  ASSERT_TRUE(launch.ok()) << launch.status();
  const Memory reshaped = {cache, rows, BytesOf(slots)};
  ASSERT_EQ(run(*launch, reshaped), "");
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), cache.begin()));
  // And more copies of pages than a grid's y has blocks would have: all upper pages from the lower.
  const std::vector<MoveTensor> tensors = MoveTensors(view, {1, 1, 8, 4, 0, 1});
  std::vector<PageCopy> copies;
  for (int64_t page = 0; page < kTokens / 8; ++page) copies.push_back({page, kTokens / 8 + page});
  launch = PlanCopyPages(view, copies, AddressOf(tensors.data()), AddressOf(copies.data()));
  ASSERT_TRUE(launch.ok()) << launch.status();
  const Memory copied = {cache, BytesOf(tensors), BytesOf(copies)};
  ASSERT_EQ(run(*launch, copied), "");
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), cache.begin() + kTokens * 4));
}

}  // namespace kvarve::testing
