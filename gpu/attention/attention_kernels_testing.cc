#include "gpu/attention/attention_kernels_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_launch.h"
#include "gpu/kernels/packers_oracle_testing.h"

namespace kvarve::testing {
namespace {

constexpr float kPoison = 1e30f;  // who writes nothing is found out

uint32_t BytesOf(NumberType type) { return type == kF32 ? 4 : 2; }

DeviceBytes Numbers(const std::vector<float>& values, NumberType type) {
  DeviceBytes bytes(values.size() * BytesOf(type));
  for (size_t i = 0; i < values.size(); ++i)
    StoreNumber(bytes.data() + i * BytesOf(type), type, values[i]);
  return bytes;
}

template <typename T>
uint64_t Place(std::span<const T> table, Memory* memory) {
  memory->push_back(std::as_bytes(table));
  return reinterpret_cast<uint64_t>(table.data());
}

}  // namespace

std::vector<float> RandomQueries(size_t count, NumberType type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> number(-2, 2);
  std::vector<float> q(count);
  for (float& value : q) {
    std::byte bytes[4];
    StoreNumber(bytes, type, number(random));
    value = LoadNumber(bytes, type);
  }
  return q;
}

std::vector<int32_t> ShuffledTable(int64_t pages, uint64_t seed) {
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937_64(seed));
  return table;
}

DeviceAnswer AttendOnDevice(const TestPages& pages, const AttentionOptions& options,
                            const std::vector<AttentionSequence>& sequences,
                            std::span<const float> sinks, const std::vector<float>& q,
                            const DeviceNumbers& numbers, const RunLaunch& run) {
  DeviceAnswer answer;
  const absl::StatusOr<AttentionPlan> plan =
      AttentionPlan::Create(pages.pages(), options, sequences, !sinks.empty());
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return answer;
  size_t rows = 0;
  for (const AttentionSequence& sequence : sequences) rows += sequence.q_tokens * options.q_heads;
  const uint32_t v_dim = pages.pages().v_dim, k_dim = pages.pages().k_dim;
  answer.lse.assign(rows, kPoison);
  DeviceBytes out = Numbers(std::vector<float>(rows * v_dim, kPoison), numbers.out);
  const DeviceBytes queries = Numbers(q, numbers.q);
  DeviceBytes workspace(plan->workspace_bytes(), std::byte{0xFF});  // NaN
  Memory memory = {pages.memory()};
  AttentionPlaces places;
  places.q_type = numbers.q, places.out_type = numbers.out;
  places.q_head_stride = int64_t{k_dim} * BytesOf(numbers.q);
  places.q_token_stride = places.q_head_stride * options.q_heads;
  places.q = Place<std::byte>(queries, &memory);
  places.out = Place<std::byte>(out, &memory);
  places.lse = Place<float>(answer.lse, &memory);
  places.sinks = sinks.empty() ? 0 : Place(sinks, &memory);
  places.page_ids = Place(plan->page_ids(), &memory);
  places.items = Place(plan->items(), &memory);
  places.parts = Place(plan->parts(), &memory);
  places.merges = Place(plan->merges(), &memory);
  places.workspace = Place<std::byte>(workspace, &memory);
  const auto launches = plan->Launches(places);
  EXPECT_TRUE(launches.ok()) << launches.status();
  if (!launches.ok()) return answer;
  std::erase_if(memory, [](const auto& bytes) { return bytes.empty(); });
  for (const Launch& launch : *launches) EXPECT_EQ(run(launch, memory), "");
  answer.out.resize(rows * v_dim);
  for (size_t i = 0; i < answer.out.size(); ++i)
    answer.out[i] = LoadNumber(out.data() + i * BytesOf(numbers.out), numbers.out);
  return answer;
}

void ExpectNear(const DeviceAnswer& got, const AttentionAnswer& want, NumberType out) {
  ASSERT_EQ(got.out.size(), want.out.size());
  const double unit = out == kF32 ? 0 : out == kF16 ? 0x1p-11 : 0x1p-8;
  constexpr double kBad = std::numeric_limits<double>::infinity();
  double worst = 0, worst_lse = 0;  // in parts of what is allowed
  for (size_t i = 0; i < got.out.size(); ++i) {
    const double error = std::fabs(got.out[i] - want.out[i]);
    // Where nothing is attended, or V is 0, the answer is exact.
    const double allowed = unit * std::fabs(want.out[i]) + 1e-5 * want.largest_v;
    worst = std::max(worst, std::isnan(error) ? kBad : error == 0 ? 0 : error / allowed);
  }
  EXPECT_LE(worst, 1) << "outputs are not the weighted means of V";
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], -std::numeric_limits<float>::infinity()) << "nothing is attended";
      continue;
    }
    const double error = std::fabs(got.lse[i] - want.lse[i]);
    const double allowed = 1e-5 * std::max(1.0, std::fabs(want.lse[i]));
    worst_lse = std::max(worst_lse, std::isnan(error) ? kBad : error / allowed);
  }
  EXPECT_LE(worst_lse, 1) << "log-sum-exps are not the natural ones of all logits";
}

bool HasAttentionKernel(ElementType type, uint32_t dim) {
  return dim != kMlaDim || type == ElementType::kBf16;
}

AttentionSetup::AttentionSetup(const AttentionCase& which)
    : kv_heads(which.dim == kMlaDim ? 1 : 2),
      tokens(40 + static_cast<int64_t>(which.seed % 37)),
      pages((tokens - 1) / which.page_tokens + 1),
      memory({.type = which.type,
              .layout = which.layout,
              .pages = pages,
              .page_tokens = which.page_tokens,
              .kv_heads = kv_heads,
              .k_dim = which.dim},
             which.seed),
      one(ShuffledTable(pages, which.seed)),
      other(ShuffledTable(pages, which.seed + 1000)) {
  const uint64_t n = which.seed;
  constexpr NumberType kNumbers[] = {kF32, kBf16, kF16};
  numbers = {kNumbers[n / 2 % 3], kNumbers[n % 3]};
  options.q_heads = kv_heads * which.group;
  options.scale = 1 / std::sqrt(static_cast<float>(which.dim));
  if (n % 3 == 1) options.soft_cap = 1.5f;
  if (n % 4 == 2) options.window = 29;
  if (n % 2 == 1 && which.page_tokens <= 32)
    options.split_tokens = 32 / which.page_tokens * which.page_tokens;
  if (n % 7 == 3) sinks = std::vector<float>(options.q_heads, 0.7f);
  const uint32_t q_tokens = n % 19 == 0 ? 16 : std::array{1u, 3u, 1u}[n % 3];
  sequences = {
      {.table = one, .kv_tokens = tokens, .q_position = tokens - q_tokens, .q_tokens = q_tokens},
      {.table = other, .kv_tokens = 33, .kv_position = 5, .q_position = 37, .q_tokens = 1}};
  q = RandomQueries((q_tokens + 1) * options.q_heads * size_t{which.dim}, numbers.q, n);
}

void CheckAttention(const AttentionCase& which, const RunLaunch& run) {
  SCOPED_TRACE(absl::StrFormat("dim %d, element type %d, layout %d, pages of %d, group %d, seed %d",
                               which.dim, static_cast<int>(which.type),
                               static_cast<int>(which.layout), which.page_tokens, which.group,
                               which.seed));
  const AttentionSetup setup(which);
  ExpectNear(setup.OnDevice(run), setup.Expected(), setup.numbers.out);
}

}  // namespace kvarve::testing
