// Goal: a gate says yes and no where it should, and the table says the same to people and to
// programs.
#include "tests/perf/bench_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvarve::perf {
namespace {

using testing::HasSubstr;

std::function<double()> Series(std::vector<double> values) {
  return [values, at = size_t{0}]() mutable { return values[at++ % values.size()]; };
}

TEST(QuantileTest, NearestRank) {
  EXPECT_EQ(3, Median({5, 1, 3}));
  EXPECT_EQ(2, Median({4, 1, 2, 3}));
  EXPECT_EQ(9, Median({9}));
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(99, Quantile(hundred, 0.99));
  EXPECT_EQ(100, Quantile(hundred, 1));
  EXPECT_EQ(1, Quantile(hundred, 0));
}

TEST(BenchTableTest, RatioIsTheMedianOfTheRoundsRatios) {
  BenchTable table;
  // The machine slows down tenfold in the second round: the ratios do not.
  table.Compare(
      {"s/a", "us", Better::kLower, 1.6, Series({15, 150, 15}), Series({10, 100, 10}), 3});
  ASSERT_EQ(1u, table.rows().size());
  const Row& row = table.rows()[0];
  EXPECT_EQ(15, row.value);
  EXPECT_EQ(10, *row.baseline);
  EXPECT_DOUBLE_EQ(1.5, *row.ratio);
  EXPECT_EQ("ratio <= 1.6", row.gate);
  EXPECT_TRUE(*row.pass);
}

TEST(BenchTableTest, GatesInBothDirections) {
  BenchTable table;
  table.Compare({"s/slow", "us", Better::kLower, 1.4, Series({15}), Series({10})});
  table.Compare({"s/fast", "GB/s", Better::kHigher, 0.9, Series({9.5}), Series({10})});
  table.Compare({"s/faint", "GB/s", Better::kHigher, 0.96, Series({9.5}), Series({10})});
  table.Compare({"s/shown", "GB/s", Better::kHigher, std::nullopt, Series({1}), Series({10})});
  table.Measure({"s/value", "us", Better::kLower, 1000, Series({800, 900, 1200}), 3});
  table.Measure({"s/over", "us", Better::kLower, 850, Series({800, 900, 1200}), 3});
  std::vector<std::optional<bool>> passes;
  for (const Row& row : table.rows()) passes.push_back(row.pass);
  EXPECT_THAT(passes, testing::ElementsAre(false, true, false, std::nullopt, true, false));
  EXPECT_EQ(900, table.rows()[4].value);
  EXPECT_FALSE(table.AllPass());
}

TEST(BenchTableTest, ComparedRowsMayBeGatedByTheirValue) {
  BenchTable table;
  table.Compare({.name = "s/a",
                 .unit = "ms",
                 .mine = Series({0.4}),
                 .bare = Series({0.1}),
                 .value_gate = 0.5});
  EXPECT_EQ("value <= 0.5", table.rows()[0].gate);
  EXPECT_TRUE(*table.rows()[0].pass);
  EXPECT_EQ(4, *table.rows()[0].ratio);
}

TEST(BenchTableTest, RoundsTakeTurns) {
  std::string order;
  BenchTable table;
  table.Compare({"s/a", "us", Better::kLower, std::nullopt,
                 [&] {
                   order += 'm';
                   return 1.0;
                 },
                 [&] {
                   order += 'b';
                   return 1.0;
                 },
                 4});
  EXPECT_EQ("mbbmmbbm", order);
}

TEST(BenchTableTest, FilterMeasuresOnlyWhatItNames) {
  BenchTable table("put/8MiB");
  bool measured = false;
  table.Measure({"local/get/8MiB", "us", Better::kLower, std::nullopt, [&] {
                   measured = true;
                   return 1.0;
                 }});
  table.Measure({"local/put/8MiB", "us", Better::kLower, std::nullopt, Series({1})});
  EXPECT_FALSE(measured);
  EXPECT_EQ(1u, table.rows().size());
  EXPECT_TRUE(table.Wants("local/put/8MiB/same_core"));
  EXPECT_FALSE(table.Wants("local/put"));
}

TEST(BenchTableTest, JsonHasOneObjectARow) {
  BenchTable table;
  table.Compare({"s/a", "us", Better::kLower, 1.4, Series({15}), Series({10})});
  table.Measure({"s/b", "GB/s", Better::kHigher, std::nullopt, Series({2})});
  table.Fail("s/c", "no redis-server here");
  const auto rows = nlohmann::json::parse(table.Json());
  ASSERT_EQ(3u, rows.size());
  EXPECT_EQ(
      R"({"baseline":10.0,"gate":"ratio <= 1.4","name":"s/a","noise":0.0,"pass":false,"ratio":1.5,)"
      R"("unit":"us","value":15.0})",
      rows[0].dump());
  EXPECT_TRUE(rows[1]["gate"].is_null());
  EXPECT_TRUE(rows[1]["pass"].is_null());
  EXPECT_TRUE(rows[1]["baseline"].is_null());
  EXPECT_TRUE(rows[2]["value"].is_null());
  EXPECT_FALSE(rows[2]["pass"].get<bool>());
  EXPECT_THAT(table.Text(), testing::AllOf(HasSubstr("ratio <= 1.4"), HasSubstr("NO"),
                                           HasSubstr("no redis-server here")));
}

TEST(BenchTableTest, NoisyRowsAreCalledNoisy) {
  BenchTable table;
  // The same median; the middle half of one goes from 8 to 12, of the other from 9.8 to 10.2.
  table.Compare(
      {"s/restless", "us", Better::kLower, 1.4, Series({6, 8, 9, 10, 11, 12, 15}), Series({1}), 7});
  table.Compare({"s/calm", "us", Better::kLower, 1.4, Series({6, 9.8, 9.9, 10, 10.1, 10.2, 15}),
                 Series({1}), 7});
  table.Measure({"s/once", "us", Better::kLower, std::nullopt, Series({3}), 1});
  EXPECT_DOUBLE_EQ(*table.rows()[0].noise, 0.4);
  EXPECT_NEAR(*table.rows()[1].noise, 0.04, 1e-9);
  EXPECT_FALSE(table.rows()[2].noise);
  const std::string text = table.Text();
  EXPECT_THAT(text, HasSubstr("NO    noisy, +-20 %\n"));
  EXPECT_EQ(text.find("noisy"), text.rfind("noisy"));
}

TEST(PinnedToTest, OneProcessorAndBack) {
  const std::vector<int> before = AllowedCpus();
  ASSERT_FALSE(before.empty());
  {
    PinnedTo pinned(before.back());
    EXPECT_EQ(std::vector<int>{before.back()}, AllowedCpus());
  }
  EXPECT_EQ(before, AllowedCpus());
  EXPECT_EQ(absl::StatusCode::kNotFound, PinProcess(1 << 30, 0).code());
}

}  // namespace
}  // namespace kvarve::perf
