#include "gpu/attention/attention.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_oracle_testing.h"
#include "gpu/attention/cpu_kernel.h"

namespace kvarve {
namespace {

using testing::AttentionAnswer;
using testing::AttentionLayout;
using testing::PageShape;
using testing::TestPages;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Queries(size_t tokens, uint32_t q_heads, uint32_t dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> number(-2, 2);
  std::vector<float> q(tokens * q_heads * dim);
  for (float& value : q) value = number(random);
  return q;
}

struct Answer {
  std::vector<float> out, lse;
};

Answer Attend(const TestPages& pages, const AttentionOptions& options,
              const std::vector<AttentionSequence>& sequences, std::span<const float> sinks,
              const std::vector<float>& q) {
  absl::StatusOr<PagedAttention> attention =
      PagedAttention::Create(pages.pages(), options, sequences);
  EXPECT_TRUE(attention.ok()) << attention.status();
  Answer answer;
  if (!attention.ok()) return answer;
  size_t rows = 0;
  for (const AttentionSequence& sequence : sequences) rows += sequence.q_tokens * options.q_heads;
  // Whoever writes nothing is found out.
  answer.out.assign(rows * pages.pages().v_dim, 1e30f);
  answer.lse.assign(rows, 1e30f);
  for (size_t item = attention->items(); item-- > 0;) attention->Run(item, q.data());
  attention->Finish(sinks, answer.out.data(), answer.lse.data());
  return answer;
}

// |out - oracle| <= 1e-5 of the largest V, |lse - oracle| <= 1e-5 * max(1, |lse|).
void ExpectNear(const Answer& got, const AttentionAnswer& want, double bound = 1e-5) {
  ASSERT_EQ(got.out.size(), want.out.size());
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < got.out.size(); ++i) {
    worst = std::max(worst, std::fabs(got.out[i] - want.out[i]));
    if (std::isnan(got.out[i])) worst = kInfinity;
  }
  EXPECT_LE(worst, bound * want.largest_v);
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], -kInfinity);
      continue;
    }
    const double error =
        std::fabs(got.lse[i] - want.lse[i]) / std::max(1.0, std::fabs(want.lse[i]));
    worst_lse = std::isnan(got.lse[i]) ? kInfinity : std::max(worst_lse, error);
  }
  EXPECT_LE(worst_lse, 1e-5);
}

std::vector<int32_t> ShuffledTable(int64_t pages, uint64_t seed) {
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937_64(seed));
  return table;
}

std::vector<AttentionPath> Paths() {
  std::vector<AttentionPath> paths = {AttentionPath::kPortable};
  for (const AttentionPath path : {AttentionPath::kAvx2, AttentionPath::kAvx512}) {
    if (AttentionPathSupported(path)) paths.push_back(path);
  }
  return paths;
}

#if defined(__x86_64__) && !defined(__clang__)
// As the kernel says it: what the tests below go through is all that this processor has.
TEST(AttentionPathTest, TheBestThatTheProcessorHasIsTaken) {
  std::ifstream info("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  auto has = [&](const std::vector<std::string>& names) {
    return std::ranges::all_of(names, [&](const std::string& n) { return flags.contains(n); });
  };
  ASSERT_FALSE(flags.empty());
  const bool avx2 = has({"avx2", "fma"});
  const bool avx512 = has({"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  EXPECT_EQ(BestAttentionPath(), avx512 ? AttentionPath::kAvx512
                                 : avx2 ? AttentionPath::kAvx2
                                        : AttentionPath::kPortable);
  EXPECT_EQ(Paths().size(), 1u + avx2 + avx512);
}
#endif

class AttentionTest : public ::testing::Test {
 protected:
  ~AttentionTest() override { SetAttentionPathForTest(BestAttentionPath()); }
};

// Every dimension with every type and every group; layouts, page sizes, splits, windows, caps,
// sinks and numbers of query tokens rotate so that each meets each.
TEST_F(AttentionTest, AgreesWithTheDefinition) {
  int n = 0;
  for (const uint32_t dim : kAttentionDims) {
    for (const ElementType type :
         {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16, ElementType::kFp8E4m3}) {
      for (const uint32_t group : {1u, 4u, 8u}) {
        const uint64_t seed = ++n;
        SCOPED_TRACE(absl::StrFormat("seed %d: dim %d, type %d, group %d", seed, dim,
                                     static_cast<int>(type), group));
        const uint32_t page_tokens = std::array{16u, 8u, 128u, 256u, 1u}[n % 5];
        const uint32_t kv_heads = dim == kMlaDim ? 1 : 2;
        const int64_t tokens = 150 + n % 17, pages = (tokens - 1) / page_tokens + 1;
        const TestPages memory({.type = type,
                                .layout = testing::kAttentionLayouts[n % 4],
                                .pages = pages,
                                .page_tokens = page_tokens,
                                .kv_heads = kv_heads,
                                .k_dim = dim},
                               seed);
        AttentionOptions options{.q_heads = kv_heads * group,
                                 .scale = 1 / std::sqrt(static_cast<float>(dim))};
        if (n % 3 == 1) options.soft_cap = 1.5f;
        if (n % 4 == 2) options.window = 37;
        if (n % 5 != 0 && n % 2 == 1) options.split_tokens = 3 * page_tokens;
        std::vector<float> sinks;
        if (n % 7 == 3) sinks = std::vector<float>(options.q_heads, 0.7f);
        const auto one = ShuffledTable(pages, seed), other = ShuffledTable(pages, seed + 1000);
        const uint32_t q_tokens = std::array{1u, 3u, 16u}[n % 3];
        const std::vector<AttentionSequence> sequences = {
            {.table = one,
             .kv_tokens = tokens,
             .q_position = tokens - q_tokens,
             .q_tokens = q_tokens},
            {.table = other, .kv_tokens = 33, .kv_position = 5, .q_position = 37, .q_tokens = 1}};
        const auto q = Queries(q_tokens + 1, options.q_heads, dim, seed);
        const AttentionAnswer want = testing::Attention(memory, options, sequences, sinks, q);
        for (const AttentionPath path : Paths()) {
          SetAttentionPathForTest(path);
          SCOPED_TRACE(static_cast<int>(path));
          ExpectNear(Attend(memory, options, sequences, sinks, q), want);
        }
      }
    }
  }
}

TEST_F(AttentionTest, SplitsMergeToTheUndivided) {
  for (const auto& [tokens, bound] : {std::pair<int64_t, double>{4096, 2e-6}, {131072, 1e-5}}) {
    const int64_t pages = tokens / 256;
    const TestPages memory({.type = ElementType::kFp32,
                            .pages = pages,
                            .page_tokens = 256,
                            .kv_heads = 1,
                            .k_dim = 64},
                           3);
    const auto table = ShuffledTable(pages, 4);
    const std::vector<AttentionSequence> sequences = {
        {.table = table, .kv_tokens = tokens, .q_position = tokens - 1}};
    const auto q = Queries(1, 4, 64, 5);
    AttentionOptions options{.q_heads = 4, .scale = 0.125f};
    const Answer whole = Attend(memory, options, sequences, {}, q);
    options.split_tokens = 512;
    const Answer merged = Attend(memory, options, sequences, {}, q);
    for (size_t i = 0; i < whole.out.size(); ++i) {
      EXPECT_NEAR(merged.out[i], whole.out[i], bound) << tokens;  // the largest V is 1
    }
    for (size_t i = 0; i < whole.lse.size(); ++i)
      EXPECT_NEAR(merged.lse[i], whole.lse[i], 1e-5 * 12);
    if (tokens == 4096) ExpectNear(whole, testing::Attention(memory, options, sequences, {}, q));
  }
}

// Two calls over the parts of one context, as when a part of it lies in another tier.
TEST_F(AttentionTest, PartsOfAContextMergeToIt) {
  const TestPages memory({.type = ElementType::kBf16, .pages = 12, .k_dim = 128}, 6);
  const auto table = ShuffledTable(12, 7);
  const AttentionOptions options{.q_heads = 8, .scale = 0.09f, .soft_cap = 30, .window = 150};
  const std::vector<float> sinks = {1, -1, 0.5f, 2, 0, 3, -2, 1};
  const auto q = Queries(2, 8, 128, 8);
  const std::vector<AttentionSequence> whole = {
      {.table = table, .kv_tokens = 190, .q_position = 188, .q_tokens = 2}};
  const std::span<const int32_t> span = table;
  const Answer old =
      Attend(memory, options,
             {{.table = span.first(5), .kv_tokens = 80, .q_position = 188, .q_tokens = 2}}, {}, q);
  const Answer recent = Attend(memory, options,
                               {{.table = span.subspan(5),
                                 .kv_tokens = 110,
                                 .kv_position = 80,
                                 .q_position = 188,
                                 .q_tokens = 2}},
                               {}, q);
  Answer merged{std::vector<float>(old.out.size()), std::vector<float>(old.lse.size())};
  const AttentionState states[] = {{old.out.data(), old.lse.data()},
                                   {recent.out.data(), recent.lse.data()}};
  std::vector<float> row_sinks;
  for (int token = 0; token < 2; ++token) {
    row_sinks.insert(row_sinks.end(), sinks.begin(), sinks.end());
  }
  MergeStates(states, 16, 128, row_sinks, merged.out.data(), merged.lse.data());
  ExpectNear(merged, testing::Attention(memory, options, whole, sinks, q));
}

TEST_F(AttentionTest, NothingAttendedIsZeroAndMinusInfinity) {
  const TestPages memory({.pages = 4}, 9);
  const auto table = ShuffledTable(4, 9);
  const AttentionOptions options{.q_heads = 2, .scale = 1, .split_tokens = 16};
  const auto q = Queries(3, 2, 64, 9);
  const std::vector<AttentionSequence> sequences = {
      {.table = {}, .kv_tokens = 0},                                            // no KV
      {.table = table, .kv_tokens = 64, .kv_position = 100, .q_position = 99},  // all of it later
      {.table = table, .kv_tokens = 1, .q_position = 0}};
  const Answer answer = Attend(memory, options, sequences, {}, q);
  for (int row = 0; row < 4; ++row) {
    EXPECT_EQ(answer.lse[row], -kInfinity);
    for (int d = 0; d < 64; ++d) EXPECT_EQ(answer.out[row * 64 + d], 0);
  }
  // Of one token the output is its V.
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t d = 0; d < 64; ++d) {
      EXPECT_EQ(answer.out[(4 + head) * 64 + d], memory.V(table[0], head, 0, d));
    }
  }
  // With a sink there is something: all weight is the sink's.
  const Answer sunk = Attend(memory, options, sequences, std::vector<float>{2.5f, -1.0f}, q);
  EXPECT_EQ(sunk.lse[0], 2.5f);
  EXPECT_EQ(sunk.lse[1], -1.0f);
  EXPECT_EQ(sunk.out[0], 0);
}

TEST_F(AttentionTest, PageBoundariesAndWindowsToTheToken) {
  const TestPages memory({.type = ElementType::kFp16, .pages = 8, .page_tokens = 16, .k_dim = 80},
                         10);
  const auto table = ShuffledTable(8, 11);
  const auto q = Queries(1, 4, 80, 12);
  for (const int64_t tokens : {15, 16, 17, 31, 32, 33, 127, 128}) {
    for (const int64_t window : {0, 1, 15, 16, 17, 32, 200}) {
      const AttentionOptions options{
          .q_heads = 4, .scale = 0.1f, .window = window, .split_tokens = 32};
      const std::vector<AttentionSequence> sequences = {
          {.table = table, .kv_tokens = tokens, .q_position = tokens - 1}};
      SCOPED_TRACE(absl::StrFormat("%d tokens, window %d", tokens, window));
      ExpectNear(Attend(memory, options, sequences, {}, q),
                 testing::Attention(memory, options, sequences, {}, q));
    }
  }
}

// What is not attended is never read: slots behind the last token, pages outside the table, pages
// behind the window, whose ids may be anything.
TEST_F(AttentionTest, WhatIsNotAttendedStaysOut) {
  for (const AttentionPath path : Paths()) {
    SetAttentionPathForTest(path);
    TestPages memory({.type = ElementType::kBf16, .pages = 8, .page_tokens = 16}, 13);
    const AttentionOptions options{.q_heads = 4, .scale = 0.1f, .window = 20, .split_tokens = 16};
    std::vector<int32_t> table = {3, 1, 4, 5};
    const std::vector<AttentionSequence> sequences = {
        {.table = table, .kv_tokens = 55, .q_position = 55 - 2, .q_tokens = 2}};
    const auto q = Queries(2, 4, 64, 14);
    const AttentionAnswer want = testing::Attention(memory, options, sequences, {}, q);
    for (const int page : {0, 2, 6, 7}) memory.Poison(page);
    for (uint32_t token = 55 - 48; token < 16; ++token) {
      for (const bool is_v : {false, true}) {
        for (const uint32_t head : {0, 1}) memory.SetRow(is_v, 5, head, token, std::nanf(""));
      }
    }
    table[0] = -1;  // tokens 0 to 15; the window begins at 34
    table[1] = 1 << 30;
    ExpectNear(Attend(memory, options, sequences, {}, q), want);
  }
}

// Row 0 attends tokens up to 52, row 1 up to 53 too.
TEST_F(AttentionTest, ANanReachesWhoAttendsItAndNobodyElse) {
  for (const AttentionPath path : Paths()) {
    for (const bool is_v : {false, true}) {
      SetAttentionPathForTest(path);
      TestPages memory({.type = ElementType::kBf16, .pages = 4, .page_tokens = 16}, 15);
      const std::vector<int32_t> table = {3, 1, 2, 0};
      memory.SetRow(is_v, 0, /*head=*/1, 53 - 48, std::nanf(""));
      const AttentionOptions options{.q_heads = 8, .scale = 0.1f};
      const auto q = Queries(2, 8, 64, 16);
      const Answer answer =
          Attend(memory, options,
                 {{.table = table, .kv_tokens = 54, .q_position = 52, .q_tokens = 2}}, {}, q);
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
}

// Forks share pages, and one table may name a page twice.
TEST_F(AttentionTest, SharedAndRepeatedPages) {
  const TestPages memory({.type = ElementType::kFp8E4m3, .pages = 4, .page_tokens = 8, .k_dim = 96},
                         17);
  const std::vector<int32_t> one = {2, 0, 2}, other = {2, 0, 1};
  const AttentionOptions options{.q_heads = 2, .scale = 0.2f};
  const std::vector<AttentionSequence> sequences = {
      {.table = one, .kv_tokens = 20, .q_position = 19},
      {.table = other, .kv_tokens = 20, .q_position = 19}};
  const auto q = Queries(2, 2, 96, 18);
  ExpectNear(Attend(memory, options, sequences, {}, q),
             testing::Attention(memory, options, sequences, {}, q));
}

// Logits far apart: weights that vanish, and a largest one that comes last.
TEST_F(AttentionTest, LogitsOfAnySize) {
  for (const AttentionPath path : Paths()) {
    SetAttentionPathForTest(path);
    TestPages memory({.type = ElementType::kFp32, .pages = 8, .page_tokens = 16}, 19);
    const auto table = ShuffledTable(8, 20);
    for (uint32_t token = 0; token < 16; ++token) memory.SetRow(false, table[7], 0, token, 1.0f);
    const auto q = Queries(1, 2, 64, 21);
    for (const float scale : {1e-20f, 0.5f, 8.0f, 100.0f}) {
      const AttentionOptions options{.q_heads = 2, .scale = scale};
      const std::vector<AttentionSequence> sequences = {
          {.table = table, .kv_tokens = 128, .q_position = 127}};
      const AttentionAnswer want = testing::Attention(memory, options, sequences, {}, q);
      // A logit of thousands is known to fp32 to a few thousandths: what is compared then is that
      // nothing overflows.
      const bool is_large = scale == 100.0f;
      const Answer got = Attend(memory, options, sequences, {}, q);
      ExpectNear(got, want, is_large ? 0.05 : 1e-5 * std::max(1.0f, scale));
    }
  }
}

// A host tier's blocks, each somewhere: the same numbers as pages say the same.
TEST_F(AttentionTest, BlocksInTheCanonicalLayoutArePages) {
  for (const uint32_t dim : {128u, kMlaDim}) {
    const bool is_mla = dim == kMlaDim;
    const uint32_t heads = is_mla ? 1 : 2;
    const BlockLayout layout{3, heads, 32, dim, is_mla ? 0 : dim, 2};
    const TestPages memory({.type = ElementType::kBf16,
                            .pages = 4,
                            .page_tokens = 32,
                            .kv_heads = heads,
                            .k_dim = dim},
                           23);
    const std::vector<int32_t> table = {2, 0, 3};
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> at;
    for (const int32_t page : table) {
      auto& block = blocks.emplace_back(layout.BlockBytes() + 1, std::byte{0x7f});  // NaN
      for (uint32_t head = 0; head < heads; ++head) {
        for (uint32_t token = 0; token < 32; ++token) {
          std::memcpy(&block[1 + layout.KOffset(1, head, token)],
                      memory.pages().k.Row(page, head, token), layout.KRowBytes());
          std::memcpy(&block[1 + layout.VOffset(1, head, token)],
                      memory.pages().v.Row(page, head, token), layout.VRowBytes());
        }
      }
      at.push_back(&block[1]);  // at an odd place
    }
    const AttentionOptions options{.q_heads = 8, .scale = 0.1f, .split_tokens = 32};
    const auto q = Queries(2, 8, dim, 24);
    const Answer want =
        Attend(memory, options,
               {{.table = table, .kv_tokens = 90, .q_position = 88, .q_tokens = 2}}, {}, q);
    const AttentionSequence sequence{
        .blocks = at, .kv_tokens = 90, .q_position = 88, .q_tokens = 2};
    auto attention = PagedAttention::Create(BlockPages(layout, 1, ElementType::kBf16), options,
                                            std::span(&sequence, 1));
    ASSERT_TRUE(attention.ok()) << attention.status();
    Answer got{std::vector<float>(want.out.size()), std::vector<float>(want.lse.size())};
    for (size_t item = 0; item < attention->items(); ++item) attention->Run(item, q.data());
    attention->Finish({}, got.out.data(), got.lse.data());
    EXPECT_EQ(got.out, want.out);
    EXPECT_EQ(got.lse, want.lse);
    at[1] = nullptr;
    EXPECT_EQ(PagedAttention::Create(BlockPages(layout, 1, ElementType::kBf16), options,
                                     std::span(&sequence, 1))
                  .status()
                  .message(),
              "sequence 0: its block 1 is null");
  }
}

// Memory is only where it is touched.
TEST_F(AttentionTest, PagesFartherApartThan32BitsReach) {
  constexpr int64_t kStride = int64_t{3} << 30, kBytes = 3 * kStride;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  AttentionPages pages{.type = ElementType::kFp32, .pages = 3, .page_tokens = 1, .kv_heads = 1};
  pages.k_dim = pages.v_dim = 64;
  pages.k = {static_cast<std::byte*>(memory), kBytes, kStride, 512, 512};
  pages.v = {pages.k.base + 256, kBytes - 256, kStride, 512, 512};
  for (int page = 0; page < 3; ++page) {
    std::fill_n(reinterpret_cast<float*>(pages.v.Row(page, 0, 0)), 64, 1.0f + page);
  }
  const std::vector<int32_t> table = {2, 1};
  const AttentionSequence sequence{.table = table, .kv_tokens = 2, .q_position = 1};
  auto attention = PagedAttention::Create(pages, {.q_heads = 1}, std::span(&sequence, 1));
  ASSERT_TRUE(attention.ok()) << attention.status();
  const std::vector<float> q(64, 1);
  std::vector<float> out(64), lse(1);
  attention->Run(0, q.data());
  attention->Finish({}, out.data(), lse.data());
  EXPECT_EQ(out, std::vector<float>(64, 2.5f));  // the keys are alike: the mean of 3 and 2
  EXPECT_FLOAT_EQ(lse[0], std::log(2.0f));
  ::munmap(memory, kBytes);
}

TEST(AttentionRefusalsTest, SayWhatIsWrong) {
  const TestPages memory({.pages = 4}, 22);
  const std::vector<int32_t> table = {0, 1, 2, 4};
  const auto refusal = [&](AttentionPages pages, AttentionOptions options, AttentionSequence s) {
    return PagedAttention::Create(pages, options, std::span(&s, 1)).status();
  };
  const AttentionOptions options{.q_heads = 4};
  const AttentionSequence sequence{.table = table, .kv_tokens = 48, .q_position = 47};
  EXPECT_TRUE(refusal(memory.pages(), options, sequence).ok());

  AttentionSequence wrong = sequence;
  wrong.kv_tokens = 64, wrong.q_position = 63;
  EXPECT_EQ(refusal(memory.pages(), options, wrong).message(),
            "sequence 0: page 3 of its table is 4, of 4");
  wrong.kv_tokens = 65;
  EXPECT_EQ(refusal(memory.pages(), options, wrong).code(), absl::StatusCode::kInvalidArgument);
  wrong = sequence, wrong.q_tokens = 17;
  EXPECT_EQ(refusal(memory.pages(), options, wrong).code(), absl::StatusCode::kUnimplemented);
  wrong.q_tokens = 0;
  EXPECT_FALSE(refusal(memory.pages(), options, wrong).ok());

  EXPECT_FALSE(refusal(memory.pages(), {.q_heads = 3}, sequence).ok());
  EXPECT_FALSE(refusal(memory.pages(), {.q_heads = 4, .split_tokens = 24}, sequence).ok());
  EXPECT_FALSE(refusal(memory.pages(), {.q_heads = 4, .window = -1}, sequence).ok());
  AttentionPages pages = memory.pages();
  pages.k_dim = pages.v_dim = 72;
  EXPECT_EQ(refusal(pages, options, sequence).code(), absl::StatusCode::kUnimplemented);
  pages = memory.pages();
  pages.v.bytes -= 1;
  EXPECT_EQ(refusal(pages, options, sequence).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvarve
