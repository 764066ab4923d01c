// What a device does is told from what it did: a fixed part, a part by bytes, and changes of both.
#include "storage/policy/load_model.h"

#include <gtest/gtest.h>

#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr double kMega = 1e6;

TEST(LoadModel, SaysNothingBeforeItHasSeenEnough) {
  LoadModel model;
  for (uint64_t n = 0; n < LoadModel::kLeast; ++n) {
    EXPECT_FALSE(model.Seconds(kMega).has_value());
    model.Observe(0, 1);   // no load
    model.Observe(1, -1);  // a clock that went back
    model.Observe(kMega, 0.002);
  }
  EXPECT_NEAR(*model.Seconds(kMega), 0.002, 1e-9);
}

TEST(LoadModel, TellsTheFixedPartFromTheBytes) {
  testing::SeededRandom random(2);
  LoadModel model;
  for (int n = 0; n < 50; ++n) {
    const double bytes = (1 + static_cast<double>(random.Below(64))) * kMega;
    model.Observe(bytes, 0.003 + bytes / 2e9);
  }
  EXPECT_NEAR(*model.Seconds(kMega), 0.0035, 1e-6);
  EXPECT_NEAR(*model.Seconds(100 * kMega), 0.053, 1e-6);
}

// From loads of one size it cannot know: as much time a byte as those took.
TEST(LoadModel, OfOneSizeItGoesThroughZero) {
  LoadModel model;
  for (int n = 0; n < 10; ++n) model.Observe(4 * kMega, 0.008);
  EXPECT_NEAR(*model.Seconds(kMega), 0.002, 1e-9);
  EXPECT_NEAR(*model.Seconds(16 * kMega), 0.032, 1e-9);
}

TEST(LoadModel, IsNeverBelowNothingNorFallsWithBytes) {
  testing::SeededRandom random(3);
  for (int round = 0; round < 200; ++round) {
    LoadModel model;
    for (int n = 0; n < 12; ++n) {
      model.Observe(1 + static_cast<double>(random.Below(1000)) * kMega / 10,
                    static_cast<double>(random.Below(1000)) / 1e4);
    }
    double before = 0;
    for (const double bytes : {0.1, 1., 10., 100., 1000.}) {
      const double seconds = *model.Seconds(bytes * kMega);
      ASSERT_GE(seconds, before);
      before = seconds;
    }
  }
}

TEST(LoadModel, FollowsADeviceThatGetsSlow) {
  LoadModel model;
  for (int n = 0; n < 100; ++n) model.Observe((1 + n % 7) * kMega, (1 + n % 7) * 0.001);
  for (int n = 0; n < 22; ++n) model.Observe((1 + n % 7) * kMega, (1 + n % 7) * 0.1);
  EXPECT_GT(*model.Seconds(4 * kMega), 0.35);
}

}  // namespace
}  // namespace kvarve
