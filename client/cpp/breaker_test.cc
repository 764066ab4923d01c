// Goal: the breaker opens at the configured number of consecutive time-outs, closes on any answer,
// and probes neither early nor twice. Method: a table of events and what must hold after each.
#include "client/cpp/breaker.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvarve::client {
namespace {

enum Event { kTimeout, kAnswer, kTick };
struct Step {
  int64_t now;
  Event event;
  bool open;           // afterwards
  bool probe = false;  // of a tick: is one due
};

void Check(int failures, const std::vector<Step>& steps) {
  Breaker breaker(failures, 100);
  EXPECT_FALSE(breaker.open());
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    bool probe = false;
    if (step.event == kTimeout) breaker.TimedOut(step.now);
    if (step.event == kAnswer) breaker.Answered();
    if (step.event == kTick) probe = breaker.TakeProbe(step.now);
    EXPECT_EQ(breaker.open(), step.open) << "step " << i;
    EXPECT_EQ(probe, step.probe) << "step " << i;
  }
}

TEST(Breaker, OpensAfterConsecutiveTimeouts) {
  Check(3, {{0, kTimeout, false}, {1, kTimeout, false}, {2, kTimeout, true}, {3, kTimeout, true}});
}

TEST(Breaker, AnAnswerBetweenStartsTheCountAgain) {
  Check(3, {{0, kTimeout, false},
            {1, kTimeout, false},
            {2, kAnswer, false},
            {3, kTimeout, false},
            {4, kTimeout, false},
            {5, kTimeout, true}});
}

TEST(Breaker, OneFailureCanBeEnough) { Check(1, {{0, kTimeout, true}, {1, kAnswer, false}}); }

TEST(Breaker, ClosedNeedsNoProbe) {
  Check(2, {{0, kTick, false}, {1, kTimeout, false}, {10'000, kTick, false}});
}

TEST(Breaker, ProbesOnceAnIntervalAfterOpeningAndAgainMuchLater) {
  Check(1, {{1000, kTimeout, true},
            {1099, kTick, true, false},
            {1100, kTick, true, true},
            {1101, kTick, true, false},
            {2699, kTick, true, false},
            {2700, kTick, true, true},
            {2701, kAnswer, false},
            {9000, kTick, false, false}});
}

TEST(Breaker, TimeoutsWhileOpenDoNotDelayTheProbe) {
  Check(1, {{0, kTimeout, true}, {99, kTimeout, true}, {100, kTick, true, true}});
}

TEST(Breaker, AfterClosingItOpensAsBefore) {
  Check(2, {{0, kTimeout, false},
            {1, kTimeout, true},
            {2, kAnswer, false},
            {3, kTimeout, false},
            {4, kTimeout, true},
            {103, kTick, true, false},
            {104, kTick, true, true}});
}

}  // namespace
}  // namespace kvarve::client
