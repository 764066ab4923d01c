#include "storage/cache/flights.h"

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using Joined = Flights::Joined;
using testing::KeyOf;

const NamespaceId kNs = [] {
  NamespaceId ns;
  ns.bytes[0] = 1;
  return ns;
}();
NamespaceId OtherNs() {
  NamespaceId ns;
  ns.bytes[0] = 2;
  return ns;
}

struct Told {
  int loaded = 0, missed = 0;
  Flights::Landed Callback() {
    return [this](bool was_loaded) { ++(was_loaded ? loaded : missed); };
  }
};

TEST(FlightsTest, OneLeadsAndAllAreTold) {
  Flights flights({});
  Told a, b, other;
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 1, a.Callback()), Joined::kLeads);
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 2, b.Callback()), Joined::kWaits);
  EXPECT_EQ(flights.Join(kNs, KeyOf(2), 2, other.Callback()), Joined::kLeads);
  EXPECT_EQ(flights.Join(OtherNs(), KeyOf(1), 2, other.Callback()), Joined::kLeads);
  flights.Land(kNs, KeyOf(1), true);
  EXPECT_EQ(a.loaded, 1);
  EXPECT_EQ(b.loaded, 1);
  EXPECT_EQ(other.loaded + other.missed, 0);
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 1, a.Callback()), Joined::kLeads);  // a new one
  EXPECT_EQ(flights.stats().flights, 3u);
}

TEST(FlightsTest, AFailureIsAMissForEveryWaiter) {
  Flights flights({});
  Told a, b;
  flights.Join(kNs, KeyOf(1), 1, a.Callback());
  flights.Join(kNs, KeyOf(1), 2, b.Callback());
  flights.Land(kNs, KeyOf(1), false);
  EXPECT_EQ(a.missed, 1);
  EXPECT_EQ(b.missed, 1);
  EXPECT_EQ(flights.stats().failed, 1u);
}

TEST(FlightsTest, ALeaderThatLeavesTakesOnlyItself) {
  Flights flights({});
  Told leader, waiter;
  flights.Join(kNs, KeyOf(1), 1, leader.Callback());
  flights.Join(kNs, KeyOf(2), 1, leader.Callback());
  flights.Join(kNs, KeyOf(1), 2, waiter.Callback());
  EXPECT_EQ(flights.Cancel(1), 2u);
  EXPECT_EQ(flights.Cancel(1), 0u);
  Told late;
  EXPECT_EQ(flights.Join(kNs, KeyOf(2), 3, late.Callback()), Joined::kWaits);  // it goes on
  flights.Land(kNs, KeyOf(1), true);
  flights.Land(kNs, KeyOf(2), true);
  EXPECT_EQ(leader.loaded + leader.missed, 0);
  EXPECT_EQ(waiter.loaded, 1);
  EXPECT_EQ(late.loaded, 1);
  EXPECT_EQ(flights.stats().waiting, 0u);
}

TEST(FlightsTest, LimitsRefuse) {
  Flights flights({.flights = 2, .waiters = 3});
  Told told;
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 1, told.Callback()), Joined::kLeads);
  EXPECT_EQ(flights.Join(kNs, KeyOf(2), 1, told.Callback()), Joined::kLeads);
  EXPECT_EQ(flights.Join(kNs, KeyOf(3), 1, told.Callback()), Joined::kRefused);
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 1, told.Callback()), Joined::kWaits);
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 1, told.Callback()), Joined::kWaits);
  EXPECT_EQ(flights.Join(kNs, KeyOf(1), 1, told.Callback()), Joined::kRefused);
  flights.Land(kNs, KeyOf(1), true);
  flights.Land(kNs, KeyOf(2), true);
  EXPECT_EQ(told.loaded, 4);
  EXPECT_EQ(flights.stats().refused, 2u);
}

// Threads join, land and cancel. Each callback comes once, none after its waiter's Cancel returned,
// and never do two lead the same block at once.
TEST(FlightsTest, ThreadsNeverLoadTwiceAndHearNothingAfterCancel) {
  constexpr int kThreads = 4, kKeys = 8, kSteps = 4000;
  Flights flights({});
  std::array<std::atomic<int>, kKeys> leading{};
  std::atomic<uint64_t> told{0}, expected{0}, late{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      testing::SeededRandom random(static_cast<uint64_t>(t) + 1);
      uint64_t next_id = static_cast<uint64_t>(t) << 32;
      for (int step = 0; step < kSteps; ++step) {
        const Flights::WaiterId id = ++next_id;
        const auto gone = std::make_shared<std::atomic<bool>>(false);
        const uint64_t n = random.Below(kKeys);
        const Joined joined = flights.Join(kNs, KeyOf(n), id, [&, gone](bool) {
          ++told;
          late += gone->load() ? 1 : 0;
        });
        ++expected;
        if (joined == Joined::kLeads) {
          EXPECT_EQ(leading[n].fetch_add(1), 0);
          if (random.OneIn(2)) std::this_thread::yield();
          leading[n].fetch_sub(1);
          flights.Land(kNs, KeyOf(n), random.OneIn(2));
        } else if (random.OneIn(2)) {
          expected -= flights.Cancel(id);
          gone->store(true);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told.load(), expected.load());
  EXPECT_EQ(late.load(), 0u);
  EXPECT_EQ(flights.stats().flights, 0u);
  EXPECT_EQ(flights.stats().waiting, 0u);
}

}  // namespace
}  // namespace kvarve
