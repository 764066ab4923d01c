#include "gpu/attention/key_diff_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_kernels_testing.h"

namespace kvarve::testing {

KeyDiffAnswer KeyDiffByDefinition(const TestPages& pages, const KeyDiffSequence& sequence,
                                  uint32_t block_tokens) {
  const AttentionPages& shape = pages.pages();
  std::vector<double> all;
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    std::vector<std::vector<double>> units;
    std::vector<double> mean(shape.k_dim, 0.0);
    for (int64_t token = 0; token < sequence.tokens; ++token) {
      std::vector<double> key(shape.k_dim);
      double squares = 0;
      for (uint32_t d = 0; d < shape.k_dim; ++d) {
        key[d] =
            pages.K(sequence.table[token / shape.page_tokens], head, token % shape.page_tokens, d);
        squares += key[d] * key[d];
      }
      for (uint32_t d = 0; d < shape.k_dim; ++d) {
        key[d] = squares == 0 ? 0 : key[d] / std::sqrt(squares);
        mean[d] += key[d] / static_cast<double>(sequence.tokens);
      }
      units.push_back(std::move(key));
    }
    double length = 0;
    for (const double value : mean) length += value * value;
    for (const auto& unit : units) {
      double dot = 0;
      for (uint32_t d = 0; d < shape.k_dim; ++d) dot += unit[d] * mean[d];
      all.push_back(length == 0 ? 0 : dot / std::sqrt(length));
    }
  }
  KeyDiffAnswer answer{std::vector<float>(all.begin(), all.end()), {}};
  for (int64_t begin = 0; begin < sequence.tokens; begin += block_tokens) {
    const int64_t end = std::min<int64_t>(begin + block_tokens, sequence.tokens);
    double sum = 0;
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      for (int64_t token = begin; token < end; ++token) sum += all[head * sequence.tokens + token];
    }
    answer.of_blocks.push_back(
        static_cast<float>(sum / static_cast<double>(shape.kv_heads * (end - begin))));
  }
  return answer;
}

void ExpectNear(const KeyDiffAnswer& got, const KeyDiffAnswer& want) {
  ASSERT_EQ(got.scores.size(), want.scores.size());
  ASSERT_EQ(got.of_blocks.size(), want.of_blocks.size());
  for (size_t i = 0; i < got.scores.size(); ++i)
    ASSERT_NEAR(got.scores[i], want.scores[i], 1e-5) << "score " << i;
  for (size_t i = 0; i < got.of_blocks.size(); ++i)
    ASSERT_NEAR(got.of_blocks[i], want.of_blocks[i], 1e-5) << "block " << i;
}

KeyDiffAnswer KeyDiffOnDevice(const TestPages& pages, const std::vector<KeyDiffSequence>& sequences,
                              uint32_t block_tokens, const RunLaunch& run) {
  KeyDiffAnswer answer;
  const auto plan = KeyDiffPlan::Create(pages.pages(), sequences, block_tokens);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return answer;
  answer.scores.assign(plan->score_count(), 1e30f);
  answer.of_blocks.assign(plan->blocks().size(), 1e30f);
  std::vector<float> sums(plan->sum_count(), std::nanf(""));
  const auto place = [](const auto& values) { return reinterpret_cast<uint64_t>(values.data()); };
  const auto launches =
      plan->Launches({place(plan->page_ids()), place(plan->items()), place(plan->blocks()),
                      place(sums), place(answer.scores), place(answer.of_blocks)});
  EXPECT_TRUE(launches.ok()) << launches.status();
  if (!launches.ok()) return answer;
  const Memory memory = {pages.memory(),
                         std::as_bytes(plan->page_ids()),
                         std::as_bytes(plan->items()),
                         std::as_bytes(plan->blocks()),
                         std::as_bytes(std::span(sums)),
                         std::as_bytes(std::span(answer.scores)),
                         std::as_bytes(std::span(answer.of_blocks))};
  for (const Launch& launch : *launches) EXPECT_EQ(run(launch, memory), "");
  return answer;
}

void CheckKeyDiff(ElementType type, uint32_t dim, uint64_t seed, const RunLaunch& run) {
  SCOPED_TRACE(
      absl::StrFormat("dim %d, element type %d, seed %d", dim, static_cast<int>(type), seed));
  constexpr uint32_t kPageTokens[] = {16, 1, 24};
  const uint32_t page_tokens = kPageTokens[seed % 3];
  const int64_t tokens = 50 + static_cast<int64_t>(seed % 13),
                pages = (tokens - 1) / page_tokens + 1;
  const TestPages memory({.type = type,
                          .layout = kAttentionLayouts[seed % 4],
                          .pages = pages,
                          .page_tokens = page_tokens,
                          .kv_heads = dim == kMlaDim ? 1u : 2u,
                          .k_dim = dim},
                         seed);
  const auto one = ShuffledTable(pages, seed), other = ShuffledTable(pages, seed + 1);
  const std::vector<KeyDiffSequence> sequences = {{.table = one, .tokens = tokens},
                                                  {.table = one, .tokens = 0},
                                                  {.table = other, .tokens = 33}};
  KeyDiffAnswer want = KeyDiffByDefinition(memory, sequences[0], 16);
  const KeyDiffAnswer more = KeyDiffByDefinition(memory, sequences[2], 16);
  want.scores.insert(want.scores.end(), more.scores.begin(), more.scores.end());
  want.of_blocks.insert(want.of_blocks.end(), more.of_blocks.begin(), more.of_blocks.end());
  ExpectNear(KeyDiffOnDevice(memory, sequences, 16, run), want);
}

void CheckOddKeyDiff(const RunLaunch& run) {
  TestPages memory({.type = ElementType::kBf16, .pages = 82, .page_tokens = 32, .k_dim = 64}, 5);
  auto table = ShuffledTable(82, 6);
  memory.SetRow(false, table[0], 0, 3, 0.0f);  // a key of zeros
  memory.Poison(table[81]);
  for (uint32_t token = 20; token < 32; ++token)
    memory.SetRow(false, table[80], 1, token, std::nanf(""));
  table[81] = -1;
  const std::vector<KeyDiffSequence> sequences = {{.table = table, .tokens = 80 * 32 + 20}};
  const KeyDiffAnswer once = KeyDiffOnDevice(memory, sequences, 128, run);
  ExpectNear(once, KeyDiffByDefinition(memory, sequences[0], 128));
  EXPECT_EQ(once.scores[3], 0);
  EXPECT_EQ(KeyDiffOnDevice(memory, sequences, 128, run).scores, once.scores);
}

}  // namespace kvarve::testing
