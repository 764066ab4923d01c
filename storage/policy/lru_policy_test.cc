// Goal: the victim is exactly the group's evictable entry with the oldest touch. Method: a naive
// model keeps a list of touches and scans all entries for each victim, under random operations over
// several groups, ids used again in other groups, and eviction by the policy's own word.
#include <iterator>
#include <map>
#include <memory>

#include "gtest/gtest.h"
#include "storage/policy/eviction_policy.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::SeededRandom;

struct Entry {
  uint32_t group;
  uint64_t touch;
  bool evictable;
};

class LruModelTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint32_t ExpectedVictim(uint32_t group) const {
    uint32_t victim = kNoVictim;
    for (const auto& [id, entry] : model_) {
      if (entry.group != group || !entry.evictable) continue;
      if (victim == kNoVictim || entry.touch < model_.at(victim).touch) victim = id;
    }
    return victim;
  }
  uint32_t AnyKnown() { return std::next(model_.begin(), random_.Below(model_.size()))->first; }

  void Step() {
    const uint32_t id = static_cast<uint32_t>(random_.Below(kIds));
    const uint64_t what = random_.Below(12);
    if (what < 4) {
      if (model_.count(id) > 0) return;
      const bool evictable = !random_.OneIn(3);
      BlockTraits traits;
      traits.group = static_cast<uint32_t>(random_.Below(GetParam()));
      policy_->OnInsert(id, traits, evictable);
      model_[id] = {traits.group, ++clock_, evictable};
    } else if (model_.empty()) {
      return;
    } else if (what < 7) {
      const uint32_t known = AnyKnown();
      policy_->OnTouch(known);
      model_[known].touch = ++clock_;
    } else if (what < 9) {
      const uint32_t known = AnyKnown();
      const bool evictable = random_.OneIn(2);  // also when it is so already
      policy_->OnEvictable(known, evictable);
      model_[known].evictable = evictable;
    } else if (what < 10) {
      const uint32_t known = AnyKnown();
      policy_->OnRemove(known);
      model_.erase(known);
    } else {
      const uint32_t group = static_cast<uint32_t>(random_.Below(GetParam()));
      const uint32_t victim = policy_->Victim(group);
      ASSERT_EQ(victim, ExpectedVictim(group));
      ASSERT_EQ(policy_->Victim(group), victim);  // asking changes nothing
      if (victim == kNoVictim) return;
      policy_->OnRemove(victim);
      model_.erase(victim);
    }
  }

  void CompareAll() {
    for (uint32_t group = 0; group < GetParam() + 1; ++group) {
      ASSERT_EQ(policy_->Victim(group), ExpectedVictim(group));
    }
    // LastTouch orders as the touches did, over all groups.
    std::map<uint64_t, uint64_t> touches;
    for (const auto& [id, entry] : model_) touches[entry.touch] = policy_->LastTouch(id);
    uint64_t before = 0;
    for (const auto& [touch, last] : touches) {
      ASSERT_GT(last, before);
      before = last;
    }
  }

  static constexpr uint64_t kIds = 400;
  SeededRandom random_{77};
  std::unique_ptr<EvictionPolicy> policy_ = NewLruPolicy();
  std::map<uint32_t, Entry> model_;
  uint64_t clock_ = 0;
};

TEST_P(LruModelTest, RandomOperations) {
  for (int step = 0; step < 100'000 && !HasFatalFailure(); ++step) {
    Step();
    if (step % 500 == 0) CompareAll();
  }
  // In the end everything evictable leaves in the order of its touches.
  for (uint32_t group = 0; group < GetParam(); ++group) {
    for (uint32_t victim; (victim = policy_->Victim(group)) != kNoVictim;) {
      ASSERT_EQ(victim, ExpectedVictim(group));
      policy_->OnRemove(victim);
      model_.erase(victim);
    }
    ASSERT_EQ(ExpectedVictim(group), kNoVictim);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, LruModelTest, ::testing::Values(1, 2, 7));

TEST(LruPolicy, ChainLeavesLeafFirst) {
  const auto policy = NewLruPolicy();
  // Root 0 to leaf 4, put root first; each child takes its parent out of the running.
  for (uint32_t id = 0; id < 5; ++id) {
    if (id > 0) policy->OnEvictable(id - 1, false);
    policy->OnInsert(id, BlockTraits{}, true);
  }
  for (uint32_t id = 5; id-- > 0;) policy->OnTouch(id);
  for (uint32_t id = 5; id-- > 0;) {
    ASSERT_EQ(policy->Victim(0), id);
    policy->OnRemove(id);
    if (id > 0) policy->OnEvictable(id - 1, true);
  }
  EXPECT_EQ(policy->Victim(0), kNoVictim);
}

TEST(LruPolicy, StaysWithinItsMemory) {
  const auto policy = NewLruPolicy();
  constexpr uint32_t kEntries = 500'000;
  BlockTraits traits;
  for (uint32_t id = 0; id < kEntries; ++id) {
    traits.group = id % 5;
    policy->OnInsert(id, traits, true);
    if (id < 200'000) continue;
    ASSERT_LE(policy->MemoryBytes(), (id + 1ull) * 20) << id;
  }
  const uint64_t full = policy->MemoryBytes();
  SeededRandom random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    const uint32_t id = static_cast<uint32_t>(random.Below(kEntries));
    policy->OnTouch(id);
    policy->OnEvictable(id, random.OneIn(2));
  }
  EXPECT_LE(policy->MemoryBytes(), full);  // touches and changes of mind leave nothing behind
}

}  // namespace
}  // namespace kvarve
