#include "gpu/kernels/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

struct Fixture {
  Fixture() {
    view.pages = 10, view.page_tokens = 16, view.kv_heads = 2;
    view.k_dim = view.v_dim = 64, view.element_bytes = 2;
    for (int64_t layer = 0; layer < 3; ++layer) {
      auto* const base = reinterpret_cast<std::byte*>(0x100000 + layer * 0x100000);
      const PagedTensor k{base, 40960, 4096, 128, 256}, v{base + 65536, 40960, 4096, 128, 256};
      view.layers.push_back({k, v});
    }
    Renew();
  }
  void Renew() { request = {ids, blocks, 0, 32, 0x1000, 0x2000, 0x3000}; }
  KvView view;
  BlockLayout layout{3, 2, 32, 64, 64, 2};
  std::vector<int64_t> ids = {3, 1, 0, 2};
  std::vector<uint64_t> blocks = {0x900000, 0xa00000};
  MoveRequest request;
};

TEST(PlanTest, RefusesWhatIsWrongByName) {
  const std::pair<const char*, std::function<void(Fixture&)>> cases[] = {
      {"no blocks", [](Fixture& f) { f.blocks.clear(); }},
      {"tokens [5, 5)", [](Fixture& f) { f.request.token_begin = f.request.token_end = 5; }},
      {"tokens [0, 33)", [](Fixture& f) { f.request.token_end = 33; }},
      {"without an address", [](Fixture& f) { f.blocks[1] = 0; }},
      {"without an address", [](Fixture& f) { f.request.page_ids_at = 0; }},
      {"3 page ids for 2 blocks of 2 pages", [](Fixture& f) { f.ids.pop_back(); }},
      {"page 1 of block 0: id 10 of 10", [](Fixture& f) { f.ids[1] = 10; }},
      {"id -2 of 10", [](Fixture& f) { f.ids[2] = -2; }},
      {"id 3 stands twice", [](Fixture& f) { f.ids[3] = 3; }},
      {"rows overlap", [](Fixture& f) { f.view.layers[1].k.token_stride = 64; }},
      {"KV heads", [](Fixture& f) { f.layout.kv_heads = 3; }},
      {"x-packed", [](Fixture& f) { f.view.packing = RowPacking::kXPacked; }},
      {"blocked scales", [](Fixture& f) { f.view.packing = RowPacking::kBlockedScales; }},
  };
  for (const auto& [text, change] : cases) {
    Fixture f;
    change(f);
    f.request.page_ids = f.ids, f.request.blocks = f.blocks;
    const auto launch = PlanScatter(f.view, f.layout, f.request);
    ASSERT_EQ(launch.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(ToStd(launch.status().message()), HasSubstr(text));
  }
  Fixture f;
  f.ids = {3, 3, -1, 99};  // reading twice is allowed; the last page is outside the tokens
  f.request.token_end = 16;
  f.request.page_ids = f.ids;
  EXPECT_TRUE(PlanGather(f.view, f.layout, f.request).ok());
}

TEST(PlanTest, TheWidthIsTheWidestThatEverythingAllows) {
  const std::pair<const char*, std::function<void(Fixture&)>> cases[] = {
      {"kv_gather_16", [](Fixture&) {}},
      {"kv_gather_8", [](Fixture& f) { f.blocks[1] += 8; }},
      {"kv_gather_4",
       [](Fixture& f) {
         f.view.layers[2].v.base += 4;
         f.view.layers[2].v.bytes -= 4;
         f.view.pages = 9;
         f.ids = {3, 1, 0, 2};
       }},
      {"kv_gather_2",
       [](Fixture& f) {
         f.view.layers[0].k.page_stride += 2;
         f.view.pages = 9;
       }},
      {"kv_gather_1", [](Fixture& f) { f.blocks[0] += 1; }},
  };
  for (const auto& [name, change] : cases) {
    Fixture f;
    change(f);
    f.request.page_ids = f.ids, f.request.blocks = f.blocks;
    const auto launch = PlanGather(f.view, f.layout, f.request);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_STREQ(kKernels[launch->kernel].name, name);
  }
}

TEST(PlanTest, CopiesOfPagesMustNotMeet) {
  Fixture f;
  auto status = [&](std::vector<PageCopy> copies) {
    return std::string(PlanCopyPages(f.view, copies, 0x1000, 0x2000).status().message());
  };
  EXPECT_EQ(status({{1, 2}, {1, 3}}), "");
  EXPECT_THAT(status({{1, 2}, {3, 2}}), HasSubstr("two copies to page id 2"));
  EXPECT_THAT(status({{1, 2}, {2, 3}}), HasSubstr("to and from"));
  EXPECT_THAT(status({{1, 10}}), HasSubstr("page id 10 of 10"));
  EXPECT_THAT(status({{-1, 2}}), HasSubstr("page id -1"));
  EXPECT_THAT(status({}), HasSubstr("no copies"));
}

TEST(PlanTest, SlotsAndPackingAreChecked) {
  Fixture f;
  const NewRows rows{0x500000, 0x600000, 256, 128, 256, 128};
  auto reshape = [&](std::vector<int64_t> slots, uint32_t layer = 0, NewRows from = NewRows{}) {
    if (from.k == 0) from = rows;
    return std::string(PlanReshapeAndCache(f.view, layer, from, slots, 0x7000).status().message());
  };
  EXPECT_EQ(reshape({0, -1, 159}), "");
  EXPECT_THAT(reshape({160}), HasSubstr("slot 160 of 10 pages"));
  EXPECT_THAT(reshape({-2}), HasSubstr("slot -2"));
  EXPECT_THAT(reshape({5, 5}), HasSubstr("slot 5 stands twice"));
  EXPECT_THAT(reshape({0}, 3), HasSubstr("layer 3 of 3"));
  EXPECT_THAT(reshape({0}, 0, {0x500000, 0, 256, 128, 0, 0}), HasSubstr("of V if there is one"));

  auto pack = [&](KernelFamily family, NumberType type, uint32_t group, uint32_t end = 32) {
    PackRequest request{f.request, type, 0x8000, group};
    request.move.token_end = end;
    return std::string(PlanPack(family, f.view, f.layout, request).status().message());
  };
  EXPECT_EQ(pack(KernelFamily::kGatherFp8, kBf16, 0), "");
  EXPECT_THAT(pack(KernelFamily::kGatherFp8, kBf16, 0, 31), HasSubstr("whole blocks"));
  EXPECT_THAT(pack(KernelFamily::kGatherFp8, kF32, 0), HasSubstr("elements of 2 bytes"));
  EXPECT_EQ(pack(KernelFamily::kGatherInt4, kF16, 32, 31), "");
  EXPECT_THAT(pack(KernelFamily::kGatherInt4, kF16, 48), HasSubstr("groups of 48"));
  EXPECT_THAT(pack(KernelFamily::kGatherInt4, kF16, 1), HasSubstr("groups of 1"));
  EXPECT_THAT(pack(KernelFamily::kGather, kF16, 32), HasSubstr("not a packing kernel"));
  f.view.layers[0].k.base += 1;
  f.view.layers[0].k.bytes -= 1;
  f.view.pages = 9;
  EXPECT_THAT(pack(KernelFamily::kGatherInt4, kF16, 32), HasSubstr("not aligned"));
}

TEST(PlanTest, AGridStaysSmallAndALaunchHasAnEnd) {
  Fixture f;
  const auto launch = PlanGather(f.view, f.layout, f.request);
  ASSERT_TRUE(launch.ok());
  EXPECT_GE(launch->grid, 1u);
  EXPECT_LE(launch->grid, kMaxGrid);
  MoveParams params;
  std::memcpy(&params, launch->params.data(), sizeof params);
  EXPECT_EQ(params.lanes, 8u);  // rows of 128 bytes, 16 at a time
  EXPECT_EQ(params.piece_tokens, 1u);
  EXPECT_EQ(PlanBatchCopy({}, 1).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<CopyJob> jobs = {{1, 2, 3}};
  EXPECT_FALSE(PlanBatchCopy(jobs, 8, 8, 1, 0).ok());
  EXPECT_FALSE(PlanBatchCopy(jobs, 8, 9, 1, 4).ok());
  EXPECT_TRUE(PlanBatchCopy(jobs, 8, 8, 1, 4).ok());
}

}  // namespace
}  // namespace kvarve
