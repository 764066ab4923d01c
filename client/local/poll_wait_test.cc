// Goal: who polls, how long, and when it is left off. Method: looks that a test answers, and a
// clock that they move.
#include "client/local/poll_wait.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvarve::local {
namespace {

constexpr int64_t kNanos = 50'000;
constexpr int64_t kLookNanos = 1'000;

class PollWaitTest : public ::testing::Test {
 protected:
  // A wait for what comes after `nanos`; counts the looks.
  bool Wait(int64_t nanos) {
    const int64_t comes = clock_.NowNanos() + nanos;
    looks_ = 0;
    return poll_.Poll([&] {
      ++looks_;
      const bool came = clock_.NowNanos() >= comes;
      clock_.Advance(kLookNanos);
      return came;
    });
  }
  // Waits that sleep at once, until one looks again.
  int SkipsUntilALook() {
    int skips = 0;
    while (!Wait(10 * kNanos) && looks_ == 0) ++skips;
    return skips;
  }

  ManualClock clock_;
  PollSeats seats_{1};
  PollWait poll_{kNanos, &seats_, &clock_};
  int looks_ = 0;
};

TEST_F(PollWaitTest, LooksUntilItComes) {
  EXPECT_TRUE(Wait(0));
  EXPECT_EQ(looks_, 1);
  EXPECT_TRUE(Wait(20 * kLookNanos));
  EXPECT_EQ(looks_, 21);
}

TEST_F(PollWaitTest, GivesUpAfterItsTime) {
  const int64_t before = clock_.NowNanos();
  EXPECT_FALSE(Wait(10 * kNanos));
  EXPECT_GE(clock_.NowNanos() - before, kNanos);
  EXPECT_LE(clock_.NowNanos() - before, kNanos + 10 * kLookNanos);
}

TEST_F(PollWaitTest, InVainItIsLeftOffLongerEachTime) {
  EXPECT_FALSE(Wait(10 * kNanos));
  std::vector<int> skips;
  for (int i = 0; i < 12; ++i) skips.push_back(SkipsUntilALook());
  EXPECT_EQ(skips, (std::vector<int>{1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023}));
}

TEST_F(PollWaitTest, OneThatPaidOffMakesUpForAll) {
  EXPECT_FALSE(Wait(10 * kNanos));
  EXPECT_EQ(SkipsUntilALook(), 1);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Wait(2 * kLookNanos));
  EXPECT_TRUE(Wait(2 * kLookNanos));
  EXPECT_TRUE(Wait(2 * kLookNanos));
  EXPECT_FALSE(Wait(10 * kNanos));
  EXPECT_EQ(SkipsUntilALook(), 1);
}

// Packets that lie there already (a client that shares the processor sends two in a row) do not
// speak for polling.
TEST_F(PollWaitTest, WhatWasThereAlreadyChangesNothing) {
  EXPECT_FALSE(Wait(10 * kNanos));
  EXPECT_EQ(SkipsUntilALook(), 1);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Wait(0));
  EXPECT_TRUE(Wait(0));
  EXPECT_FALSE(Wait(10 * kNanos));
  EXPECT_EQ(SkipsUntilALook(), 7);
}

TEST_F(PollWaitTest, WithoutASeatItNeverLooks) {
  ASSERT_TRUE(seats_.Take());
  EXPECT_FALSE(seats_.Take());
  EXPECT_FALSE(Wait(0));
  EXPECT_EQ(looks_, 0);
  seats_.Leave();
  EXPECT_TRUE(Wait(2 * kLookNanos));  // had not been in vain
  EXPECT_TRUE(seats_.Take());
}

TEST_F(PollWaitTest, OffOrOnOneProcessorItNeverLooks) {
  PollSeats none(0);
  for (PollWait wait : {PollWait(0, &seats_, &clock_), PollWait(kNanos, &none, &clock_)}) {
    EXPECT_FALSE(wait.Poll([]() -> bool {
      ADD_FAILURE() << "looked";
      return true;
    }));
  }
}

}  // namespace
}  // namespace kvarve::local
