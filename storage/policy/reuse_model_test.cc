// Goal: worth is what its definition says. Method: a quadratic oracle computes hazards and the best
// rate over all horizons directly, from the same observations; small cases are counted by hand.
#include "storage/policy/reuse_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr int kAges = ReuseModel::kAges;
using Observed = std::vector<std::array<double, kAges>>;  // of each class

struct Oracle {
  Observed reused = Observed(ReuseClass::kCount), ended = Observed(ReuseClass::kCount);

  // P(reused in the age | reached it), over the classes [begin, end).
  double Hazard(int begin, int end, int age, double weight, double prior) const {
    double reuses = 0, at_risk = 0;
    for (int c = begin; c < end; ++c) {
      reuses += reused[c][age];
      at_risk += ended[c][age] / 2 + reused[c][age];
      for (int later = age + 1; later < kAges; ++later)
        at_risk += reused[c][later] + ended[c][later];
    }
    return std::min(0.95, (reuses + weight * prior) / (at_risk + weight));
  }

  double HazardOf(int c, int age) const {
    constexpr int kOfHits = ReuseClass::kResponse * ReuseClass::kChain;
    const int hits = c / kOfHits * kOfHits, middle = c / ReuseClass::kChain * ReuseClass::kChain;
    double hazard = Hazard(0, ReuseClass::kCount, age, 1, 0);
    hazard = Hazard(hits, hits + kOfHits, age, ReuseOptions().root_shrinkage, hazard);
    hazard = Hazard(middle, middle + ReuseClass::kChain, age, ReuseOptions().shrinkage, hazard);
    return Hazard(c, c + 1, age, ReuseOptions().shrinkage, hazard);
  }

  double Worth(int c, int from) const {
    double best = 0, alive = 1, hits = 0, residence = 0;
    for (int age = from; age + 1 < kAges; ++age) {
      const double hazard = HazardOf(c, age);
      hits += alive * hazard;
      residence +=
          (ReuseModel::AgeStart(age + 1) - ReuseModel::AgeStart(age)) * alive * (1 - hazard / 2);
      alive *= 1 - hazard;
      best = std::max(best, hits / residence);
    }
    return best;
  }
};

void Fit(ReuseModel* model, double touches) {
  while (model->FitStep(touches)) {
  }
}

TEST(ReuseModel, AgesAreLogSpaced) {
  for (int age = 0; age < kAges; ++age) {
    EXPECT_EQ(ReuseModel::AgeOf(static_cast<uint64_t>(ReuseModel::AgeStart(age))), age);
    if (age > 0) {
      EXPECT_EQ(ReuseModel::AgeOf(static_cast<uint64_t>(ReuseModel::AgeStart(age)) - 1), age - 1);
    }
  }
  EXPECT_EQ(ReuseModel::AgeStart(4), 4);
  EXPECT_EQ(ReuseModel::AgeStart(9), 10);
  EXPECT_EQ(ReuseModel::AgeOf(UINT64_MAX), kAges - 1);
}

TEST(ReuseModel, WorthIsTheBestRateOverAllHorizons) {
  testing::SeededRandom random(11);
  for (int round = 0; round < 5; ++round) {
    ReuseModel model;
    Oracle oracle;
    for (int n = 0; n < 20'000; ++n) {
      const int c = static_cast<int>(random.Below(ReuseClass::kCount));
      // Short ages more often, some classes nearly empty, some with a late peak.
      const int spread = 1 + c % 7;
      const int age =
          static_cast<int>(random.Below(kAges) * random.Below(spread + 1) / (spread + 1));
      switch (random.Below(3)) {
        case 0:
          model.Reused(c, age);
          oracle.reused[c][age] += 1;
          break;
        case 1:
          model.Forgotten(c, age);
          oracle.ended[c][age] += 1;
          break;
        default:
          model.Waits(c, age);
          oracle.ended[c][age] += 1;
      }
    }
    Fit(&model, 0);
    ASSERT_TRUE(model.trained());
    for (int c = round; c < ReuseClass::kCount; c += 13) {
      for (int age = 0; age + 1 < kAges; age += 3) {
        const double expected = oracle.Worth(c, age);
        ASSERT_NEAR(model.Worth(c, age), expected, 1e-4 * expected + 1e-12) << c << " " << age;
      }
    }
  }
}

TEST(ReuseModel, WhatStillWaitsIsNotCountedAsNever) {
  // Of 200 blocks 100 came back at age 1; the other 100 are younger than that: nothing says that
  // they will not.
  ReuseModel waiting, gone;
  for (int n = 0; n < 100; ++n) {
    for (ReuseModel* model : {&waiting, &gone}) model->Reused(0, 1);
    waiting.Waits(0, 0);
    gone.Forgotten(0, 20);
  }
  Fit(&waiting, 0);
  Fit(&gone, 0);
  EXPECT_GT(waiting.Worth(0, 1), 1.4 * gone.Worth(0, 1));
}

TEST(ReuseModel, UntrainedUntilEnoughCameBack) {
  ReuseModel model;
  for (int n = 0; n < static_cast<int>(ReuseModel::kMinReuses) - 1; ++n) model.Reused(3, 2);
  Fit(&model, 0);
  EXPECT_FALSE(model.trained());
  model.Reused(3, 2);
  Fit(&model, 0);
  EXPECT_TRUE(model.trained());
}

TEST(ReuseModel, AClassWithoutObservationsBehavesAsItsParent) {
  ReuseModel model;
  for (int n = 0; n < 5000; ++n) {
    model.Reused(ReuseClass::Of(0, 1, 0), n % 9);
    model.Forgotten(ReuseClass::Of(0, 1, 0), 30);
  }
  Fit(&model, 0);
  for (int age = 0; age < 40; ++age) {
    // The same level above, hence the same worth as each other.
    EXPECT_EQ(model.Worth(ReuseClass::Of(0, 1, 2), age), model.Worth(ReuseClass::Of(0, 1, 4), age));
    EXPECT_EQ(model.Worth(ReuseClass::Of(0, 2, 2), age), model.Worth(ReuseClass::Of(0, 3, 4), age));
  }
  EXPECT_GT(model.Worth(ReuseClass::Of(0, 1, 2), 0), 0);
}

TEST(ReuseModel, ForgetsByAccesses) {
  ReuseModel model;
  for (int n = 0; n < 100; ++n) model.Reused(0, 0);
  Fit(&model, 34'310);  // .98^34.31 = 1/2
  Fit(&model, 0);
  EXPECT_FALSE(model.trained());  // 50 left
}

TEST(ReuseModel, IsSavedAndLoadedWholeOrNotAtAll) {
  testing::SeededRandom random(12);
  ReuseModel model;
  for (int n = 0; n < 5000; ++n)
    model.Reused(static_cast<int>(random.Below(ReuseClass::kCount)),
                 static_cast<int>(random.Below(kAges)));
  Fit(&model, 0);
  const std::string saved = model.Save();
  ReuseModel other;
  ASSERT_TRUE(other.Load(saved));
  EXPECT_TRUE(other.trained());
  EXPECT_EQ(other.Save(), saved);
  EXPECT_EQ(other.Worth(7, 5), model.Worth(7, 5));

  for (int n = 0; n < 500; ++n) {
    std::string damaged = saved;
    damaged[random.Below(damaged.size())] ^= static_cast<char>(1 + random.Below(255));
    ReuseModel untrained;
    ASSERT_FALSE(untrained.Load(damaged));
    ASSERT_FALSE(untrained.trained());
  }
  ReuseModel untrained;
  for (const size_t size : {size_t{0}, size_t{1}, saved.size() - 1})
    EXPECT_FALSE(untrained.Load(std::string_view(saved).substr(0, size)));
  EXPECT_FALSE(untrained.Load(saved + "x"));
  EXPECT_FALSE(untrained.trained());
}

}  // namespace
}  // namespace kvarve
