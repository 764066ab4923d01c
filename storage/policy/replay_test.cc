// Goal: the policies that run in the daemon give the hit ratios that they promise on published
// traces (capacity as a share of the unique blocks), in both halves; and the replay counts right.
// The yardsticks are held to four digits of what an independent program found.
#include "storage/policy/replay.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "storage/policy/hazard_policy.h"
#include "storage/policy/published_traces_testing.h"
#include "storage/policy/yardsticks.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::kShares;
using testing::LoadTrace;
constexpr size_t kPoints = kShares.size();
using Row = std::array<double, kPoints>;

// Hit ratios by an independent program; `hazard` is the larger of two experiments with a learned
// index and, on gmi, of an experiment whose capacity is kept (the printed one kept up to 34,745
// blocks at a capacity of 185: an evicted block with two parents stayed in one of their lists).
struct Published {
  const char* file;
  uint64_t requests, references, unique_ids;
  Row lru, lru_leaf_first, s3fifo, belady, hazard;
};
const Published kPublished[] = {
    {"mooncake_conversation",
     12'031,
     288'500,
     182'790,
     {.0435, .0523, .0787, .1954, .2784, .3446, .3603},
     {.0440, .0525, .0793, .1958, .2789, .3453, .3604},
     {.0550, .0767, .1120, .1879, .2447, .3279, .3584},
     {.1829, .2464, .3142, .3664, .3664, .3664, .3664},
     {.0787, .1029, .1433, .2198, .2884, .3432, .3625}},
    {"mooncake_synthetic",
     3'993,
     121'877,
     43'924,
     {.0143, .0343, .0758, .1548, .2598, .3905, .5446},
     {.0199, .0381, .0778, .1566, .2623, .3931, .5451},
     {.0145, .0457, .0746, .1538, .2593, .3796, .5418},
     {.1246, .1854, .2613, .3956, .5063, .6080, .6396},
     {.0257, .0398, .0761, .1687, .2790, .4397, .5793}},
    {"gmi",
     1'931,
     119'692,
     37'180,
     {.3352, .5367, .6095, .6252, .6312, .6380, .6439},
     {.4092, .5579, .6115, .6258, .6312, .6380, .6439},
     {.5980, .6136, .6215, .6294, .6364, .6396, .6426},
     {.6114, .6307, .6381, .6450, .6452, .6452, .6452},
     {.5726, .6078, .6223, .6303, .6351, .6389, .6435}},
};

ReplayResult RunHost(const Trace& trace, uint64_t blocks, EvictionPolicy* policy) {
  ReplayOptions options;
  options.host_blocks = blocks;
  return Replay(trace, options, policy);
}

class PublishedTest : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedTest, YardsticksToFourDigits) {
  const Published& published = GetParam();
  const Trace trace = LoadTrace(published.file);
  ASSERT_EQ(trace.requests.size(), published.requests);
  ASSERT_EQ(trace.references, published.references);
  ASSERT_EQ(trace.unique_ids, published.unique_ids);
  for (size_t i = 0; i < kPoints; ++i) {
    const auto capacity = static_cast<uint64_t>(kShares[i] * trace.unique_ids);
    EXPECT_NEAR(LruHitRatio(trace, capacity, false), published.lru[i], .00005) << kShares[i];
    EXPECT_NEAR(LruHitRatio(trace, capacity, true), published.lru_leaf_first[i], .00005)
        << kShares[i];
    EXPECT_NEAR(S3FifoHitRatio(trace, capacity), published.s3fifo[i], .00005) << kShares[i];
    EXPECT_NEAR(BeladyHitRatio(trace, capacity), published.belady[i], .00005) << kShares[i];
  }
}

TEST_P(PublishedTest, LeafFirstLru) {
  const Trace trace = LoadTrace(GetParam().file);
  for (size_t i = 0; i < kPoints; ++i) {
    const auto capacity = static_cast<uint64_t>(kShares[i] * trace.unique_ids);
    const auto policy = NewLruPolicy();
    const ReplayResult result = RunHost(trace, capacity, policy.get());
    // gmi's ids are not strictly chained, and are here.
    const double tolerance = trace.parents.size() == trace.unique_ids ? .0001 : .002;
    EXPECT_NEAR(result.hit_ratio(), GetParam().lru_leaf_first[i], tolerance) << kShares[i];
    EXPECT_EQ(result.blocks, GetParam().references);
    EXPECT_EQ(result.refused, 0u);
    EXPECT_EQ(result.blocks - result.hit_blocks - result.rejected - result.evicted, capacity);
  }
}

// By the mean of four seeds of its sample: below 2 % of capacity single runs differ by .004.
TEST_P(PublishedTest, HazardIsAtNoPointWorse) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "84 replays are the release build's: sanitizers see the policy in the other tests";
#endif
  constexpr uint64_t kSeeds = 4;
  const Published& published = GetParam();
  const Trace trace = LoadTrace(published.file);
  std::printf("%-22s  share   whole  first half  second half  floor\n", published.file);
  for (size_t i = 0; i < kPoints; ++i) {
    double whole = 0, early = 0, late = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      HazardOptions options;
      options.seed += seed;
      const auto policy = NewHazardPolicy(options);
      const ReplayResult result =
          RunHost(trace, static_cast<uint64_t>(kShares[i] * trace.unique_ids), policy.get());
      whole += result.hit_ratio() / kSeeds;
      early += result.early_hit_ratio() / kSeeds;
      late += result.late_hit_ratio() / kSeeds;
    }
    const double floor = std::max({published.lru[i], published.s3fifo[i], published.hazard[i]});
    std::printf("%-22s  %.3f   %.4f     %.4f      %.4f      %.4f\n", "", kShares[i], whole, early,
                late, floor);
    EXPECT_GE(whole, floor - .003) << kShares[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, PublishedTest, ::testing::ValuesIn(kPublished),
                         [](const auto& param) { return std::string(param.param.file); });

// Sessions whose prompts grow turn by turn, their requests in random order.
class Sessions {
 public:
  Sessions(uint64_t seed, uint64_t first_id) : random_(seed), next_id_(first_id) {}

  void Run(int sessions, int turns, TraceBuilder* builder) {
    std::vector<std::vector<uint64_t>> prompts(sessions);
    std::vector<int> turn(sessions);
    for (int left = sessions * turns; left > 0; --left) {
      size_t session = random_.Below(sessions);
      while (turn[session] == turns) session = (session + 1) % sessions;
      ++turn[session];
      const uint64_t more = 4 + random_.Below(9);
      for (uint64_t i = 0; i < more; ++i) prompts[session].push_back(next_id_++);
      builder->Add(seconds_ += 1, 0, UINT32_MAX, prompts[session]);
    }
  }

 private:
  testing::SeededRandom random_;
  uint64_t next_id_;
  double seconds_ = 0;
};

double Compare(const Trace& trace, const char* what) {
  const uint64_t capacity = trace.parents.size() / 3;
  const auto lru = NewLruPolicy();
  const auto hazard = NewHazardPolicy();
  const double of_lru = RunHost(trace, capacity, lru.get()).hit_ratio();
  const double of_hazard = RunHost(trace, capacity, hazard.get()).hit_ratio();
  std::printf("%s: lru %.4f, hazard %.4f\n", what, of_lru, of_hazard);
  EXPECT_GT(of_lru, 0.1);  // the trace can be hit at all
  return of_hazard - of_lru;
}

// 240 requests say little: single seeds lose up to .044 and win up to .022, so the mean is judged.
TEST(Replay, HazardLosesNothingWhileCold) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    TraceBuilder builder;
    Sessions(seed, 0).Run(30, 8, &builder);
    sum += Compare(builder.Finish(), "240 requests of 30 sessions");
  }
  EXPECT_GE(sum / 20, -.01);
}

TEST(Replay, HazardFollowsAChange) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    TraceBuilder builder;
    Sessions(seed, 0).Run(60, 20, &builder);
    Sessions(seed + 100, 1'000'000).Run(60, 20, &builder);  // nothing of the first ones comes again
    EXPECT_GE(Compare(builder.Finish(), "two working sets"), -.01) << seed;
  }
}

TEST(Replay, CountsByHand) {
  // Four blocks: 1 > 2 > 3 and 1 > 4; the second 3 stands under another parent and is another
  // block.
  const Trace trace = ParseTrace("# comment\n1-3\n1 4\n1-3\n3\n").value();
  EXPECT_EQ(trace.parents, (std::vector<uint32_t>{Trace::kRoot, 0, 1, 0, Trace::kRoot}));
  EXPECT_EQ(trace.ids, (std::vector<uint32_t>{0, 1, 2, 3, 2}));
  EXPECT_EQ(trace.unique_ids, 4u);
  EXPECT_EQ(trace.requests[1].blocks, (std::vector<uint32_t>{0, 3}));
  const auto policy = NewLruPolicy();
  // Capacity 3: 1-3 fill it; 4 drives out 3; 3 drives out 4; the other 3 drives out 3.
  const ReplayResult result = RunHost(trace, 3, policy.get());
  EXPECT_EQ(result.requests, 4u);
  EXPECT_EQ(result.blocks, 9u);
  EXPECT_EQ(result.hit_blocks, 1u + 2u);
  EXPECT_EQ(result.late_blocks, 4u);
  EXPECT_EQ(result.late_hit_blocks, 2u);
  EXPECT_EQ(result.evicted, 3u);
}

TEST(Replay, ChainLongerThanTheCapacity) {
  const Trace trace = ParseTrace("1-10\n1-10\n").value();
  for (const std::string_view name : kEvictionPolicies) {
    const auto policy = NewEvictionPolicy(name);
    const ReplayResult result = RunHost(trace, 4, policy.get());
    EXPECT_EQ(result.blocks, 20u);
    EXPECT_LE(result.hit_blocks, 4u);
    EXPECT_GT(result.rejected + result.refused, 0u) << name;
  }
}

// What is put goes to the device as a whole chain, and is hit there.
TEST(Replay, TwoTiersByHand) {
  const Trace trace = ParseTrace("0,0,0,1-3\n1,0,0,4-6\n2,0,0,1-3\n3,0,0,4-6\n").value();
  ReplayOptions options;
  options.host_blocks = 3;
  options.nvme.blocks = 6;
  options.nvme.budget.drive_writes_per_day = 0;  // no limit
  const auto policy = NewLruPolicy();
  const ReplayResult result = Replay(trace, options, policy.get());
  EXPECT_EQ(result.hit_blocks, 6u);
  EXPECT_EQ(result.host_hit_blocks, 0u);
  EXPECT_EQ(result.nvme.hit_blocks, 6u);
  EXPECT_EQ(result.nvme.written_blocks, 6u);  // each once: the copies stay when they are promoted
}

TEST(ParseTrace, RefusesWhatIsNoTrace) {
  for (const char* text :
       {"1 x\n", "3-1\n", "1-\n", "-1\n", "1,2\n", "0-99999999999\n", "1 2-3-4\n",
        "99999999999999999999999\n", "nan,1,1,1\n", "1,-1,1,1\n", "1,1,x,1\n", "1,1,1,1,1\n"}) {
    EXPECT_EQ(ParseTrace(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParseTrace("# only this").value().requests.size(), 0u);
  const Trace trace =
      ParseTrace("timestamp,a,b,c\r\n5.5,100,7,1-2\r\n4,200,8,1\r\n6.5,1,1,\r\n").value();
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[0].seconds, 0);
  EXPECT_EQ(trace.requests[1].seconds, 0);  // a time that goes back
  EXPECT_EQ(trace.requests[2].seconds, 1);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 200u);
  EXPECT_EQ(trace.requests[0].response_tokens, 7u);
  EXPECT_EQ(trace.references, 3u);
}

}  // namespace
}  // namespace kvarve
