#include "storage/base/edit_distance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvarve {
namespace {

// Against the textbook recursion.
size_t NaiveDistance(std::string_view a, std::string_view b) {
  if (a.empty()) return b.size();
  if (b.empty()) return a.size();
  return std::min({NaiveDistance(a.substr(1), b) + 1, NaiveDistance(a, b.substr(1)) + 1,
                   NaiveDistance(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1)});
}

TEST(EditDistanceTest, EqualsTheNaiveRecursion) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    std::string a, b;
    for (size_t n = random() % 7; n > 0; --n) a += static_cast<char>('a' + random() % 3);
    for (size_t n = random() % 7; n > 0; --n) b += static_cast<char>('a' + random() % 3);
    EXPECT_EQ(EditDistance(a, b), NaiveDistance(a, b)) << a << " " << b;
  }
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(NearestWordTest, IsNearOrNothing) {
  const std::vector<std::string> known = {"lookup", "put", "get", "status", "stats"};
  EXPECT_EQ(NearestWord("lokup", known), "lookup");
  EXPECT_EQ(NearestWord("statu", known), "status");
  EXPECT_EQ(NearestWord("gut", known), "put");  // the first of equally near ones
  EXPECT_EQ(NearestWord("fly", known), "");
  EXPECT_EQ(NearestWord("frobnicate", known), "");
  EXPECT_EQ(NearestWord("put", {}), "");
}

}  // namespace
}  // namespace kvarve
