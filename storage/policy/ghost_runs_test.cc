// Goal: a run of blocks is remembered by one ghost, and comes back as what it was: block by block,
// as long as the request follows it. Method: chains that leave from the end or are refused from the
// front, beside a naive list of what each block was when it was last seen; counted by hand where
// order matters.
#include "storage/policy/ghost_runs.h"

#include <vector>

#include "gtest/gtest.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

class GhostRunsTest : public ::testing::Test {
 protected:
  GhostRunsTest() { runs_.GrowTo(1000); }

  Ghost Of(uint64_t key, uint16_t of_class = 1, uint8_t hits = 0) {
    return {key, ++clock_, of_class, hits};
  }
  auto Counts() {
    return [this](const Ghost& gone) { forgotten_ += gone.length; };
  }
  void Begin() { runs_.BeginRequest(Counts()); }
  void Refuse(uint64_t begin, uint64_t end) {
    Begin();
    for (uint64_t key = begin; key < end; ++key) runs_.Refused(Of(key), Counts());
    Begin();
  }
  // Comes as a chain and leaves from its end. Ids are keys.
  void ComeAndLeave(uint64_t begin, uint64_t end) {
    for (uint64_t key = begin; key < end; ++key)
      runs_.Came(static_cast<uint32_t>(key), key, Counts());
    for (uint64_t key = end; key-- > begin;) {
      runs_.Left(static_cast<uint32_t>(key), Of(key), Counts());
      if (key > begin) runs_.IsLeaf(static_cast<uint32_t>(key - 1));
    }
  }
  // How many leading blocks of a request are remembered.
  size_t Known(const std::vector<uint64_t>& keys) {
    Begin();
    size_t known = 0;
    while (known < keys.size() && runs_.Next(keys[known]) != nullptr) ++known;
    return known;
  }

  GhostRuns runs_;
  uint32_t clock_ = 0;
  uint64_t forgotten_ = 0;
};

TEST_F(GhostRunsTest, WhatIsRefusedTogetherIsARunAndItsLastBlock) {
  Refuse(1, 11);
  EXPECT_EQ(runs_.table().size(), 2u);
  EXPECT_EQ(Known({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), 10u);
  EXPECT_EQ(Known({1, 2, 3, 4, 5, 6, 7, 8, 9, 99}), 9u);  // the session's next prompt
  EXPECT_EQ(Known({2, 3}), 0u);                           // not from its begin
  EXPECT_EQ(Known({1, 99, 98}), 3u);                      // taken for 2 and 3
}

TEST_F(GhostRunsTest, WhatLeavesFromTheEndIsARun) {
  ComeAndLeave(1, 11);
  EXPECT_EQ(runs_.table().size(), 1u);
  EXPECT_EQ(runs_.table().Find(1)->length, 10u);
  EXPECT_EQ(Known({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 10u);
}

TEST_F(GhostRunsTest, AskingTwiceIsAskingOnce) {
  Refuse(1, 5);
  Begin();
  for (const uint64_t key : {1, 1, 2, 2, 3, 3}) EXPECT_NE(runs_.Next(key), nullptr) << key;
  EXPECT_NE(runs_.Next(1), nullptr);  // a put asks for all, and then again as they come
  EXPECT_NE(runs_.Next(2), nullptr);
  EXPECT_EQ(runs_.Next(0), nullptr);
  EXPECT_EQ(runs_.Next(3), nullptr);
}

TEST_F(GhostRunsTest, OtherHistoriesAreOtherRuns) {
  Begin();
  for (uint64_t key = 1; key < 5; ++key) runs_.Refused(Of(key, 1, 0), Counts());
  for (uint64_t key = 5; key < 9; ++key) runs_.Refused(Of(key, 2, 1), Counts());
  EXPECT_EQ(Known({1, 2, 3, 4, 5, 6, 7, 8}), 8u);
  Begin();
  EXPECT_EQ(runs_.Next(1)->of_class, 1);
  EXPECT_EQ(runs_.Next(5)->of_class, 2);
  EXPECT_EQ(runs_.Next(6)->hits, 1);
  for (uint64_t key = 100; key < 104; ++key) runs_.Came(static_cast<uint32_t>(key), key, Counts());
  runs_.Left(103, Of(103), Counts());
  runs_.Came(104, 104, Counts());  // something else happened in between
  runs_.IsLeaf(102);
  runs_.Left(102, Of(102), Counts());
  EXPECT_EQ(runs_.table().Find(102)->length, 1);
}

TEST_F(GhostRunsTest, ARunHasAnEnd) {
  Refuse(1, 1 + 3 * GhostRuns::kMost);
  ComeAndLeave(1001, 1001 + 3 * GhostRuns::kMost);
  for (size_t place = 0; place < runs_.table().places(); ++place)
    EXPECT_LE(runs_.table().At(place).length, GhostRuns::kMost);
}

// Whatever happens, no block is counted twice or lost: each is remembered, forgotten, or came back.
TEST_F(GhostRunsTest, EveryBlockIsOfOneGhost) {
  testing::SeededRandom random(9);
  uint64_t put = 0, next = 1;
  for (int step = 0; step < 3000; ++step) {
    const uint64_t length = 1 + random.Below(30);
    if (random.OneIn(2)) {
      Refuse(next, next + length);
    } else {
      ComeAndLeave(next, next + length);
    }
    put += length;
    next += length;
    uint64_t remembered = 0;
    for (size_t place = 0; step % 100 == 0 && place < runs_.table().places(); ++place) {
      const Ghost& ghost = runs_.table().At(place);
      if (ghost.key != 0) remembered += ghost.length;
    }
    if (step % 100 == 0) {
      ASSERT_EQ(remembered + forgotten_, put) << step;
    }
  }
  EXPECT_LE(runs_.table().size(), 1000 * GhostTable::kPerResident);
  EXPECT_GT(put - forgotten_, 5 * runs_.table().size());  // what runs are for
}

}  // namespace
}  // namespace kvarve
