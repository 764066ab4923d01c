// The cache over two tiers, rule by rule. Block bytes are a function of namespace and key, so that
// every wrong byte shows.
#include <gmock/gmock.h>

#include <numeric>

#include "storage/cache/devices_testing.h"

namespace kvarve {
namespace {

using ::testing::Each;
using ::testing::Gt;
using testing::KeyChain;
using testing::kMiBytes;
using testing::kTestBlock;
using testing::NodeOptions;
using testing::TestNode;

TEST(CacheDevicesTest, WhatWasPutComesBackAfterACrash) {
  TestNode node({});
  const std::vector<BlockKey> chain = KeyChain(1, 100);
  ASSERT_EQ(node.PutAll(node.Open(), chain), 100u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().written_blocks, 100u);
  for (const bool loses_catalogue : {false, true}) {
    node.Crash(loses_catalogue);
    ASSERT_TRUE(node.WaitDevices());
    const NamespaceInfo ns = node.Open();
    size_t in_host = 1;
    EXPECT_EQ(node.cache().Lookup(ns.handle, chain, &in_host), 100u);
    EXPECT_EQ(in_host, 0u);
    EXPECT_EQ(node.Read(ns, chain), 100u);
    EXPECT_EQ(node.cache().Lookup(ns.handle, chain, &in_host), 100u);
    EXPECT_EQ(in_host, 100u);
  }
}

TEST(CacheDevicesTest, ManyTimesTheHostTierIsReadable) {
  TestNode node({.host_bytes = 64 * kMiBytes, .device_bytes = 512 * kMiBytes});
  const NamespaceInfo ns = node.Open();
  std::vector<std::vector<BlockKey>> chains;
  for (uint64_t c = 0; c < 30; ++c) {
    chains.push_back(KeyChain(c, 32));  // 8 MiB each, 240 MiB together
    ASSERT_EQ(node.PutAll(ns, chains.back()), 32u);
  }
  for (const auto& chain : chains) EXPECT_EQ(node.Read(ns, chain), 32u);
  const DeviceTierStats stats = node.Stats();
  EXPECT_EQ(std::accumulate(stats.given_up_blocks.begin(), stats.given_up_blocks.end(), 0u), 0u);
  EXPECT_GT(stats.loaded_blocks, 400u);
  EXPECT_EQ(stats.load_failed_blocks, 0u);
}

// A chain of which the front is in memory and the rest is not, and the other way round.
TEST(CacheDevicesTest, AChainMayLieInBothTiers) {
  TestNode node({});
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> chain = KeyChain(1, 64);
  ASSERT_EQ(node.PutAll(ns, chain), 64u);
  ASSERT_TRUE(node.WaitDevices());
  // Leaves go first: the front stays.
  node.cache().Evict(32 * kTestBlock, "");
  size_t in_host = 0;
  EXPECT_EQ(node.cache().Lookup(ns.handle, chain, &in_host), 64u);
  EXPECT_EQ(in_host, 32u);
  const uint64_t before = node.Stats().loaded_blocks;
  EXPECT_EQ(node.Read(ns, chain), 64u);
  EXPECT_EQ(node.Stats().loaded_blocks, before + 32);
}

TEST(CacheDevicesTest, APutIsShedBeyondTheDirtyBytesAndNothingAdmittedIsLost) {
  TestNode node({.dirty_bytes = 8 * kMiBytes});
  const NamespaceInfo ns = node.Open();
  node.faults().Set(&testing::DeviceFaults::hold_writes, true);
  const std::vector<BlockKey> chain = KeyChain(1, 64);
  const std::vector<PutResult> results = node.Put(ns, chain);
  const size_t stored = 8 * kMiBytes / kTestBlock;
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i], i < stored    ? PutResult::kStored
                          : i == stored ? PutResult::kShed
                                        : PutResult::kRejectedParent)
        << i;
  }
  EXPECT_EQ(node.Stats().dirty_bytes, 8 * kMiBytes);
  EXPECT_EQ(node.cache().CheckInvariants(), absl::OkStatus());
  // Dirty blocks do not leave the host tier, whoever wants their room.
  EXPECT_EQ(node.cache().Evict(64 * kMiBytes, "").first, 0u);
  node.faults().ReleaseWrites();
  EXPECT_EQ(node.PutAll(ns, chain), 64u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().written_blocks, 64u);
  EXPECT_EQ(node.Stats().dirty_bytes, 0u);
}

TEST(CacheDevicesTest, AnInvalidatedNamespaceStaysAwayAlsoAfterACrash) {
  TestNode node({});
  const NamespaceInfo ns = node.Open(), other = node.Open("other");
  const std::vector<BlockKey> chain = KeyChain(1, 40), later = KeyChain(2, 10);
  ASSERT_EQ(node.PutAll(ns, chain), 40u);
  ASSERT_EQ(node.PutAll(other, chain), 40u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.cache().Invalidate(ns.handle), 40u);
  EXPECT_EQ(node.cache().Lookup(ns.handle, chain), 0u);
  ASSERT_EQ(node.PutAll(ns, later), 10u);
  ASSERT_TRUE(node.WaitDevices());
  for (const bool loses_catalogue : {false, true}) {
    node.Crash(loses_catalogue);
    ASSERT_TRUE(node.WaitDevices());
    const NamespaceInfo again = node.Open();
    EXPECT_EQ(node.cache().Lookup(again.handle, chain), 0u);
    EXPECT_EQ(node.Read(again, later), 10u);
    EXPECT_EQ(node.Read(node.Open("other"), chain), 40u);
  }
}

// What is on its way to the device when its namespace is cleared must not arrive.
TEST(CacheDevicesTest, AnInvalidationOvertakesWhatIsBeingWritten) {
  TestNode node({});
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> chain = KeyChain(1, 16);
  node.faults().Set(&testing::DeviceFaults::hold_writes, true);
  ASSERT_EQ(node.PutAll(ns, chain), 16u);
  std::thread invalidates([&] { node.cache().Invalidate(ns.handle); });
  while (node.cache().Lookup(ns.handle, chain) != 0) std::this_thread::yield();
  node.faults().ReleaseWrites();
  invalidates.join();
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.cache().Lookup(ns.handle, chain), 0u);
  EXPECT_EQ(node.Stats().given_up_blocks[static_cast<size_t>(GivenUp::kInvalidated)], 16u);
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.cache().Lookup(node.Open().handle, chain), 0u);
}

TEST(CacheDevicesTest, AKeyThatIsInvalidatedIsGoneInBothTiers) {
  TestNode node({});
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> chain = KeyChain(1, 8), dirty = KeyChain(2, 4);
  ASSERT_EQ(node.PutAll(ns, chain), 8u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.cache().InvalidateKeys(ns.handle, std::span(chain).subspan(5, 1)), 1u);
  EXPECT_EQ(node.cache().Lookup(ns.handle, chain), 5u);
  node.faults().Set(&testing::DeviceFaults::hold_writes, true);
  ASSERT_EQ(node.PutAll(ns, dirty), 4u);
  std::thread invalidates([&] {
    EXPECT_EQ(node.cache().InvalidateKeys(ns.handle, std::span(dirty).subspan(2, 1)), 1u);
  });
  while (node.cache().Lookup(ns.handle, dirty) == 4u) std::this_thread::yield();
  node.faults().ReleaseWrites();
  invalidates.join();
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.cache().Lookup(ns.handle, dirty), 2u);
  // It was put again: what went is what was there before.
  ASSERT_EQ(node.PutAll(ns, dirty), 4u);
  ASSERT_TRUE(node.WaitDevices());
  for (const bool loses_catalogue : {false, true}) {
    node.Crash(loses_catalogue);
    ASSERT_TRUE(node.WaitDevices());
    const NamespaceInfo again = node.Open();
    EXPECT_EQ(node.cache().Lookup(again.handle, chain), 5u);
    EXPECT_EQ(node.Read(again, dirty), 4u);
  }
}

// What was not admitted when it was put is admitted when it is read again and there is room for it.
TEST(CacheDevicesTest, WhatOnlyMemoryHasGoesToADeviceWhenItIsReadAgain) {
  NodeOptions options;
  TenantQuota quota;
  quota.of(Resource::kDeviceBytes).ceiling = 4 * kMiBytes;
  options.quotas["small"] = quota;
  TestNode node(options);
  const NamespaceInfo ns = node.Open("model", "small");
  const std::vector<BlockKey> chain = KeyChain(1, 40);
  ASSERT_EQ(node.PutAll(ns, chain), 40u);
  ASSERT_TRUE(node.WaitDevices());
  ASSERT_EQ(node.Stats().blocks, 16u);
  ASSERT_TRUE(node.cache().SetQuota("small", TenantQuota()).ok());
  EXPECT_EQ(node.Read(ns, chain), 40u);
  while (node.Stats().blocks < 40) std::this_thread::yield();
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Read(node.Open("model", "small"), chain), 40u);
}

TEST(CacheDevicesTest, ManyWhoWantTheSameChainReadItOnce) {
  TestNode node({});
  const std::vector<BlockKey> chain = KeyChain(1, 100);
  ASSERT_EQ(node.PutAll(node.Open(), chain), 100u);
  ASSERT_TRUE(node.WaitDevices());
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  const NamespaceInfo ns = node.Open();
  const uint64_t before = node.Stats().devices[0].log.read_blocks;  // by the recovery
  std::vector<std::thread> threads;
  std::atomic<size_t> read{0};
  for (int i = 0; i < 16; ++i) threads.emplace_back([&] { read += node.Load(ns, chain); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read.load(), 1600u);
  EXPECT_LE(node.Stats().devices[0].log.read_blocks, before + 100);
  EXPECT_EQ(node.Stats().loaded_blocks, 100u);
}

TEST(CacheDevicesTest, OtherBytesAndErrorsAreMisses) {
  TestNode node({});
  const std::vector<BlockKey> chain = KeyChain(1, 20);
  ASSERT_EQ(node.PutAll(node.Open(), chain), 20u);
  ASSERT_TRUE(node.WaitDevices());
  for (const auto fault :
       {&testing::DeviceFaults::flip_reads, &testing::DeviceFaults::fail_reads}) {
    node.Crash();
    ASSERT_TRUE(node.WaitDevices());
    const NamespaceInfo ns = node.Open();
    node.faults().Set(fault, true);
    EXPECT_LT(node.Read(ns, chain), 20u);  // those of one request are hit by its one flipped bit
    EXPECT_GT(node.Stats().load_failed_blocks, 0u);
    node.faults().Set(fault, false);
    // What failed is forgotten, and may be put anew.
    EXPECT_LT(node.cache().Lookup(ns.handle, chain), 20u);
    EXPECT_EQ(node.PutAll(ns, chain), 20u);
    EXPECT_EQ(node.Read(ns, chain), 20u);
    ASSERT_TRUE(node.WaitDevices());
  }
}

TEST(CacheDevicesTest, ADeviceThatTakesNoWritesLeavesPutsInMemory) {
  TestNode node({});
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> good = KeyChain(1, 8);
  ASSERT_EQ(node.PutAll(ns, good), 8u);
  ASSERT_TRUE(node.WaitDevices());
  node.faults().Set(&testing::DeviceFaults::fail_writes, true);
  for (uint64_t c = 2; c < 40; ++c) ASSERT_EQ(node.PutAll(ns, KeyChain(c, 8)), 8u);
  ASSERT_TRUE(node.WaitDevices());
  const DeviceTierStats stats = node.Stats();
  EXPECT_EQ(stats.devices[0].state, DeviceState::kWriteOff);
  EXPECT_GT(stats.given_up_blocks[static_cast<size_t>(GivenUp::kDevice)], 0u);
  EXPECT_GT(stats.not_admitted_blocks[static_cast<size_t>(NotAdmitted::kOff)], 0u);
  EXPECT_EQ(stats.dirty_bytes, 0u);
  EXPECT_EQ(node.Read(ns, KeyChain(39, 8)), 8u);
  // It is still read from.
  node.cache().Evict(64 * kMiBytes, "");
  EXPECT_EQ(node.Read(ns, good), 8u);
}

// One of which nothing can be read any more is switched off, and the rest goes on without it. At
// the next start it is tried again.
TEST(CacheDevicesTest, ADeviceThatCannotBeReadIsSwitchedOff) {
  TestNode node({});
  const std::vector<BlockKey> chain = KeyChain(1, 100), later = KeyChain(2, 8);
  ASSERT_EQ(node.PutAll(node.Open(), chain), 100u);
  ASSERT_TRUE(node.WaitDevices());
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  NamespaceInfo ns = node.Open();
  node.faults().Set(&testing::DeviceFaults::fail_reads, true);
  size_t tried = 0;
  for (; tried < 80 && node.Stats().devices[0].state == DeviceState::kReady; ++tried) {
    EXPECT_EQ(node.Load(ns, std::span(chain).subspan(tried, 1)), 0u);
  }
  EXPECT_EQ(node.Stats().devices[0].state, DeviceState::kOff);
  EXPECT_GT(tried, 8u);  // not for a few bad blocks
  node.faults().Set(&testing::DeviceFaults::fail_reads, false);
  EXPECT_EQ(node.Load(ns, std::span(chain).subspan(tried)), 0u);
  ASSERT_EQ(node.PutAll(ns, later), 8u);
  EXPECT_EQ(node.Read(ns, later), 8u);
  EXPECT_GT(node.Stats().not_admitted_blocks[static_cast<size_t>(NotAdmitted::kOff)], 0u);
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().devices[0].state, DeviceState::kReady);
  ns = node.Open();
  EXPECT_EQ(node.Read(ns, chain), 100u);
  EXPECT_EQ(node.Read(ns, later), 0u);
}

TEST(CacheDevicesTest, BeyondTheWriteBudgetPutsStayInMemory) {
  TestNode node({.drive_writes_per_day = 0.05});  // 256 MiB: a bucket of 3 MiB
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> first = KeyChain(1, 4), rest = KeyChain(2, 60);
  ASSERT_EQ(node.PutAll(ns, first), 4u);
  ASSERT_EQ(node.PutAll(ns, rest), 60u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_LT(node.Stats().written_blocks, 12u);
  EXPECT_GT(node.Stats().not_admitted_blocks[static_cast<size_t>(NotAdmitted::kBudget)], 48u);
}

// A daemon that is killed again and again must not write a full bucket after each start.
TEST(CacheDevicesTest, TheWriteBudgetOutlivesACrash) {
  TestNode node({.drive_writes_per_day = 0.05});  // as above; a block is half an hour's worth
  ASSERT_EQ(node.PutAll(node.Open(), KeyChain(1, 40)), 40u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_GT(node.Stats().written_blocks, 4u);
  for (uint64_t start = 2; start < 4; ++start) {
    node.Crash();
    ASSERT_TRUE(node.WaitDevices());
    ASSERT_EQ(node.PutAll(node.Open(), KeyChain(start, 40)), 40u);
    ASSERT_TRUE(node.WaitDevices());
    EXPECT_LE(node.Stats().written_blocks, 1u);
  }
}

// More keys than are looked at in one hold of the mutex, and more bytes than a load may pin.
TEST(CacheDevicesTest, ALookupCountsOfDevicesWhatALoadMayBring) {
  constexpr size_t kMore = 40;
  const uint64_t host_bytes = 2 * kKeysPerHold * kTestBlock;
  TestNode node({.host_bytes = host_bytes});
  const std::vector<BlockKey> chain = KeyChain(1, kKeysPerHold + kMore);
  ASSERT_EQ(node.PutAll(node.Open(), chain), chain.size());
  ASSERT_TRUE(node.WaitDevices());
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  const NamespaceInfo ns = node.Open();
  EXPECT_EQ(node.cache().Lookup(ns.handle, chain), kKeysPerHold);
  EXPECT_EQ(node.Load(ns, chain), kKeysPerHold);
  // Those are here now, and the rest may come, too.
  EXPECT_EQ(node.cache().Lookup(ns.handle, chain), chain.size());
}

// Asked for twice is read or put twice; who looks up a hundred times while it waits asks for
// nothing.
TEST(CacheDevicesTest, LookupsDoNotCountAsAskedFor) {
  TestNode node({.admission = AdmissionStep::kSeenBefore});
  const NamespaceInfo ns = node.Open();
  const std::vector<BlockKey> chain = KeyChain(1, 8), longer = KeyChain(1, 12);
  ASSERT_EQ(node.PutAll(ns, chain), 8u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(node.cache().Lookup(ns.handle, longer), 8u);
  ASSERT_EQ(node.PutAll(ns, longer), 12u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().written_blocks, 0u);
  EXPECT_EQ(node.Stats().not_admitted_blocks[static_cast<size_t>(NotAdmitted::kBudget)], 8u);
  EXPECT_EQ(node.Read(ns, chain), 8u);  // is offered again by the flusher
  while (node.Stats().written_blocks < 8) std::this_thread::yield();
}

TEST(CacheDevicesTest, WhatWasInMemoryAtAPoliteStopComesBackToIt) {
  TestNode node({});
  const std::vector<BlockKey> chain = KeyChain(1, 50), branch = [&] {
    std::vector<BlockKey> keys(chain.begin(), chain.begin() + 20);
    const std::vector<BlockKey> more = KeyChain(2, 30, 20);
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  }();
  {
    const NamespaceInfo ns = node.Open();
    ASSERT_EQ(node.PutAll(ns, chain), 50u);
    ASSERT_EQ(node.PutAll(ns, branch), 50u);
  }
  node.StopPolitely();
  const NamespaceInfo ns = node.Open();
  ASSERT_TRUE(node.WaitDevices());
  for (const auto& keys : {chain, branch}) {
    size_t in_host = 0;
    for (int i = 0; i < 2000 && in_host < 50; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      node.cache().Lookup(ns.handle, keys, &in_host);
    }
    EXPECT_EQ(in_host, 50u);
  }
  EXPECT_EQ(node.Stats().loaded_blocks, 80u);
  EXPECT_EQ(node.Read(ns, branch), 50u);
}

// What only memory has is written then, as far as the budget goes, what was touched last first.
TEST(CacheDevicesTest, APoliteStopWritesWhatOnlyMemoryHasHottestFirst) {
  TestNode node({.drive_writes_per_day = 0.05, .admission = AdmissionStep::kSeenBefore});
  const std::vector<BlockKey> old = KeyChain(1, 8), hot = KeyChain(2, 8);
  NamespaceInfo ns = node.Open();
  ASSERT_EQ(node.PutAll(ns, old), 8u);
  ASSERT_EQ(node.PutAll(ns, hot), 8u);
  EXPECT_EQ(node.Stats().written_blocks, 0u);
  node.StopPolitely();
  ASSERT_TRUE(node.WaitDevices());
  ns = node.Open();
  EXPECT_EQ(node.Read(ns, hot), 8u);
  const size_t rest = node.Read(ns, old);
  EXPECT_GT(rest, 0u);
  EXPECT_LT(rest, 8u);
}

TEST(CacheDevicesTest, SeveralDevicesAreUsedAndOneLeavesWhileTheOtherServes) {
  TestNode node({.devices = 2});
  const NamespaceInfo ns = node.Open();
  constexpr uint64_t kChains = 24;
  for (uint64_t c = 0; c < kChains; ++c) ASSERT_EQ(node.PutAll(ns, KeyChain(c, 8)), 8u);
  ASSERT_TRUE(node.WaitDevices());
  DeviceTierStats stats = node.Stats();
  ASSERT_EQ(stats.devices.size(), 2u);
  for (const DeviceStats& device : stats.devices) EXPECT_THAT(device.log.appended_blocks, Gt(0u));
  const uint64_t on_second = stats.devices[1].log.appended_blocks;
  // A chain is on one device whole.
  EXPECT_EQ(on_second % 8, 0u);
  ASSERT_TRUE(node.cache().RemoveDevice(node.PathOf(0)).ok());
  EXPECT_EQ(node.Stats().devices.size(), 1u);
  EXPECT_EQ(node.Stats().blocks, on_second);
  node.cache().Evict(64 * kMiBytes, "");
  uint64_t found = 0;
  for (uint64_t c = 0; c < kChains; ++c) found += node.Read(ns, KeyChain(c, 8));
  EXPECT_EQ(found, on_second);
  node.AddDevice(0);
  ASSERT_TRUE(node.WaitDevices());
  for (uint64_t c = 0; c < kChains; ++c) EXPECT_EQ(node.Read(ns, KeyChain(c, 8)), 8u);
  EXPECT_EQ(node.cache().RemoveDevice("/nowhere").code(), absl::StatusCode::kNotFound);
}

TEST(CacheDevicesTest, ATenantsBytesOnDevicesHaveACeiling) {
  NodeOptions options;
  TenantQuota quota;
  quota.of(Resource::kDeviceBytes).ceiling = 4 * kMiBytes;
  options.quotas["small"] = quota;
  TestNode node(options);
  const NamespaceInfo small = node.Open("model", "small"), other = node.Open("model", "other");
  ASSERT_EQ(node.PutAll(small, KeyChain(1, 40)), 40u);
  ASSERT_EQ(node.PutAll(other, KeyChain(1, 40)), 40u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().blocks, 40 + 4 * kMiBytes / kTestBlock);
  EXPECT_EQ(node.Stats().not_admitted_blocks[static_cast<size_t>(NotAdmitted::kQuota)], 24u);
  // Its use is known again after a restart.
  node.Crash();
  ASSERT_TRUE(node.WaitDevices());
  const NamespaceInfo again = node.Open("model", "small");
  ASSERT_EQ(node.PutAll(again, KeyChain(7, 8)), 8u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.Stats().written_blocks, 0u);
}

// Five times the device's size, and the file never grows.
TEST(CacheDevicesTest, TheRingForgetsTheOldestAndNothingElse) {
  TestNode node({.device_bytes = 96 * kMiBytes, .segment_bytes = 8 * kMiBytes});
  const NamespaceInfo ns = node.Open();
  const uint64_t size = std::filesystem::file_size(node.PathOf(0));
  constexpr uint64_t kChains = 60;  // 480 MiB
  for (uint64_t c = 0; c < kChains; ++c) ASSERT_EQ(node.PutAll(ns, KeyChain(c, 32)), 32u);
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(std::filesystem::file_size(node.PathOf(0)), size);
  const DeviceTierStats stats = node.Stats();
  EXPECT_GT(stats.devices[0].log.segments_reclaimed, 40u);
  EXPECT_LE(stats.bytes, 96 * kMiBytes);
  node.cache().Evict(64 * kMiBytes, "");
  EXPECT_EQ(node.Read(ns, KeyChain(kChains - 1, 32)), 32u);
  EXPECT_EQ(node.Read(ns, KeyChain(0, 32)), 0u);
}

// Everything at once, from many threads: nothing wrong, nothing leaked.
TEST(CacheDevicesTest, UnderMixedLoadNoByteIsWrong) {
  TestNode node({.device_bytes = 128 * kMiBytes,
                 .segment_bytes = 8 * kMiBytes,
                 .dirty_bytes = 8 * kMiBytes,
                 .devices = 2});
  const NamespaceInfo spaces[] = {node.Open("a"), node.Open("b")};
  std::atomic<size_t> hits{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      uint64_t state = t + 1;
      const auto below = [&state](uint64_t n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % n;
      };
      for (int i = 0; i < 60; ++i) {
        const NamespaceInfo& ns = spaces[below(2)];
        const std::vector<BlockKey> chain = KeyChain(below(40), 4 + below(20));
        switch (below(16)) {
          case 0:
            if (t == 0) node.cache().Invalidate(ns.handle);
            break;
          case 1:
            node.cache().InvalidateKeys(ns.handle, std::span(chain).first(1));
            break;
          case 2:
            node.cache().Evict(4 * kMiBytes, "");
            break;
          case 3:
          case 4:
          case 5:
          case 6:
          case 7:
            node.PutAll(ns, chain);
            break;
          default:
            hits += node.Read(ns, chain);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(node.WaitDevices());
  EXPECT_EQ(node.cache().CheckInvariants(), absl::OkStatus());
  EXPECT_GT(hits.load(), 100u);
  EXPECT_EQ(node.Stats().load_failed_blocks, 0u);
}

}  // namespace
}  // namespace kvarve
