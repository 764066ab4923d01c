#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_kernels_testing.h"
#include "gpu/attention/attention_launch.h"

namespace kvarve::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

DeviceAnswer Attend(const TestPages& pages, const AttentionOptions& options,
                    const std::vector<AttentionSequence>& sequences, const std::vector<float>& q,
                    const RunLaunch& run, std::span<const float> sinks = {}) {
  return AttendOnDevice(pages, options, sequences, sinks, q, {}, run);
}

void NothingAttended(const RunLaunch& run) {
  const TestPages memory({.pages = 4}, 9);
  const auto table = ShuffledTable(4, 9);
  const auto q = RandomQueries(5 * 2 * 64, kF32, 9);
  const std::vector<AttentionSequence> sequences = {
      {.table = {}, .kv_tokens = 0},                                            // no KV
      {.table = table, .kv_tokens = 64, .kv_position = 100, .q_position = 99},  // all of it later
      {.table = table, .kv_tokens = 64, .q_position = 500},  // all of it behind the window
      {.table = table, .kv_tokens = 1, .q_position = 0, .q_tokens = 2}};
  for (const uint32_t split : {0u, 16u}) {
    SCOPED_TRACE(split);
    const AttentionOptions options{.q_heads = 2, .scale = 1, .window = 80, .split_tokens = split};
    const DeviceAnswer answer = Attend(memory, options, sequences, q, run);
    ASSERT_EQ(answer.lse.size(), 10u);
    for (int row = 0; row < 6; ++row) {
      EXPECT_EQ(answer.lse[row], -kInfinity) << "nothing is attended";
      for (int d = 0; d < 64; ++d) ASSERT_EQ(answer.out[row * 64 + d], 0) << "nothing is attended";
    }
    for (uint32_t head = 0; head < 2; ++head) {  // of one token the output is its V
      for (uint32_t d = 0; d < 64; ++d)
        ASSERT_EQ(answer.out[(6 + head) * 64 + d], memory.V(table[0], head, 0, d));
    }
    // With a sink there is something: all weight is the sink's.
    const std::vector<float> sinks = {2.5f, -1.0f};
    const DeviceAnswer sunk = Attend(memory, options, sequences, q, run, sinks);
    EXPECT_EQ(sunk.lse[0], 2.5f);
    EXPECT_EQ(sunk.lse[1], -1.0f);
    EXPECT_EQ(sunk.out[0], 0);
  }
}

void BoundariesAndWindows(const RunLaunch& run) {
  const TestPages memory({.type = ElementType::kFp16, .pages = 8, .page_tokens = 16, .k_dim = 80},
                         10);
  const auto table = ShuffledTable(8, 11);
  const auto q = RandomQueries(4 * 80, kF32, 12);
  for (const int64_t tokens : {15, 16, 17, 31, 32, 33, 127, 128}) {
    for (const int64_t window : {0, 1, 16, 17, 200}) {
      for (const uint32_t split : {0u, 32u}) {
        SCOPED_TRACE(absl::StrFormat("%d tokens, window %d, splits of %d", tokens, window, split));
        const AttentionOptions options{
            .q_heads = 4, .scale = 0.1f, .window = window, .split_tokens = split};
        const std::vector<AttentionSequence> sequences = {
            {.table = table, .kv_tokens = tokens, .q_position = tokens - 1}};
        ExpectNear(Attend(memory, options, sequences, q, run),
                   Attention(memory, options, sequences, {}, q));
      }
    }
  }
}

// Of the splits that a block's rows attend, some rows attend nothing: query token 0, at position
// 32, attends 28 to 32, and query token 7 35 to 39.
void SplitOutsideTheWindow(const RunLaunch& run) {
  const TestPages memory({.type = ElementType::kBf16, .pages = 6, .page_tokens = 8}, 21);
  const auto table = ShuffledTable(6, 22);
  const AttentionOptions options{.q_heads = 2, .scale = 0.2f, .window = 5, .split_tokens = 8};
  const std::vector<AttentionSequence> sequences = {
      {.table = table, .kv_tokens = 48, .q_position = 32, .q_tokens = 16}};
  const auto q = RandomQueries(16 * 2 * 64, kF32, 23);
  ExpectNear(Attend(memory, options, sequences, q, run),
             Attention(memory, options, sequences, {}, q));
}

// Slots behind the last token, pages outside the table, pages behind the window, whose ids may be
// anything.
void UnattendedStaysOut(const RunLaunch& run) {
  TestPages memory({.type = ElementType::kBf16, .pages = 8, .page_tokens = 16}, 13);
  std::vector<int32_t> table = {3, 1, 4, 5};
  const std::vector<AttentionSequence> sequences = {
      {.table = table, .kv_tokens = 55, .q_position = 55 - 2, .q_tokens = 2}};
  const auto q = RandomQueries(2 * 4 * 64, kF32, 14);
  const AttentionOptions options{.q_heads = 4, .scale = 0.1f, .window = 20};
  const AttentionAnswer want = Attention(memory, options, sequences, {}, q);
  for (const int page : {0, 2, 6, 7}) memory.Poison(page);
  for (uint32_t token = 55 - 48; token < 16; ++token) {
    for (const bool is_v : {false, true}) {
      for (const uint32_t head : {0, 1}) {
        memory.SetRow(is_v, 5, head, token, is_v ? std::nanf("") : kInfinity);
      }
    }
  }
  table[0] = -1;  // tokens 0 to 15; the window begins at 34
  table[1] = 1 << 30;
  for (const uint32_t split : {0u, 16u}) {
    AttentionOptions in_splits = options;
    in_splits.split_tokens = split;
    ExpectNear(Attend(memory, in_splits, sequences, q, run), want);
  }
}

// Query token 0 attends tokens up to 52, token 1 up to 53 too.
void NanReachesWhoAttendsIt(const RunLaunch& run) {
  for (const bool is_v : {false, true}) {
    TestPages memory({.type = ElementType::kBf16, .pages = 4, .page_tokens = 16}, 15);
    const std::vector<int32_t> table = {3, 1, 2, 0};
    memory.SetRow(is_v, 0, /*head=*/1, 53 - 48, std::nanf(""));
    const auto q = RandomQueries(2 * 8 * 64, kF32, 16);
    const DeviceAnswer answer =
        Attend(memory, {.q_heads = 8, .scale = 0.1f},
               {{.table = table, .kv_tokens = 54, .q_position = 52, .q_tokens = 2}}, q, run);
    ASSERT_EQ(answer.lse.size(), 16u);
    for (uint32_t token = 0; token < 2; ++token) {
      for (uint32_t head = 0; head < 8; ++head) {
        const bool hit = token == 1 && head >= 4;
        for (int d = 0; d < 64; ++d) {
          ASSERT_EQ(std::isnan(answer.out[(token * 8 + head) * 64 + d]), hit)
              << "is_v " << is_v << " token " << token << " head " << head;
        }
        EXPECT_EQ(std::isnan(answer.lse[token * 8 + head]), hit && !is_v);
      }
    }
  }
}

void SharedAndRepeatedPages(const RunLaunch& run) {
  const TestPages memory({.type = ElementType::kFp8E4m3, .pages = 4, .page_tokens = 8, .k_dim = 96},
                         17);
  const std::vector<int32_t> one = {2, 0, 2}, other = {2, 0, 1};
  const AttentionOptions options{.q_heads = 2, .scale = 0.2f};
  const std::vector<AttentionSequence> sequences = {
      {.table = one, .kv_tokens = 20, .q_position = 19},
      {.table = other, .kv_tokens = 20, .q_position = 19}};
  const auto q = RandomQueries(2 * 2 * 96, kF32, 18);
  ExpectNear(Attend(memory, options, sequences, q, run),
             Attention(memory, options, sequences, {}, q));
}

void LogitsOfAnySize(const RunLaunch& run) {
  TestPages memory({.type = ElementType::kFp32, .pages = 8, .page_tokens = 16}, 19);
  const auto table = ShuffledTable(8, 20);
  for (uint32_t token = 0; token < 16; ++token) memory.SetRow(false, table[7], 0, token, 1.0f);
  const auto q = RandomQueries(2 * 64, kF32, 21);
  for (const float scale : {1e-20f, 0.5f, 4.0f}) {
    const AttentionOptions options{.q_heads = 2, .scale = scale};
    const std::vector<AttentionSequence> sequences = {
        {.table = table, .kv_tokens = 128, .q_position = 127}};
    AttentionAnswer want = Attention(memory, options, sequences, {}, q);
    want.largest_v *= std::max(1.0f, scale);  // a logit is known to fp32 to so many parts
    ExpectNear(Attend(memory, options, sequences, q, run), want);
  }
}

void SinksCountOnce(const RunLaunch& run) {
  const TestPages memory({.pages = 4}, 31);
  const auto table = ShuffledTable(4, 32);
  const std::vector<float> sinks = {1, -1, 0.5f, 2};
  const auto q = RandomQueries(4 * 64, kF32, 33);
  const std::vector<AttentionSequence> sequences = {
      {.table = table, .kv_tokens = 60, .q_position = 59}};
  for (const uint32_t split : {0u, 16u, 64u}) {
    const AttentionOptions options{.q_heads = 4, .scale = 0.2f, .split_tokens = split};
    ExpectNear(Attend(memory, options, sequences, q, run, sinks),
               Attention(memory, options, sequences, sinks, q));
  }
}

void ExpectMerged(const TestPages& memory, int64_t tokens, double bound, const RunLaunch& run) {
  const auto table = ShuffledTable(memory.pages().pages, 4);
  const std::vector<AttentionSequence> sequences = {
      {.table = table, .kv_tokens = tokens, .q_position = tokens - 1}};
  const auto q = RandomQueries(4 * 64, kF32, 5);
  AttentionOptions options{.q_heads = 4, .scale = 0.125f};
  const DeviceAnswer whole = Attend(memory, options, sequences, q, run);
  options.split_tokens = 512;
  const DeviceAnswer merged = Attend(memory, options, sequences, q, run);
  ASSERT_FALSE(whole.out.empty());
  for (size_t i = 0; i < whole.out.size(); ++i)
    EXPECT_NEAR(merged.out[i], whole.out[i], bound);  // the largest V is 1
  for (size_t i = 0; i < whole.lse.size(); ++i)
    EXPECT_NEAR(merged.lse[i], whole.lse[i], 1e-5 * std::fabs(whole.lse[i]));
  ExpectNear(merged, Attention(memory, options, sequences, {}, q));
}

void SplitsMergeToTheUndivided(const RunLaunch& run) {
  const TestPages memory(
      {.type = ElementType::kFp32, .pages = 16, .page_tokens = 256, .kv_heads = 1, .k_dim = 64}, 3);
  ExpectMerged(memory, 4096, 2e-6, run);
}

// Memory is only where it is touched: bf16 pages 3 GiB apart, the third begins beyond 2^31
// elements and 2^32 bytes.
void FarPages(const RunLaunch& run) {
  constexpr int64_t kStride = int64_t{3} << 30;
  constexpr size_t kBytes = 2 * kStride + 4096;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  AttentionPages pages{.pages = 3, .page_tokens = 1, .kv_heads = 1};
  pages.k_dim = pages.v_dim = 64;
  pages.k = {static_cast<std::byte*>(memory), kBytes, kStride, 512, 512};
  pages.v = {pages.k.base + 256, kBytes - 256, kStride, 512, 512};
  for (int page = 1; page < 3; ++page) {  // 2 and 3 in bf16
    std::fill_n(reinterpret_cast<uint16_t*>(pages.v.Row(page, 0, 0)), 64,
                page == 1 ? 0x4000 : 0x4040);
  }
  const std::vector<int32_t> table = {2, 1};
  const AttentionSequence sequence{.table = table, .kv_tokens = 2, .q_position = 1};
  const auto plan = AttentionPlan::Create(pages, {.q_heads = 1}, std::span(&sequence, 1), false);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<float> q(64, 1);
  alignas(16) float out[64];
  float lse = 0;
  AttentionPlaces places;
  places.q = reinterpret_cast<uint64_t>(q.data()), places.q_type = places.out_type = kF32;
  places.out = reinterpret_cast<uint64_t>(out), places.lse = reinterpret_cast<uint64_t>(&lse);
  places.page_ids = reinterpret_cast<uint64_t>(plan->page_ids().data());
  places.items = reinterpret_cast<uint64_t>(plan->items().data());
  const auto launches = plan->Launches(places);
  ASSERT_TRUE(launches.ok()) << launches.status();
  const Memory touched = {{static_cast<const std::byte*>(memory), kBytes},
                          std::as_bytes(std::span(q)),
                          std::as_bytes(std::span(out)),
                          std::as_bytes(std::span(&lse, 1)),
                          std::as_bytes(plan->page_ids()),
                          std::as_bytes(plan->items())};
  EXPECT_EQ(run(launches->front(), touched), "");
  for (const float value : out) EXPECT_EQ(value, 2.5f);  // the keys are alike: the mean of 3 and 2
  EXPECT_NEAR(lse, std::log(2.0f), 1e-6);
  ::munmap(memory, kBytes);
}

// Parts of the same rows, merged by the kernel; a part without a value is one that must not count.
struct Parts {
  Parts(uint32_t its_rows, uint32_t its_dim) : rows(its_rows), dim(its_dim) {}
  void Add(std::vector<float> out, std::vector<float> lse) {
    outs.push_back(std::move(out)), lses.push_back(std::move(lse));
  }
  DeviceAnswer Merge(const RunLaunch& run, bool in_place = false, std::vector<float> sinks = {}) {
    DeviceAnswer answer{std::vector<float>(rows * dim, 1e30f), std::vector<float>(rows, 1e30f)};
    std::vector<float>& out = in_place ? outs[0] : answer.out;
    std::vector<float>& lse = in_place ? lses[0] : answer.lse;
    std::vector<MergePart> parts;
    Memory memory = {std::as_bytes(std::span(answer.out)), std::as_bytes(std::span(answer.lse))};
    for (size_t i = 0; i < outs.size(); ++i) {
      parts.push_back(
          {reinterpret_cast<uint64_t>(outs[i].data()), reinterpret_cast<uint64_t>(lses[i].data())});
      memory.push_back(std::as_bytes(std::span(outs[i])));
      memory.push_back(std::as_bytes(std::span(lses[i])));
    }
    std::vector<MergeItem> items;
    AddMergeItems(0, static_cast<uint32_t>(parts.size()), 0, rows, &items);
    memory.push_back(std::as_bytes(std::span(parts)));
    memory.push_back(std::as_bytes(std::span(items)));
    memory.push_back(std::as_bytes(std::span(sinks)));
    MergeRequest request{.parts = parts, .items = items};
    request.parts_at = reinterpret_cast<uint64_t>(parts.data());
    request.items_at = reinterpret_cast<uint64_t>(items.data());
    request.out = reinterpret_cast<uint64_t>(out.data());
    request.lse = reinterpret_cast<uint64_t>(lse.data());
    request.dim = dim;
    if (!sinks.empty()) {
      request.sinks = reinterpret_cast<uint64_t>(sinks.data());
      request.q_heads = static_cast<uint32_t>(sinks.size());
    }
    const auto launch = PlanMergeStates(request);
    EXPECT_TRUE(launch.ok()) << launch.status();
    std::erase_if(memory, [](const auto& bytes) { return bytes.empty(); });
    if (!launch.ok()) return answer;
    EXPECT_EQ(run(*launch, memory), "");
    return {out, lse};
  }
  uint32_t rows, dim;
  std::vector<std::vector<float>> outs, lses;
};

void MergesOfParts(const RunLaunch& run) {
  const float nan = std::nanf("");
  Parts parts(1, 2);  // of 3 and of 1 tokens with logit 0, and a part of nothing between them
  parts.Add({2, 6}, {std::log(3.0f)});
  parts.Add({nan, kInfinity}, {-kInfinity});
  parts.Add({10, -2}, {0});
  DeviceAnswer merged = parts.Merge(run);
  EXPECT_NEAR(merged.lse[0], std::log(4.0f), 1e-6);
  EXPECT_NEAR(merged.out[0], 4, 1e-5);
  EXPECT_NEAR(merged.out[1], 4, 1e-5);
  // A sink counts as four more tokens of logit 0 whose V is 0.
  merged = parts.Merge(run, false, {std::log(4.0f)});
  EXPECT_NEAR(merged.lse[0], std::log(8.0f), 1e-6) << "the sink counts once";
  EXPECT_NEAR(merged.out[0], 2, 1e-5) << "the sink counts once";
  Parts nothing(1, 2);
  nothing.Add({nan, 1}, {-kInfinity});
  nothing.Add({kInfinity, nan}, {-kInfinity});
  merged = nothing.Merge(run);
  EXPECT_EQ(merged.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(merged.lse[0], -kInfinity);
  Parts far(1, 1);  // sums far beyond exp
  far.Add({1}, {5000});
  far.Add({3}, {5000});
  far.Add({7}, {-5000});
  merged = far.Merge(run);
  EXPECT_NEAR(merged.out[0], 2, 1e-5);
  EXPECT_FLOAT_EQ(merged.lse[0], 5000 + std::log(2.0f));
  Parts rows(2, 1);  // a NaN stays in its row
  rows.Add({1, 2}, {nan, 0});
  rows.Add({3, 4}, {0, 0});
  merged = rows.Merge(run);
  EXPECT_TRUE(std::isnan(merged.out[0]) && std::isnan(merged.lse[0]));
  EXPECT_NEAR(merged.out[1], 3, 1e-6);
}

void TheOrderOfTwoDoesNotMatter(const RunLaunch& run) {
  for (int round = 0; round < 8; ++round) {
    Parts one(20, 80), other(20, 80);
    const auto lse_a = RandomQueries(20, kF32, 100 + round), a = RandomQueries(1600, kF32, round);
    const auto lse_b = RandomQueries(20, kF32, 200 + round), b = RandomQueries(1600, kF32, ~round);
    one.Add(a, lse_a), one.Add(b, lse_b);
    other.Add(b, lse_b), other.Add(a, lse_a);
    const std::vector<float> sinks = {0.3f, -2.0f, 4.0f, 0.0f};
    const DeviceAnswer first = one.Merge(run, false, sinks),
                       second = other.Merge(run, false, sinks);
    ASSERT_EQ(first.out, second.out);
    ASSERT_EQ(first.lse, second.lse);
    const DeviceAnswer in_place = one.Merge(run, true, sinks);
    ASSERT_EQ(in_place.out, first.out);
    ASSERT_EQ(in_place.lse, first.lse);
  }
}

constexpr OddCase kOddCases[] = {
    {"NothingAttended", &NothingAttended},
    {"BoundariesAndWindows", &BoundariesAndWindows},
    {"SplitOutsideTheWindow", &SplitOutsideTheWindow},
    {"UnattendedStaysOut", &UnattendedStaysOut},
    {"NanReachesWhoAttendsIt", &NanReachesWhoAttendsIt},
    {"SharedAndRepeatedPages", &SharedAndRepeatedPages},
    {"LogitsOfAnySize", &LogitsOfAnySize},
    {"SinksCountOnce", &SinksCountOnce},
    {"SplitsMergeToTheUndivided", &SplitsMergeToTheUndivided},
    {"FarPages", &FarPages},
    {"MergesOfParts", &MergesOfParts},
    {"TheOrderOfTwoDoesNotMatter", &TheOrderOfTwoDoesNotMatter},
};

}  // namespace

std::span<const OddCase> OddCases() { return kOddCases; }

void CheckOddCase(const char* name, const RunLaunch& run) {
  for (const OddCase& odd : kOddCases) {
    if (std::string_view(odd.name) == name) return odd.check(run);
  }
  FAIL() << "no odd case " << name;
}

void CheckLongContext(const RunLaunch& run) {
  const TestPages memory(
      {.type = ElementType::kFp32, .pages = 512, .page_tokens = 256, .kv_heads = 1, .k_dim = 64},
      3);
  ExpectMerged(memory, 131072, 1e-5, run);
}

}  // namespace kvarve::testing
