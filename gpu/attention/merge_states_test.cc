#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "gpu/attention/attention.h"

namespace kvarve {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Part {
  std::vector<float> out, lse;
  AttentionState state() const { return {out.data(), lse.data()}; }
};

Part Merge(const std::vector<AttentionState>& states, size_t rows, size_t dim,
           std::span<const float> sinks = {}) {
  Part merged{std::vector<float>(rows * dim, 1e30f), std::vector<float>(rows, 1e30f)};
  MergeStates(states, rows, dim, sinks, merged.out.data(), merged.lse.data());
  return merged;
}

TEST(MergeStatesTest, IsTheMeanWeighedByTheSums) {
  // Of 3 and of 1 tokens with logit 0: lse log 3 and 0.
  const Part a{{2, 6}, {std::log(3.0f)}}, b{{10, -2}, {0}};
  const Part merged = Merge({a.state(), b.state()}, 1, 2);
  EXPECT_FLOAT_EQ(merged.lse[0], std::log(4.0f));
  EXPECT_FLOAT_EQ(merged.out[0], 4);
  EXPECT_FLOAT_EQ(merged.out[1], 4);
  // A sink counts as four more tokens of logit 0 whose V is 0.
  const float sink[] = {std::log(4.0f)};
  const Part sunk = Merge({a.state(), b.state()}, 1, 2, sink);
  EXPECT_FLOAT_EQ(sunk.lse[0], std::log(8.0f));
  EXPECT_FLOAT_EQ(sunk.out[0], 2);
}

TEST(MergeStatesTest, NothingAddsNothingWhateverItsOutput) {
  const Part something{{1.5f, -3}, {100}}, nothing{{std::nanf(""), kInfinity}, {-kInfinity}};
  for (const auto& states : {std::vector{something.state(), nothing.state()},
                             std::vector{nothing.state(), something.state()}}) {
    const Part merged = Merge(states, 1, 2);
    EXPECT_EQ(merged.out, something.out);
    EXPECT_EQ(merged.lse, something.lse);
  }
  for (const auto& states :
       {std::vector{nothing.state(), nothing.state()}, std::vector<AttentionState>{}}) {
    const Part merged = Merge(states, 1, 2);
    EXPECT_EQ(merged.out, (std::vector<float>{0, 0}));
    EXPECT_EQ(merged.lse[0], -kInfinity);
  }
}

TEST(MergeStatesTest, TheOrderOfTwoDoesNotMatter) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> number(0, 20);
  for (int round = 0; round < 200; ++round) {
    Part a{std::vector<float>(64), std::vector<float>(4)}, b = a;
    for (Part* part : {&a, &b}) {
      for (float& value : part->out) value = number(random);
      for (float& value : part->lse) value = number(random);
    }
    const Part one = Merge({a.state(), b.state()}, 4, 16);
    const Part other = Merge({b.state(), a.state()}, 4, 16);
    ASSERT_EQ(one.out, other.out);
    ASSERT_EQ(one.lse, other.lse);
    // And in place of the first.
    MergeStates(std::vector{a.state(), b.state()}, 4, 16, {}, a.out.data(), a.lse.data());
    ASSERT_EQ(a.out, one.out);
    ASSERT_EQ(a.lse, one.lse);
  }
}

TEST(MergeStatesTest, SumsFarBeyondExp) {
  const Part a{{1}, {5000}}, b{{3}, {5000}}, c{{7}, {-5000}};
  const Part merged = Merge({a.state(), b.state(), c.state()}, 1, 1);
  EXPECT_FLOAT_EQ(merged.out[0], 2);
  EXPECT_FLOAT_EQ(merged.lse[0], 5000 + std::log(2.0f));
}

TEST(MergeStatesTest, ANanStaysInItsRow) {
  const Part a{{1, 2}, {std::nanf(""), 0}}, b{{3, 4}, {0, 0}};
  const Part merged = Merge({a.state(), b.state()}, 2, 1);
  EXPECT_TRUE(std::isnan(merged.out[0]));
  EXPECT_TRUE(std::isnan(merged.lse[0]));
  EXPECT_FLOAT_EQ(merged.out[1], 3);
}

TEST(NaturalLseTest, EachBase) {
  EXPECT_EQ(NaturalLse(3, LseBase::kNatural), 3);
  EXPECT_FLOAT_EQ(NaturalLse(3, LseBase::kTwo), std::log(8.0f));  // log2 of 8
  EXPECT_EQ(NaturalLse(-kInfinity, LseBase::kTwo), -kInfinity);
}

}  // namespace
}  // namespace kvarve
