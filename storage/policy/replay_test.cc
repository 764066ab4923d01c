// Goal: the policy that runs in the daemon gives the hit ratios that an independent program found
// for leaf-first LRU on a published trace (capacity as a share of the unique blocks; ratios to four
// digits).
#include "storage/policy/replay.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace kvarve {
namespace {

Trace Conversation() {
  std::ifstream file("storage/policy/testdata/mooncake_conversation.txt");
  std::stringstream text;
  text << file.rdbuf();
  auto trace = ParseTrace(text.str());
  EXPECT_TRUE(trace.ok()) << trace.status();
  return *std::move(trace);
}

TEST(Replay, LeafFirstLruMeetsItsYardstick) {
  const Trace trace = Conversation();
  ASSERT_EQ(trace.requests.size(), 12'031u);
  ASSERT_EQ(trace.parents.size(), 182'790u);
  struct Row {
    double share, hit_ratio;
  };
  for (const Row row : {Row{0.005, .0440}, Row{0.01, .0525}, Row{0.02, .0793}, Row{0.05, .1958},
                        Row{0.1, .2789}, Row{0.2, .3453}, Row{0.4, .3604}, Row{1, .3664}}) {
    const auto capacity = static_cast<uint64_t>(row.share * trace.parents.size());
    const auto policy = NewLruPolicy();
    const ReplayResult result = Replay(trace, capacity, policy.get());
    EXPECT_EQ(result.blocks, 288'500u);
    EXPECT_NEAR(result.hit_ratio(), row.hit_ratio, 0.0005) << row.share;
    EXPECT_EQ(result.rejected, 0u);
    EXPECT_EQ(result.blocks - result.hit_blocks - result.evicted,
              std::min<uint64_t>(capacity, trace.parents.size()));
  }
}

TEST(Replay, CountsByHand) {
  // Four blocks: 1 > 2 > 3 and 1 > 4; the second 3 stands under another parent and is another
  // block.
  const Trace trace = ParseTrace("# comment\n1-3\n1 4\n1-3\n3\n").value();
  EXPECT_EQ(trace.parents, (std::vector<uint32_t>{Trace::kRoot, 0, 1, 0, Trace::kRoot}));
  EXPECT_EQ(trace.requests[1], (std::vector<uint32_t>{0, 3}));
  const auto policy = NewLruPolicy();
  // Capacity 3: 1-3 fill it; 4 drives out 3; 3 drives out 4; the other 3 drives out 3.
  const ReplayResult result = Replay(trace, 3, policy.get());
  EXPECT_EQ(result.requests, 4u);
  EXPECT_EQ(result.blocks, 9u);
  EXPECT_EQ(result.hit_blocks, 1u + 2u);
  EXPECT_EQ(result.evicted, 3u);
}

TEST(Replay, ChainLongerThanTheCapacity) {
  const Trace trace = ParseTrace("1-10\n1-10\n").value();
  const auto policy = NewLruPolicy();
  const ReplayResult result = Replay(trace, 4, policy.get());
  EXPECT_EQ(result.blocks, 20u);
  EXPECT_LE(result.hit_blocks, 4u);
  EXPECT_GT(result.rejected, 0u);
}

TEST(ParseTrace, RefusesWhatIsNoTrace) {
  for (const char* text : {"1 x\n", "3-1\n", "1-\n", "-1\n", "1,2\n", "0-99999999999\n",
                           "1 2-3-4\n", "99999999999999999999999\n"}) {
    EXPECT_EQ(ParseTrace(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParseTrace("# only this").value().requests.size(), 0u);
}

}  // namespace
}  // namespace kvarve
