#include "gpu/paged/paged_sim.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvarve {
namespace {

constexpr SimPolicy kPolicies[] = {SimPolicy::kLongest, SimPolicy::kPowerOfTwo, SimPolicy::kExact,
                                   SimPolicy::kPaged};

// Small enough to do by hand: 2 of 3 tokens of prompt and one to come run at a time in 8 places of
// 4 a sequence; the shares are those of the steps while somebody waits.
TEST(PagedSimTest, CountsWhatAHandCounts) {
  const std::vector<SimRequest> requests(3, SimRequest{2, 1});
  const SimMemory memory{8, 4, 2};
  SimShares longest = SimulateMemory(memory, SimPolicy::kLongest, requests).value();
  EXPECT_EQ(longest.steps, 1);
  EXPECT_DOUBLE_EQ(longest.stored, 4.0 / 8);
  EXPECT_DOUBLE_EQ(longest.ahead, 2.0 / 8);
  EXPECT_DOUBLE_EQ(longest.never, 2.0 / 8);
  EXPECT_DOUBLE_EQ(longest.unclaimed, 0);
  EXPECT_DOUBLE_EQ(longest.running, 2);
  SimShares exact = SimulateMemory(memory, SimPolicy::kExact, requests).value();
  EXPECT_DOUBLE_EQ(exact.never, 0);
  EXPECT_DOUBLE_EQ(exact.unclaimed, 2.0 / 8);
  // Admission asks for the next token's page and gives it back: 3 tables of one page each would
  // fit, but the third finds no second page.
  SimShares paged =
      SimulateMemory(memory, SimPolicy::kPaged, std::vector(4, SimRequest{2, 1})).value();
  EXPECT_EQ(paged.steps, 1);
  EXPECT_DOUBLE_EQ(paged.stored, 6.0 / 8);
  EXPECT_DOUBLE_EQ(paged.Waste(), 0);
}

TEST(PagedSimTest, SharesSumToOneAndEveryRequestEnds) {
  const SimMemory memory{16384, 2048, 16};
  const std::vector<SimRequest> requests = RandomRequests(300, 161, 338, 2048, 1);
  for (const SimPolicy policy : kPolicies) {
    const SimShares shares = SimulateMemory(memory, policy, requests).value();
    EXPECT_NEAR(shares.stored + shares.ahead + shares.never + shares.unclaimed, 1, 1e-9);
    EXPECT_GT(shares.stored, 0) << SimPolicyName(policy);
  }
}

// The order of the PagedAttention paper (Kwon et al., SOSP 2023): 20-38 % useful under reservation,
// less than 4 % of what is held wasted by paging.
TEST(PagedSimTest, PagingWastesLittleAndReservationMuch) {
  const SimMemory memory{16384, 2048, 16};
  const std::vector<SimRequest> requests = RandomRequests(1000, 161, 338, 2048, 1);
  const SimShares longest = SimulateMemory(memory, SimPolicy::kLongest, requests).value();
  const SimShares power = SimulateMemory(memory, SimPolicy::kPowerOfTwo, requests).value();
  const SimShares exact = SimulateMemory(memory, SimPolicy::kExact, requests).value();
  const SimShares paged = SimulateMemory(memory, SimPolicy::kPaged, requests).value();
  EXPECT_GT(longest.stored, 0.15);
  EXPECT_LT(longest.stored, 0.38);
  EXPECT_GT(power.stored, longest.stored);
  EXPECT_GT(exact.stored, power.stored);
  EXPECT_GT(paged.stored, exact.stored);
  EXPECT_LT(paged.Waste(), 0.04);
  EXPECT_GT(paged.preempted, 0) << "a memory that is full was never short of a page";
}

TEST(PagedSimTest, RefusesWhatCannotRun) {
  const std::vector<SimRequest> one = {{2, 1}};
  EXPECT_FALSE(SimulateMemory({8, 2, 2}, SimPolicy::kPaged, one).ok());   // longer than allowed
  EXPECT_FALSE(SimulateMemory({8, 16, 2}, SimPolicy::kPaged, one).ok());  // than the memory
  EXPECT_FALSE(SimulateMemory({8, 4, 0}, SimPolicy::kPaged, one).ok());
  EXPECT_FALSE(SimulateMemory({8, 4, 2}, SimPolicy::kPaged, one).ok());  // nobody ever waits
  EXPECT_FALSE(SimulateMemory({8, 4, 2}, SimPolicy::kPaged, std::vector{SimRequest{2, 0}}).ok());
}

}  // namespace
}  // namespace kvarve
