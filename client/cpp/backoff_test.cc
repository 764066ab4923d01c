// Every pause lies within a quarter of 10, 20, 40, 80, 80 and so on, and they are spread over it.
#include "client/cpp/backoff.h"

#include <gtest/gtest.h>

#include <set>

namespace kvarve::client {
namespace {

TEST(BackoffTest, DoublesToTheLongestAndIsSpreadByAQuarter) {
  constexpr int64_t kPauses[] = {1000, 2000, 4000, 8000, 8000, 8000};
  std::set<int64_t> seen[std::size(kPauses)];
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Backoff backoff(1000, 8000, seed);
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < std::size(kPauses); ++i) {
        const int64_t pause = backoff.Next();
        EXPECT_GE(pause, kPauses[i] - kPauses[i] / 4);
        EXPECT_LE(pause, kPauses[i] + kPauses[i] / 4);
        seen[i].insert(pause);
      }
      backoff.Reset();
    }
  }
  for (size_t i = 0; i < std::size(kPauses); ++i) {
    EXPECT_LT(*seen[i].begin(), kPauses[i] - kPauses[i] / 8);
    EXPECT_GT(*seen[i].rbegin(), kPauses[i] + kPauses[i] / 8);
  }
}

TEST(BackoffTest, NeverBeyondTheLongest) {
  Backoff backoff(1000, 10);
  for (int i = 0; i < 100; ++i) EXPECT_LE(backoff.Next(), 12);
}

}  // namespace
}  // namespace kvarve::client
