// The delay against a sorted list, and the share of reads that is asked for twice.
#include "client/rpc/hedge.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvarve::client {
namespace {

TEST(Hedge, WaitsAsLongAsNineteenOfTwentyDid) {
  Hedge hedge;
  std::mt19937_64 random(7);
  std::vector<int64_t> all;
  for (size_t i = 0; i < 500; ++i) {
    const size_t known = std::min(all.size(), Hedge::kSamples);
    std::vector<int64_t> last(all.end() - static_cast<ptrdiff_t>(known), all.end());
    std::sort(last.begin(), last.end());
    if (known < Hedge::kFewestSamples) {
      EXPECT_FALSE(hedge.Delay().has_value());
    } else {
      EXPECT_EQ(hedge.Delay(), last[known * 95 / 100]);
    }
    all.push_back(static_cast<int64_t>(random() % 1000));
    hedge.Answered(all.back());
  }
}

TEST(Hedge, OneReadInTen) {
  Hedge hedge;
  EXPECT_FALSE(hedge.Take());
  for (int i = 0; i < 99; ++i) hedge.Answered(1);
  int taken = 0;
  while (hedge.Take()) ++taken;
  EXPECT_EQ(taken, 9);
  EXPECT_EQ(hedge.hedges(), 9u);
}

}  // namespace
}  // namespace kvarve::client
