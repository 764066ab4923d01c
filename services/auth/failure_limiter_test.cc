#include "services/auth/failure_limiter.h"

#include <gtest/gtest.h>

namespace kvarve {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(FailureLimiterTest, Addresses) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.0.0.1:5000"), "ipv4:10.0.0.1");
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bfe80::1%5D:5000"), "ipv6:fe80000000000000");
  EXPECT_EQ(AddressOfPeer("ipv6:[2001:db8:1:2:3::4]:1"), "ipv6:20010db800010002");
  EXPECT_EQ(AddressOfPeer("ipv6:[2001:db8:1:2:ffff::]:9"), "ipv6:20010db800010002");
  EXPECT_EQ(AddressOfPeer("ipv6:[fe80::1%eth0]:9"), "ipv6:fe80000000000000");
  EXPECT_EQ(AddressOfPeer("unix:/run/s"), "unix:/run/s");
  EXPECT_EQ(AddressOfPeer(""), "");
  EXPECT_LE(AddressOfPeer("ipv6:" + std::string(10'000, '%')).size(), 128u);
}

TEST(FailureLimiterTest, ABurstThenOneASecond) {
  ManualClock clock;
  FailureLimiter limiter(&clock);
  for (uint32_t i = 0; i < FailureLimiter::kBurst; ++i) {
    EXPECT_EQ(limiter.Wait("a"), 0) << i;
    limiter.Failed("a");
  }
  EXPECT_EQ(limiter.Wait("a"), kSecond);
  EXPECT_EQ(limiter.Wait("b"), 0);
  clock.Advance(kSecond / 2);
  EXPECT_EQ(limiter.Wait("a"), kSecond / 2);
  clock.Advance(kSecond / 2);
  EXPECT_EQ(limiter.Wait("a"), 0);
  limiter.Failed("a");
  EXPECT_EQ(limiter.Wait("a"), kSecond);
  // However many more: it never owes more than the burst.
  for (int i = 0; i < 1000; ++i) limiter.Failed("a");
  EXPECT_EQ(limiter.Wait("a"), kSecond);
  clock.Advance(FailureLimiter::kBurst * kSecond);
  for (uint32_t i = 0; i < FailureLimiter::kBurst; ++i) {
    EXPECT_EQ(limiter.Wait("a"), 0);
    limiter.Failed("a");
  }
}

TEST(FailureLimiterTest, RemembersSoMany) {
  ManualClock clock;
  FailureLimiter limiter(&clock);
  for (uint32_t i = 0; i < FailureLimiter::kBurst; ++i) limiter.Failed("first");
  for (size_t i = 0; i < FailureLimiter::kMaxAddresses - 1; ++i) limiter.Failed(std::to_string(i));
  EXPECT_EQ(limiter.addresses(), FailureLimiter::kMaxAddresses);
  EXPECT_GT(limiter.Wait("first"), 0);
  limiter.Failed("one more");
  EXPECT_EQ(limiter.addresses(), FailureLimiter::kMaxAddresses);
  EXPECT_EQ(limiter.Wait("first"), 0);
  EXPECT_EQ(limiter.Wait("0"), 0);
}

}  // namespace
}  // namespace kvarve
