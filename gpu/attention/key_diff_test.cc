// KeyDiff on the CPU, and its kernels on the host shim.
#include "gpu/attention/key_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gpu/attention/attention_kernels_testing.h"
#include "gpu/attention/cpu_kernel.h"
#include "gpu/attention/key_diff_testing.h"
#include "gpu/emulator/shim_launch.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using testing::KeyDiffAnswer;
using testing::TestPages;

constexpr ElementType kTypes[] = {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16,
                                  ElementType::kFp8E4m3};

std::string OnShim(const Launch& launch, const testing::Memory&) {
  return shim::RunOnShim(launch, shim::Order::kRandom, 3);
}

KeyDiffAnswer OnCpu(const AttentionPages& pages, const KeyDiffSequence& sequence,
                    uint32_t block_tokens) {
  KeyDiffAnswer answer{std::vector<float>(pages.kv_heads * sequence.tokens, 1e30f),
                       std::vector<float>((sequence.tokens + block_tokens - 1) / block_tokens)};
  const absl::Status status =
      KeyDiff(pages, sequence, block_tokens, answer.scores, answer.of_blocks);
  EXPECT_TRUE(status.ok()) << status;
  return answer;
}

class KeyDiffTest : public ::testing::Test {
 protected:
  ~KeyDiffTest() override { SetAttentionPathForTest(BestAttentionPath()); }
};

TEST_F(KeyDiffTest, TheCpuAgreesWithTheDefinition) {
  uint64_t seed = 0;
  for (const uint32_t dim : kAttentionDims) {
    for (const ElementType type : kTypes) {
      const TestPages memory({.type = type,
                              .layout = testing::kAttentionLayouts[++seed % 4],
                              .pages = 5,
                              .kv_heads = dim == kMlaDim ? 1u : 2u,
                              .k_dim = dim},
                             seed);
      const auto table = testing::ShuffledTable(5, seed);
      const KeyDiffSequence sequence{.table = table, .tokens = 75};
      const KeyDiffAnswer want = testing::KeyDiffByDefinition(memory, sequence, 32);
      for (const AttentionPath path :
           {AttentionPath::kPortable, AttentionPath::kAvx2, AttentionPath::kAvx512}) {
        if (!AttentionPathSupported(path)) continue;
        SetAttentionPathForTest(path);
        testing::ExpectNear(OnCpu(memory.pages(), sequence, 32), want);
      }
    }
  }
}

// The paper's own measure: the sum of a key's cosines to all keys. The ranking is the same.
TEST_F(KeyDiffTest, RanksAsPairsOfKeysDo) {
  const TestPages memory({.type = ElementType::kFp32, .pages = 6, .kv_heads = 1, .k_dim = 64}, 11);
  const auto table = testing::ShuffledTable(6, 12);
  const KeyDiffSequence sequence{.table = table, .tokens = 96};
  const auto key = [&](int64_t token, uint32_t d) {
    return double{memory.K(table[token / 16], 0, token % 16, d)};
  };
  std::vector<double> pairs(96, 0.0);
  for (int i = 0; i < 96; ++i) {
    for (int j = 0; j < 96; ++j) {
      double dot = 0, a = 0, b = 0;
      for (uint32_t d = 0; d < 64; ++d) {
        dot += key(i, d) * key(j, d), a += key(i, d) * key(i, d), b += key(j, d) * key(j, d);
      }
      pairs[i] += dot / std::sqrt(a * b);
    }
  }
  const KeyDiffAnswer answer = OnCpu(memory.pages(), sequence, 16);
  std::vector<int> by_pairs(96), by_score(96);
  std::iota(by_pairs.begin(), by_pairs.end(), 0);
  by_score = by_pairs;
  std::ranges::sort(by_pairs, {}, [&](int i) { return pairs[i]; });
  std::ranges::sort(by_score, {}, [&](int i) { return answer.scores[i]; });
  EXPECT_EQ(by_score, by_pairs);
}

TEST_F(KeyDiffTest, BlocksWhereTheyLieScoreAsPages) {
  const TestPages memory({.type = ElementType::kBf16, .pages = 3, .page_tokens = 16}, 13);
  const std::vector<int32_t> table = {2, 0, 1};
  const BlockLayout layout{2, 2, 16, 64, 64, 2};
  std::vector<std::vector<std::byte>> blocks(3, std::vector<std::byte>(layout.BlockBytes()));
  std::vector<const std::byte*> at;
  for (int i = 0; i < 3; ++i) {
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t token = 0; token < 16; ++token) {
        std::memcpy(blocks[i].data() + layout.KOffset(1, head, token),
                    memory.pages().k.Row(table[i], head, token), layout.KRowBytes());
      }
    }
    at.push_back(blocks[i].data());
  }
  const KeyDiffAnswer got =
      OnCpu(BlockPages(layout, 1, ElementType::kBf16), {.blocks = at, .tokens = 40}, 16);
  EXPECT_EQ(got.scores, OnCpu(memory.pages(), {.table = table, .tokens = 40}, 16).scores);
}

TEST_F(KeyDiffTest, TheKernelsAgreeWithTheDefinition) {
  uint64_t seed = 100;
  for (const uint32_t dim : kAttentionDims) {
    for (const ElementType type : kTypes) testing::CheckKeyDiff(type, dim, ++seed, &OnShim);
  }
  testing::CheckOddKeyDiff(&OnShim);
}

TEST_F(KeyDiffTest, RefusalsSayWhatIsWrong) {
  const TestPages memory({.pages = 4}, 14);
  const std::vector<int32_t> table = {0, 1, 4};
  std::vector<float> scores(2 * 40), blocks(3);
  const auto refusal = [&](int64_t tokens, uint32_t block_tokens) {
    const KeyDiffSequence sequence{.table = table, .tokens = tokens};
    const std::string device(
        KeyDiffPlan::Create(memory.pages(), std::span(&sequence, 1), block_tokens)
            .status()
            .message());
    const std::string cpu(
        KeyDiff(memory.pages(), sequence, block_tokens, scores, blocks).message());
    EXPECT_EQ(cpu, device);
    return device;
  };
  EXPECT_THAT(refusal(40, 16), HasSubstr("page 2 of the table is 4, of 4"));
  EXPECT_THAT(refusal(49, 16), HasSubstr("49 tokens over a table of 3 pages"));
  EXPECT_THAT(refusal(32, 0), HasSubstr("blocks of no tokens"));
  const KeyDiffSequence sequence{.table = table, .tokens = 32};
  EXPECT_FALSE(KeyDiff(memory.pages(), sequence, 16, scores, blocks).ok());  // of 40 tokens
  EXPECT_FALSE(KeyDiffPlan::Create(memory.pages(), {}, 16).ok());
  const auto plan = KeyDiffPlan::Create(memory.pages(), std::span(&sequence, 1), 16);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->Launches({8, 16, 24, 32, 40, 48}).ok());
  EXPECT_THAT(ToStd(plan->Launches({8, 16, 24, 0, 40, 48}).status().message()),
              HasSubstr("without an address"));
  EXPECT_THAT(ToStd(plan->Launches({8, 20, 24, 32, 40, 48}).status().message()),
              HasSubstr("misaligned"));
}

}  // namespace
}  // namespace kvarve
