// Shares, reservations and rates against naive models and by their promises.
#include "storage/cache/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kNone = QuotaRange::kNoCeiling;
constexpr int64_t kSecond = 1'000'000'000;

// A source of numbers, called like one of the standard library's.
auto Random() {
  return [random = std::make_shared<::kvarve::testing::SeededRandom>(1)] { return random->Next(); };
}

std::vector<uint64_t> Shares(uint64_t total, const std::vector<QuotaRange>& ranges) {
  return FairShares(total, ranges);
}

TEST(FairSharesTest, Examples) {
  EXPECT_THAT(Shares(100, {}), ElementsAre());
  EXPECT_THAT(Shares(100, {{}, {}}), ElementsAre(50, 50));
  EXPECT_THAT(Shares(100, {{40, kNone}, {}}), ElementsAre(70, 30));
  EXPECT_THAT(Shares(100, {{0, 10}, {}, {}}), ElementsAre(10, 45, 45));
  EXPECT_THAT(Shares(100, {{0, 10}, {0, 20}}), ElementsAre(10, 20));
  EXPECT_THAT(Shares(100, {{90, 95}, {0, kNone}}), ElementsAre(95, 5));
  EXPECT_THAT(Shares(100, {{150, kNone}, {50, kNone}}), ElementsAre(75, 25));
  EXPECT_THAT(Shares(0, {{10, kNone}, {}}), ElementsAre(0, 0));
}

// Max-min fairness by its definition: nobody is below the floor, nobody above the ceiling, nothing
// is left while somebody may have more, and whoever got more than another beyond the floors did so
// because the other is at its ceiling.
TEST(FairSharesTest, MaxMinFair) {
  const auto random = Random();
  for (int round = 0; round < 20'000; ++round) {
    const uint64_t total = random() % 1000;
    std::vector<QuotaRange> ranges(1 + random() % 8);
    for (QuotaRange& range : ranges) {
      range.floor = random() % 3 == 0 ? random() % 200 : 0;
      if (random() % 2 == 0) range.ceiling = range.floor + random() % 300;
    }
    const std::vector<uint64_t> shares = FairShares(total, ranges);
    const uint64_t sum = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
    ASSERT_LE(sum, total);
    uint64_t floors = 0;
    for (const QuotaRange& range : ranges) floors += range.floor;
    bool all_full = true;
    for (size_t i = 0; i < ranges.size(); ++i) {
      ASSERT_LE(shares[i], ranges[i].ceiling);
      ASSERT_TRUE(floors > total || shares[i] >= ranges[i].floor);
      all_full = all_full && shares[i] == ranges[i].ceiling;
    }
    if (floors >= total) continue;
    ASSERT_TRUE(sum == total || all_full);
    for (size_t i = 0; i < ranges.size(); ++i) {
      for (size_t j = 0; j < ranges.size(); ++j) {
        const uint64_t extra_i = shares[i] - ranges[i].floor, extra_j = shares[j] - ranges[j].floor;
        ASSERT_TRUE(extra_i <= extra_j + 1 || shares[j] == ranges[j].ceiling) << i << " " << j;
      }
    }
  }
}

TEST(CheckQuotasTest, NamesTheNumbers) {
  TenantQuotas quotas;
  quotas["a"].of(Resource::kHostBytes) = {100, 200};
  quotas["b"].of(Resource::kHostBytes) = {90, kNone};
  EXPECT_TRUE(CheckQuotas(quotas, Resource::kHostBytes, 200, 1).ok());
  const absl::Status over = CheckQuotas(quotas, Resource::kHostBytes, 200, 64);
  EXPECT_THAT(std::string(over.message()), HasSubstr("add up to 256 (each a multiple of 64)"));
  quotas["a"].of(Resource::kHostBytes) = {201, 200};
  EXPECT_THAT(std::string(CheckQuotas(quotas, Resource::kHostBytes, 1000, 1).message()),
              HasSubstr("tenant \"a\": the floor of host_bytes is 201"));
  quotas["a"].of(Resource::kHostBytes) = {kNone, kNone};
  EXPECT_FALSE(CheckQuotas(quotas, Resource::kHostBytes, kNone - 1, 4096).ok());
}

TEST(ReservedUseTest, AgainstTheSum) {
  const auto random = Random();
  for (int round = 0; round < 300; ++round) {
    const size_t tenants = 1 + random() % 6;
    const uint64_t total = 100 + random() % 400;
    std::vector<QuotaRange> ranges(tenants);
    std::vector<uint64_t> used(tenants);
    ReservedUse use;
    uint64_t floors = 0;
    for (size_t i = 0; i < tenants; ++i) {
      ranges[i].floor = std::min<uint64_t>(random() % 60, total - floors);
      floors += ranges[i].floor;
      if (random() % 2 == 0) ranges[i].ceiling = ranges[i].floor + random() % 100;
      use.Set(i, ranges[i]);
    }
    for (int step = 0; step < 200; ++step) {
      const size_t i = random() % tenants;
      uint64_t kept = 0, all = 0;
      for (size_t j = 0; j < tenants; ++j) {
        all += used[j];
        if (j != i && used[j] < ranges[j].floor) kept += ranges[j].floor - used[j];
      }
      const uint64_t free = all + kept < total ? total - all - kept : 0;
      const uint64_t room =
          std::min(free, ranges[i].ceiling - std::min(used[i], ranges[i].ceiling));
      ASSERT_EQ(use.Room(i, total), room);
      if (random() % 2 == 0 && room > 0) {
        const uint64_t amount = 1 + random() % room;
        use.Add(i, amount);
        used[i] += amount;
      } else if (used[i] > 0) {
        const uint64_t amount = 1 + random() % used[i];
        use.Sub(i, amount);
        used[i] -= amount;
      }
      ASSERT_EQ(use.used(i), used[i]);
      // Whoever is below the floor can always have it.
      for (size_t j = 0; j < tenants; ++j) {
        const uint64_t owed = ranges[j].floor - std::min(used[j], ranges[j].floor);
        ASSERT_GE(use.Room(j, total), owed);
      }
    }
  }
}

TEST(ConnectionUseTest, CeilingsAndKeptFloors) {
  TenantQuotas quotas;
  quotas["a"].of(Resource::kConnections) = {3, kNone};
  quotas["b"].of(Resource::kConnections) = {0, 2};
  ConnectionUse use(quotas, {}, 6);
  EXPECT_TRUE(use.Enter("b").ok());
  EXPECT_TRUE(use.Enter("b").ok());
  const absl::Status over = use.Enter("b");
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(over.message()),
            "tenant \"b\" is over its quota of connections: 2 in use of at most 2");
  EXPECT_TRUE(use.Enter("c").ok());
  EXPECT_EQ(
      std::string(use.Enter("c").message()),
      "tenant \"c\" has 1 connections; of the 6 that there may be 3 are taken and the rest is "
      "kept for other tenants");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(use.Enter("a").ok());
  EXPECT_FALSE(use.Enter("a").ok());
  use.Leave("b");
  EXPECT_TRUE(use.Enter("a").ok());
  EXPECT_THAT(use.Used(), ElementsAre(std::pair("a", 4), std::pair("b", 1), std::pair("c", 1)));
}

TEST(TokenBucketTest, FillsExactly) {
  TokenBucket bucket;
  bucket.SetRate(7, 7, 0);
  bucket.Take(7);
  EXPECT_FALSE(bucket.HasAny());
  EXPECT_EQ(bucket.Wait(), 142'857'143);  // a seventh of a second, rounded up
  uint64_t filled = 0;
  for (int64_t now = 1; now <= 3 * kSecond; now += 999'983) {
    bucket.Refill(now);
    if (bucket.HasAny()) {
      bucket.Take(1);
      ++filled;
    }
  }
  EXPECT_EQ(filled, 20u);  // 3 s at 7 a second; the last one is not yet whole
  EXPECT_EQ(bucket.Refill(100 * kSecond), 100u * 7 - 20 - 7);
  bucket.SetRate(TokenBucket::kUnlimited, 0, 0);
  bucket.Take(1'000'000);
  EXPECT_TRUE(bucket.HasAny());
}

// Over any stretch of time: all together no more than the rate and a second's worth (and one piece
// each in debt), no tenant beyond its ceiling; who asks all the time gets at least its floor; and
// what others leave idle is used.
TEST(SharedRateTest, Promises) {
  const auto random = Random();
  for (int round = 0; round < 60; ++round) {
    const size_t tenants = 1 + random() % 5;
    const uint64_t total = 1'000'000 + random() % 1'000'000, piece = 1 + random() % 20'000;
    SharedRate rate(total);
    std::vector<QuotaRange> ranges(tenants);
    std::vector<bool> asks(tenants);
    uint64_t floors = 0;
    bool somebody_borrows = false;
    for (size_t i = 0; i < tenants; ++i) {
      if (random() % 2 == 0) ranges[i].floor = random() % (total - floors);
      floors += ranges[i].floor;
      if (random() % 3 == 0) ranges[i].ceiling = ranges[i].floor + random() % total;
      asks[i] = random() % 3 != 0;
      somebody_borrows = somebody_borrows || (asks[i] && ranges[i].ceiling == kNone);
      rate.Set(i, ranges[i], 0);
    }
    std::vector<uint64_t> got(tenants);
    constexpr int64_t kSeconds = 20;
    for (int64_t now = 0; now < kSeconds * kSecond; now += 1 + random() % 10'000'000) {
      const size_t i = random() % tenants;
      for (size_t j = 0; j < tenants; ++j) {  // from another one each time
        const size_t tenant = (i + j) % tenants;
        if (asks[tenant])
          got[tenant] += piece * rate.Take(tenant, piece, 1 + total / 20 / piece, now);
      }
    }
    uint64_t all = 0;
    for (size_t i = 0; i < tenants; ++i) {
      all += got[i];
      if (ranges[i].ceiling != kNone) {
        EXPECT_LE(got[i], ranges[i].ceiling * (kSeconds + 1) + piece);
      }
      if (!asks[i]) continue;
      EXPECT_GE(got[i] + piece + ranges[i].floor / 50, ranges[i].floor * kSeconds);
    }
    EXPECT_LE(all, total * (kSeconds + 1) + piece * (tenants + 1));
    EXPECT_TRUE(!somebody_borrows || all + piece * 8 + total / 5 >= total * kSeconds);
  }
}

TEST(SharedRateTest, ReturnsAndWaits) {
  SharedRate rate(1000);
  rate.Set(0, {0, 500}, 0);
  EXPECT_EQ(rate.Take(0, 100, 100, 0), 5u);
  EXPECT_EQ(rate.Take(0, 100, 1, 0), 0u);
  EXPECT_GT(rate.Wait(0), 0);
  rate.Return(0, 200);
  EXPECT_EQ(rate.Wait(0), 0);
  EXPECT_EQ(rate.Take(0, 100, 100, 0), 2u);
  // A piece larger than a second's worth still goes, one at a time.
  rate.Set(1, {0, 10}, 0);
  EXPECT_EQ(rate.Take(1, 1000, 5, 0), 1u);
  EXPECT_EQ(rate.Take(1, 1000, 5, 50 * kSecond), 0u);
  EXPECT_EQ(rate.Take(1, 1000, 5, 101 * kSecond), 1u);
}

}  // namespace
}  // namespace kvarve
