#include "gpu/attention/attention_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "gpu/attention/attention_oracle_testing.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using testing::TestPages;

struct Fixture {
  absl::StatusOr<AttentionPlan> Plan() const {
    return AttentionPlan::Create(pages, options, std::span(&sequence, 1), with_sinks);
  }
  TestPages memory{{.pages = 6, .k_dim = 96}, 1};
  AttentionPages pages = memory.pages();
  AttentionOptions options{.q_heads = 8};
  std::vector<int32_t> table = {0, 1, 2, 5};
  AttentionSequence sequence{.table = table, .kv_tokens = 60, .q_position = 59};
  bool with_sinks = false;
  AttentionPlaces places{.q = 0x1000,
                         .q_token_stride = 1536,
                         .q_head_stride = 192,
                         .out = 0x2000,
                         .lse = 0x3000,
                         .page_ids = 0x4000,
                         .items = 0x5000,
                         .parts = 0x6000,
                         .merges = 0x7000,
                         .workspace = 0x8000};
};

TEST(AttentionLaunchTest, RefusesWhatIsWrongByName) {
  const std::pair<const char*, std::function<void(Fixture&)>> cases[] = {
      {"page 3 of its table is 6, of 6", [](Fixture& f) { f.table[3] = 6; }},
      {"17 query tokens, of at most 16: more is prefill",
       [](Fixture& f) { f.sequence.q_tokens = 17; }},
      {"K of 72", [](Fixture& f) { f.pages.k_dim = f.pages.v_dim = 72; }},
      {"rows overlap", [](Fixture& f) { f.pages.k.token_stride = 64; }},
      {"negative head stride", [](Fixture& f) { f.pages.v.head_stride = -64; }},
      {"pages do not fit", [](Fixture& f) { f.pages.k.bytes = 100; }},
      {"not aligned to their size",
       [](Fixture& f) {
         f.pages.k.base += 1, f.pages.k.bytes -= 1;
         f.pages.pages = 5, f.table[3] = 4;
       }},
      {"attended on the CPU",
       [](Fixture& f) {
         f.pages.is_blocks = true;
         static const std::byte block{};
         static const std::byte* const blocks[] = {&block, &block, &block, &block};
         f.sequence.blocks = blocks;
       }},
      {"pages of bf16 alone",
       [](Fixture& f) {
         static const TestPages mla(
             {.type = ElementType::kFp16, .pages = 6, .kv_heads = 1, .k_dim = kMlaDim}, 1);
         f.pages = mla.pages();
       }},
      {"counts to 2^31",
       [](Fixture& f) {
         static const std::vector<int32_t> table((int64_t{1} << 31) / 16 + 1, 0);
         f.sequence.table = table;
         f.sequence.kv_tokens = int64_t{1} << 31;
       }},
  };
  for (const auto& [text, change] : cases) {
    Fixture f;
    ASSERT_TRUE(f.Plan().ok()) << f.Plan().status();
    change(f);
    EXPECT_THAT(ToStd(f.Plan().status().message()), HasSubstr(text));
  }
  EXPECT_FALSE(AttentionPlan::Create(Fixture().pages, {.q_heads = 2}, {}, false).ok());
}

TEST(AttentionLaunchTest, RefusesPlacesThatAreWrong) {
  const std::pair<const char*, std::function<void(Fixture&)>> cases[] = {
      {"no q, out or lse", [](Fixture& f) { f.places.lse = 0; }},
      {"negative stride", [](Fixture& f) { f.places.q_head_stride = -2; }},
      {"queries whose elements", [](Fixture& f) { f.places.q_token_stride = 1537; }},
      {"queries whose elements", [](Fixture& f) { f.places.q_type = kF32, f.places.q = 0x1002; }},
      {"out must lie", [](Fixture& f) { f.places.out = 0x2008; }},
      {"no page ids", [](Fixture& f) { f.places.page_ids = 0; }},
      {"no items", [](Fixture& f) { f.places.items = 0; }},
      {"misaligned table", [](Fixture& f) { f.places.page_ids = 0x4002; }},
      {"sinks that were not planned", [](Fixture& f) { f.places.sinks = 0x9000; }},
      {"no sinks, though", [](Fixture& f) { f.with_sinks = true; }},
      {"no merge tables", [](Fixture& f) { f.options.split_tokens = 32, f.places.parts = 0; }},
      {"a workspace must lie",
       [](Fixture& f) { f.options.split_tokens = 32, f.places.workspace = 0x8004; }},
      {"not a type of numbers", [](Fixture& f) { f.places.q_type = static_cast<NumberType>(3); }},
  };
  for (const auto& [text, change] : cases) {
    Fixture f;
    change(f);
    const auto plan = f.Plan();
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(ToStd(plan->Launches(f.places).status().message()), HasSubstr(text));
  }
}

TEST(AttentionLaunchTest, OneSplitIsOneLaunchAndSeveralAreTwo) {
  Fixture f;
  auto plan = f.Plan();
  auto launches = plan->Launches(f.places);
  ASSERT_TRUE(launches.ok()) << launches.status();
  ASSERT_EQ(launches->size(), 1u);
  EXPECT_STREQ(kKernels[launches->front().kernel].name, "kv_attention_bf16_128");  // padded
  EXPECT_EQ(launches->front().grid, 2u);  // a block a KV head
  EXPECT_EQ(plan->workspace_bytes(), 0u);
  AttentionParams params;
  std::memcpy(&params, launches->front().params.data(), sizeof params);
  EXPECT_EQ(params.out, f.places.out);
  EXPECT_EQ(params.wide, 1u);

  f.options.split_tokens = 32;
  plan = f.Plan();
  launches = plan->Launches(f.places);
  ASSERT_EQ(launches->size(), 2u);
  EXPECT_EQ(launches->front().grid, 4u);
  EXPECT_STREQ(kKernels[(*launches)[1].kernel].name, "kv_merge_states");
  EXPECT_EQ(plan->parts().size(), 2u);
  EXPECT_EQ(plan->workspace_bytes(), 2 * 8 * (96 * 4 + 4u));
  std::memcpy(&params, launches->front().params.data(), sizeof params);
  EXPECT_EQ(params.out, f.places.workspace);

  f.options.split_tokens = 0, f.with_sinks = true, f.places.sinks = 0x9000;  // in the merge
  EXPECT_EQ(f.Plan()->Launches(f.places)->size(), 2u);
}

// 16 query tokens of 4 query heads a KV head are 64 rows: 8 items a KV head. Each reads no more
// than its own rows attend.
TEST(AttentionLaunchTest, ManyRowsAreSeveralItems) {
  Fixture f;
  f.sequence.q_position = 40, f.sequence.q_tokens = 16;
  f.options.window = 20;
  const auto plan = f.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->items().size(), 16u);
  const AttentionItem& first = plan->items().front();
  EXPECT_EQ(first.rows, kAttentionRows);
  EXPECT_EQ(first.begin, 21u);  // query tokens 40 and 41, the last 20 each
  EXPECT_EQ(first.end, 42u);
  const AttentionItem& last = plan->items().back();
  EXPECT_EQ(last.row, 56u);
  EXPECT_EQ(last.begin, 35u);
  EXPECT_EQ(last.end, 56u);
}

TEST(AttentionLaunchTest, MergesAreChecked) {
  const std::vector<MergePart> parts = {{0x100, 0x200}, {0x300, 0x400}};
  std::vector<MergeItem> items;
  AddMergeItems(0, 2, 0, 20, &items);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[2].rows, 4u);
  EXPECT_EQ(items[2].row, 16u);
  MergeRequest request{.parts = parts, .items = items, .parts_at = 8, .items_at = 16};
  request.out = 0x1000, request.lse = 0x2000, request.dim = 64;
  EXPECT_TRUE(PlanMergeStates(request).ok());
  const auto refusal = [&](auto change) {
    MergeRequest wrong = request;
    change(wrong);
    return std::string(PlanMergeStates(wrong).status().message());
  };
  EXPECT_THAT(refusal([](MergeRequest& r) { r.parts = r.parts.first(1); }),
              HasSubstr("parts 0 to 2, of 1"));
  EXPECT_THAT(refusal([](MergeRequest& r) { r.items = {}; }), HasSubstr("nothing to merge"));
  EXPECT_THAT(refusal([](MergeRequest& r) { r.lse = 2; }), HasSubstr("not aligned"));
  EXPECT_THAT(refusal([](MergeRequest& r) { r.out = 0; }), HasSubstr("no out or lse"));
}

}  // namespace
}  // namespace kvarve
