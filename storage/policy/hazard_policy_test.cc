// Goal: hazard names the evictable block that is worth least, learns from what it is told, and
// stays within its memory whatever it is told. Method: a naive oracle keeps plain lists, takes its
// census of all blocks and scans all of them for each victim, side by side with the policy, under
// random chains, several groups and refusals. The worths themselves have their own oracle
// (reuse_model_test), and so do sets of ghosts (below).
#include "storage/policy/hazard_policy.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "storage/policy/ghost_runs.h"
#include "storage/policy/ghost_table.h"
#include "storage/policy/replay.h"
#include "storage/policy/reuse_model.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::SeededRandom;

const double kTie = HazardOptions().tie;  // worths within it are equal
constexpr uint32_t kOwedShares = 8;       // of the learning, done by one newcomer

struct Known {
  uint64_t key;
  uint32_t group, touch, hits;
  int of_class, chain;
  double cost;  // 0: unknown
  bool evictable;
  bool loaded = false, copied = false;
};

class Oracle {
 public:
  explicit Oracle(const HazardOptions& options) : options_(options), next_fit_(options.first_fit) {}

  void Request(uint32_t response_tokens) {
    ghosts_.BeginRequest(Forgets{this});
    admitted_chain_ = 0;
    request_start_ = clock_ + 1;
    response_ = ReuseClass::OfResponse(response_tokens);
  }
  void Insert(uint32_t id, const BlockTraits& traits, bool evictable) {
    Known block = Look(traits);
    if (const Ghost* ghost = ghosts_.Next(traits.key)) Reused(ghost->of_class, ghost->last_touch);
    ghosts_.Came(id, traits.key, Forgets{this});
    block.evictable = evictable;
    block.loaded = block.copied = traits.is_loaded;
    block.touch = ++clock_;
    blocks_[id] = block;
    const double cost = traits.recompute_us;
    if (cost > 0) mean_cost_ = mean_cost_ == 0 ? cost : mean_cost_ + (cost - mean_cost_) / 256;
    ghosts_.GrowTo(blocks_.size());
    Learn();
  }
  void TouchRun(const std::vector<uint32_t>& ids) {
    const Known deepest = blocks_.at(ids.back());
    const int chain =
        InRequest(deepest.touch) ? deepest.chain : 1 + ReuseClass::OfHits(deepest.hits);
    for (size_t i = ids.size(); i-- > 0;) {
      Known& block = blocks_.at(ids[i]);
      if (InRequest(block.touch)) continue;
      if (std::exchange(block.loaded, false)) {
        block.touch = ++clock_;
        continue;
      }
      Reused(block.of_class, block.touch);
      block.hits = std::min(block.hits + 1, 255u);
      block.touch = ++clock_;
      block.chain = chain;
      block.of_class = ReuseClass::Of(block.hits, response_, chain);
      ++owed_;
    }
  }
  void Remove(uint32_t id) {
    const Known block = blocks_.at(id);
    blocks_.erase(id);
    ghosts_.Left(id, GhostOf(block), Forgets{this});
  }
  void Evictable(uint32_t id, bool evictable) {
    if (!blocks_.at(id).evictable && evictable) ghosts_.IsLeaf(id);
    blocks_.at(id).evictable = evictable;
  }
  void Refuse(const BlockTraits& traits) {
    Known block = Look(traits);
    if (const Ghost* ghost = ghosts_.Next(traits.key)) {
      if (InRequest(ghost->last_touch)) return;
      Reused(ghost->of_class, ghost->last_touch);
    }
    block.touch = ++clock_;
    ghosts_.Refused(GhostOf(block), Forgets{this});
    Learn();
  }
  double Worth(const Known& block) const {
    if (!model_.trained()) return 0;
    return model_.Worth(block.of_class, ReuseModel::AgeOf(clock_ - block.touch)) * CostOf(block) *
           (block.copied ? .1 : 1);
  }
  std::optional<uint32_t> Victim(uint32_t group) const {
    double least = 1e300;
    for (const auto& [id, block] : blocks_) {
      if (block.evictable && block.group == group) least = std::min(least, Worth(block));
    }
    std::optional<uint32_t> victim;
    for (const auto& [id, block] : blocks_) {
      if (!block.evictable || block.group != group || Worth(block) > least * kTie) continue;
      if (!victim.has_value() || block.touch < blocks_.at(*victim).touch) victim = id;
    }
    return victim;
  }
  bool Admits(const BlockTraits& traits, uint32_t victim) {
    if (!model_.trained()) return true;
    const Known block = Look(traits, admitted_chain_);
    admitted_chain_ = block.chain;
    return model_.Worth(block.of_class, 0) * CostOf(block) > Worth(blocks_.at(victim)) / kTie;
  }

  bool trained() const { return model_.trained(); }
  std::map<uint32_t, Known> blocks_;

 private:
  bool InRequest(uint32_t touch) const { return touch >= request_start_; }
  Known Look(const BlockTraits& traits, int chain = 0) {
    Known block{traits.key, traits.group, clock_, 0, 0, chain, 0, true};
    // Costs are kept to a quarter of an octave, rounded down.
    for (double cost = 1; cost <= traits.recompute_us; cost *= 2) {
      for (const double quarter : {1., 1.25, 1.5, 1.75}) {
        if (cost * quarter <= traits.recompute_us && (cost >= 4 || quarter == 1))
          block.cost = cost * quarter;
      }
    }
    if (const Ghost* ghost = ghosts_.Next(traits.key)) {
      block.hits = std::min(ghost->hits + 1, 255);
      block.chain = 1 + ReuseClass::OfHits(ghost->hits);
    } else if (auto parent = blocks_.find(traits.parent); parent != blocks_.end()) {
      block.chain = parent->second.chain;
    }
    block.of_class = ReuseClass::Of(block.hits, response_, block.chain);
    return block;
  }
  double CostOf(const Known& block) const {
    if (block.cost != 0) return block.cost;
    return mean_cost_ == 0 ? 1 : mean_cost_;
  }
  void Reused(int of_class, uint32_t touch) {
    model_.Reused(of_class, ReuseModel::AgeOf(clock_ - touch));
  }
  static Ghost GhostOf(const Known& block) {
    return {block.key, block.touch, static_cast<uint16_t>(block.of_class),
            static_cast<uint8_t>(block.hits)};
  }
  struct Forgets {
    Oracle* oracle;
    void operator()(const Ghost& gone) const {
      oracle->model_.Forgotten(gone.of_class, ReuseModel::AgeOf(oracle->clock_ - gone.last_touch),
                               gone.length);
    }
  };
  void Learn() {
    for (uint32_t shares = std::min(++owed_, kOwedShares); shares > 0; --shares) LearnOnce();
  }
  void LearnOnce() {
    --owed_;
    ++accesses_;
    if (fitting_) {
      fitting_ = model_.FitStep(static_cast<double>(accesses_ - last_fit_));
      if (fitting_) return;
      last_fit_ = accesses_;
      next_fit_ = accesses_ + options_.fit_every;
    } else if (accesses_ >= next_fit_) {
      for (const auto& [id, block] : blocks_)
        model_.Waits(block.of_class, ReuseModel::AgeOf(clock_ - block.touch));
      for (size_t place = 0; place < ghosts_.table().places(); ++place) {
        const Ghost& ghost = ghosts_.table().At(place);
        if (ghost.key != 0)
          model_.Waits(ghost.of_class, ReuseModel::AgeOf(clock_ - ghost.last_touch), ghost.length);
      }
      fitting_ = true;
    }
  }

  const HazardOptions options_;
  ReuseModel model_;
  GhostRuns ghosts_;
  int admitted_chain_ = 0;
  uint32_t clock_ = 0, request_start_ = 1;
  int response_ = ReuseClass::OfResponse(RequestFacts::kUnknownTokens);
  uint64_t accesses_ = 0, last_fit_ = 0, next_fit_;
  double mean_cost_ = 0;
  bool fitting_ = false;
  uint32_t owed_ = 0;
};

class HazardModelTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint32_t kIds = 300;
  static constexpr uint64_t kKeys = 900;

  static HazardOptions Exact() {
    HazardOptions options;
    options.sample = kIds;     // all candidates
    options.census = 100'000;  // all blocks in one access
    options.fit_every = 50;
    return options;
  }
  uint32_t AnyId() {
    return std::next(oracle_.blocks_.begin(), random_.Below(oracle_.blocks_.size()))->first;
  }
  BlockTraits NewTraits() {
    BlockTraits traits;
    traits.key = 1 + random_.Below(random_.OneIn(2) ? kKeys : kKeys / 10);
    traits.group = static_cast<uint32_t>(random_.Below(GetParam()));
    if (random_.OneIn(3)) traits.recompute_us = static_cast<uint32_t>(random_.Below(3000));
    if (!oracle_.blocks_.empty() && random_.OneIn(2)) traits.parent = AnyId();
    traits.is_loaded = random_.OneIn(8);
    return traits;
  }
  bool KeyIsHere(uint64_t key) const {
    return std::ranges::any_of(oracle_.blocks_, [&](const auto& b) { return b.second.key == key; });
  }
  void Compare(uint32_t group) {
    const uint32_t victim = policy_->Victim(group);
    const std::optional<uint32_t> expected = oracle_.Victim(group);
    ASSERT_EQ(victim == kNoVictim, !expected.has_value());
    if (victim == kNoVictim) return;
    ASSERT_EQ(victim, *expected) << oracle_.Worth(oracle_.blocks_.at(victim)) << " "
                                 << oracle_.Worth(oracle_.blocks_.at(*expected));
    ASSERT_EQ(policy_->Victim(group), victim);  // asking changes nothing
    const BlockTraits traits = NewTraits();
    if (!KeyIsHere(traits.key)) {
      ASSERT_EQ(policy_->Admits(traits, victim), oracle_.Admits(traits, victim));
    }
  }
  void Step() {
    const uint64_t what = random_.Below(20);
    const auto id = static_cast<uint32_t>(random_.Below(kIds));
    if (what < 2) {
      const auto tokens = static_cast<uint32_t>(random_.Below(2000));
      policy_->OnRequest({tokens});
      oracle_.Request(tokens);
    } else if (what < 8) {
      const BlockTraits traits = NewTraits();
      if (oracle_.blocks_.contains(id) || KeyIsHere(traits.key)) return;
      const bool evictable = !random_.OneIn(3);
      policy_->OnInsert(id, traits, evictable);
      oracle_.Insert(id, traits, evictable);
    } else if (what < 9) {
      const BlockTraits traits = NewTraits();
      if (KeyIsHere(traits.key)) return;
      policy_->OnRefuse(traits);
      oracle_.Refuse(traits);
    } else if (oracle_.blocks_.empty()) {
      return;
    } else if (what < 13) {
      std::vector<uint32_t> run;
      for (uint64_t n = 1 + random_.Below(5); n > 0; --n) run.push_back(AnyId());
      policy_->OnTouchRun(run);
      oracle_.TouchRun(run);
    } else if (what < 14) {
      const uint32_t known = AnyId();
      const bool copied = random_.OneIn(2);
      policy_->OnCopied(known, copied);
      oracle_.blocks_.at(known).copied = copied;
    } else if (what < 15) {
      const uint32_t known = AnyId();
      const bool evictable = random_.OneIn(2);
      policy_->OnEvictable(known, evictable);
      oracle_.Evictable(known, evictable);
    } else if (what < 17) {
      const uint32_t known = AnyId();
      policy_->OnRemove(known);
      oracle_.Remove(known);
    } else {
      const auto group = static_cast<uint32_t>(random_.Below(GetParam()));
      Compare(group);
      const uint32_t victim = policy_->Victim(group);
      if (victim == kNoVictim || HasFatalFailure()) return;
      policy_->OnRemove(victim);
      oracle_.Remove(victim);
    }
  }

  SeededRandom random_{31};
  std::unique_ptr<EvictionPolicy> policy_ = NewHazardPolicy(Exact());
  Oracle oracle_{Exact()};
};

TEST_P(HazardModelTest, RandomOperations) {
  for (int step = 0; step < 30'000 && !HasFatalFailure(); ++step) Step();
  EXPECT_TRUE(oracle_.trained());
}

INSTANTIATE_TEST_SUITE_P(Groups, HazardModelTest, ::testing::Values(1, 3));

TEST(HazardPolicy, UntrainedItIsLeafFirstLruAndAdmits) {
  HazardOptions options;
  options.sample = 1000;
  const auto hazard = NewHazardPolicy(options);
  const auto lru = NewLruPolicy();
  SeededRandom random(5);
  std::set<uint32_t> here;
  for (int n = 0; n < 20'000; ++n) {  // no key, so that nothing is ever seen to come back
    const auto id = static_cast<uint32_t>(random.Below(1000));
    if (here.insert(id).second) {
      hazard->OnInsert(id, BlockTraits{}, true);
      lru->OnInsert(id, BlockTraits{}, true);
    }
    if (here.size() < 300) continue;
    const uint32_t victim = lru->Victim(0);
    ASSERT_EQ(hazard->Victim(0), victim);
    ASSERT_TRUE(hazard->Admits(BlockTraits{}, victim));
    hazard->OnRemove(victim);
    lru->OnRemove(victim);
    here.erase(victim);
  }
}

// A trace with reuse, random chains in a forest.
Trace RandomTrace(uint64_t seed) {
  SeededRandom random(seed);
  TraceBuilder builder;
  for (int n = 0; n < 3000; ++n) {
    std::vector<uint64_t> ids;
    for (uint64_t depth = 1 + random.Below(20); depth > 0; --depth)
      ids.push_back(random.Below(random.OneIn(4) ? 1000 : 3));
    builder.Add(n, 0, static_cast<uint32_t>(random.Below(3000)), ids);
  }
  return builder.Finish();
}

TEST(HazardPolicy, IsDeterministicForASeed) {
  const Trace trace = RandomTrace(1);
  ReplayOptions options;
  options.host_blocks = 500;
  std::set<std::string> learned;
  std::set<uint64_t> hits;
  for (int run = 0; run < 2; ++run) {
    const auto policy = NewHazardPolicy();
    hits.insert(Replay(trace, options, policy.get()).hit_blocks);
    learned.insert(policy->Save());
  }
  EXPECT_EQ(hits.size(), 1u);
  EXPECT_EQ(learned.size(), 1u);
}

TEST(HazardPolicy, StartsWithWhatItLearned) {
  const Trace trace = RandomTrace(2);
  ReplayOptions options;
  options.host_blocks = 500;
  const auto first = NewHazardPolicy();
  Replay(trace, options, first.get());
  const auto second = NewHazardPolicy();
  ASSERT_TRUE(second->Load(first->Save()));
  EXPECT_EQ(second->Save(), first->Save());
  EXPECT_FALSE(second->Load("damaged"));
  EXPECT_EQ(second->Save(), first->Save());  // it keeps what it had
  EXPECT_GT(Replay(trace, options, second.get()).hit_blocks, 0u);
}

TEST(HazardPolicy, StaysWithinItsMemory) {
  constexpr uint32_t kResidents = 100'000;
  const auto policy = NewHazardPolicy();
  const uint64_t tables = policy->MemoryBytes();
  EXPECT_LE(tables, 300'000u);
  SeededRandom random(3);
  uint64_t key = 0;
  for (uint32_t id = 0; id < kResidents; ++id) {
    BlockTraits traits;
    traits.key = ++key;
    policy->OnInsert(id, traits, true);
  }
  for (int n = 0; n < 600'000; ++n) {  // six times as many leave as are here
    const uint32_t victim = policy->Victim(0);
    policy->OnRemove(victim);
    BlockTraits traits;
    traits.key = random.OneIn(3) ? 1 + random.Below(key) : ++key;
    policy->OnInsert(victim, traits, true);
  }
  EXPECT_LE(policy->MemoryBytes() - tables, uint64_t{kResidents} * 96);
}

// Blocks 0 to 2 are touched together again and again.
void TrainOnThree(EvictionPolicy* policy) {
  for (int n = 0; n < 5000; ++n) {
    policy->OnRequest({});
    const uint32_t all[] = {0, 1, 2};
    policy->OnTouchRun(all);  // from the last to the first
    BlockTraits newcomer;     // who pays for the learning
    newcomer.key = 100 + n;
    policy->OnRefuse(newcomer);
  }
}

TEST(HazardPolicy, CostDecidesBetweenEqualChances) {
  for (const uint32_t cheap : {0u, 1u}) {  // touched last, or before the other
    HazardOptions options;
    options.fit_every = 1;
    const auto policy = NewHazardPolicy(options);
    for (const uint32_t id : {0u, 1u}) {
      BlockTraits traits;
      traits.recompute_us = id == cheap ? 100 : 100'000;
      policy->OnInsert(id, traits, true);
    }
    policy->OnInsert(2, BlockTraits{}, false);
    TrainOnThree(policy.get());
    ASSERT_TRUE(policy->Learning().is_trained);
    EXPECT_EQ(policy->Victim(0), cheap);
  }
}

// Of two blocks that are about as good as each other the one that is not lost leaves.
TEST(HazardPolicy, WhatALowerTierHasLeavesFirst) {
  HazardOptions options;
  options.fit_every = 1;
  const auto policy = NewHazardPolicy(options);
  policy->OnInsert(0, BlockTraits{}, true);
  policy->OnInsert(1, BlockTraits{}, true);
  policy->OnInsert(2, BlockTraits{}, false);
  TrainOnThree(policy.get());
  ASSERT_TRUE(policy->Learning().is_trained);
  const uint32_t first = policy->Victim(0), other = 1 - first;
  policy->OnCopied(other, true);
  EXPECT_EQ(policy->Victim(0), other);
  policy->OnCopied(first, true);
  EXPECT_EQ(policy->Victim(0), first);
  policy->OnCopied(first, false);
  EXPECT_EQ(policy->Victim(0), other);
}

TEST(GhostTable, KeepsTheNewestOfEachSet) {
  GhostTable table;
  EXPECT_TRUE(table.Put({7, 1, 0, 0}).has_value());  // no residents: no ghosts
  table.GrowTo(64);
  EXPECT_EQ(table.places(), 256u);
  std::set<uint64_t> expected;
  for (uint64_t key = 1; key <= 2000; ++key) {
    const std::optional<Ghost> gone = table.Put({key, static_cast<uint32_t>(key), 3, 1});
    expected.insert(key);
    if (gone.has_value()) {
      ASSERT_EQ(expected.erase(gone->key), 1u);
      ASSERT_LT(gone->key, key);
    }
    ASSERT_LE(expected.size(), table.places());
  }
  for (uint64_t key = 1; key <= 2000; ++key) {
    const Ghost* ghost = table.Find(key);
    ASSERT_EQ(ghost != nullptr, expected.contains(key)) << key;
    if (ghost != nullptr) {
      ASSERT_EQ(ghost->last_touch, key);
    }
  }
  // Put again, it is the newest and nothing goes.
  const uint64_t oldest = *expected.begin();
  EXPECT_FALSE(table.Put({oldest, 5000, 3, 2}).has_value());
  EXPECT_EQ(table.Find(oldest)->last_touch, 5000u);
  table.Erase(oldest);
  EXPECT_EQ(table.Find(oldest), nullptr);
  EXPECT_TRUE(table.Put({0, 1, 0, 0}).has_value());  // a key that is not known
  const size_t before = expected.size() - 1;
  table.GrowTo(640);
  size_t found = 0;
  for (const uint64_t key : expected) found += table.Find(key) != nullptr ? 1 : 0;
  EXPECT_EQ(found, before);  // growing loses none
}

// Whatever the policy, the replay keeps its promises: capacity (checked by it), accounting, and no
// block without its parent.
TEST(EvictionPolicies, AccountingIsExact) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Trace trace = RandomTrace(seed);
    for (const std::string_view name : kEvictionPolicies) {
      ReplayOptions options;
      options.host_blocks = 50 * seed;
      const auto policy = NewEvictionPolicy(name);
      ASSERT_EQ(policy->Name(), name);
      const ReplayResult result = Replay(trace, options, policy.get());
      uint64_t here = 0;
      for (uint32_t victim; (victim = policy->Victim(0)) != kNoVictim; ++here)
        policy->OnRemove(victim);
      ASSERT_GT(here, 0u);
      ASSERT_EQ(
          result.blocks - result.hit_blocks - result.refused - result.rejected - result.evicted,
          options.host_blocks)
          << name;
    }
  }
  EXPECT_EQ(NewEvictionPolicy("fifo"), nullptr);
}

}  // namespace
}  // namespace kvarve
