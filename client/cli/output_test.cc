#include "client/cli/output.h"

#include <gtest/gtest.h>

namespace kvarve::cli {
namespace {

TEST(OutputTest, Counts) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(CountText(UINT64_MAX), "18,446,744,073,709,551,615");
}

TEST(OutputTest, Percent) {
  EXPECT_EQ(PercentText(1, 8), "12.5 %");
  EXPECT_EQ(PercentText(0, 0), "-");
}

TEST(OutputTest, TablesAreAligned) {
  Table numbers({"name", "count"});
  numbers.Add({"a", "1"});
  numbers.Add({"longer", "1,000"});
  EXPECT_EQ(numbers.Text(), "name    count\na           1\nlonger  1,000\n");
  Table words({"name", "what"}, /*left=*/true);
  words.Add({"a", "b"});
  words.Add({"", ""});
  EXPECT_EQ(words.Text(), "name  what\na     b\n\n");
}

TEST(OutputTest, Pairs) { EXPECT_EQ(PairsText({{"a", "1"}, {"long", "2"}}), "a     1\nlong  2\n"); }

TEST(OutputTest, AnswersOfOtherDaemonsAreRead) {
  const Json json = {{"number", 5u}, {"text", "t"}, {"negative", -1}, {"none", nullptr}};
  EXPECT_EQ(Number(json, "number"), 5u);
  EXPECT_EQ(Number(json, "missing"), 0u);
  EXPECT_EQ(Number(json, "text"), 0u);
  EXPECT_EQ(Number(json, "negative"), 0u);
  EXPECT_EQ(TextOf(json, "text"), "t");
  EXPECT_EQ(TextOf(json, "number"), "5");
  EXPECT_EQ(TextOf(json, "missing"), "");
}

}  // namespace
}  // namespace kvarve::cli
