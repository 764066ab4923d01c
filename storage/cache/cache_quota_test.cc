// Quotas of tenants in the cache: exact to the block under concurrent writers, floors that others
// cannot take, ceilings that nobody passes, and idle room that is lent and given back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "storage/cache/cache.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kMi = 1ull << 20;
constexpr uint64_t kBlock = 1 * kMi;
constexpr int64_t kSecond = 1'000'000'000;

NamespaceDescriptor Descriptor(const std::string& tenant, uint64_t block_bytes) {
  NamespaceDescriptor d = OpaqueNamespace("model", block_bytes);
  d.tenant = tenant;
  return d;
}

struct PutAnswer {
  std::vector<PutResult> results;
  absl::Status quota;
  int64_t retry_nanos = 0;
};

double ThreadCpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

class CacheQuotaTest : public ::testing::Test {
 protected:
  CacheQuotaTest() {
    options_.arena.capacity_bytes = 256 * kMi;
    options_.arena.chunk_bytes = 32 * kMi;
    options_.arena.huge_pages = false;
    options_.arena.prefault = false;
    options_.max_entries = 1 << 20;
    options_.clock = &clock_;
  }
  QuotaRange& Quota(const std::string& tenant, Resource resource) {
    return options_.quotas[tenant].of(resource);
  }
  void Make() {
    auto cache = Cache::Create(options_);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  NamespaceInfo Open(const std::string& tenant, uint64_t block_bytes = kBlock) {
    auto info = cache_->OpenNamespace(Descriptor(tenant, block_bytes));
    EXPECT_TRUE(info.ok()) << info.status();
    return *info;
  }
  // `count` blocks of one new chain, or that many chains of one block.
  PutAnswer Put(const NamespaceInfo& ns, size_t count = 1) {
    PutAnswer answer;
    const std::vector<BlockKey> keys = NewKeys(count);
    const std::vector<const std::byte*> sources(count, bytes_.data());
    answer.results.resize(count);
    PutRequest request;
    request.ns = ns.handle;
    request.keys = keys;
    request.sources = sources;
    request.quota_status = &answer.quota;
    request.retry_after_nanos = &answer.retry_nanos;
    EXPECT_TRUE(cache_->Put(request, answer.results).ok());
    return answer;
  }
  size_t PutMany(const NamespaceInfo& ns, size_t count) {
    size_t stored = 0;
    for (size_t i = 0; i < count; ++i) stored += Put(ns).results[0] == PutResult::kStored;
    return stored;
  }
  std::vector<BlockKey> NewKeys(size_t count) {
    std::vector<BlockKey> keys(count);
    for (BlockKey& key : keys) {
      const uint64_t number = ++keys_;
      std::memcpy(key.bytes.data(), &number, sizeof(number));
    }
    return keys;
  }
  PoolStats Of(const std::string& tenant) const {
    for (PoolStats& pool : cache_->Stats().pools) {
      if (pool.tenant == tenant) return pool;
    }
    return {};
  }

  ManualClock clock_;
  CacheOptions options_;
  std::unique_ptr<Cache> cache_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(16 * kMi);
  std::atomic<uint64_t> keys_{0};
};

TEST_F(CacheQuotaTest, AtTheCeilingTheOwnOldestLeave) {
  Quota("a", Resource::kHostBytes) = {0, 10 * kBlock};
  Make();
  const NamespaceInfo a = Open("a"), b = Open("b");
  EXPECT_EQ(PutMany(b, 20), 20u);
  const std::vector<BlockKey> next = [this] {
    std::vector<BlockKey> keys(30);
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t number = keys_ + 1 + i;
      std::memcpy(keys[i].bytes.data(), &number, sizeof(number));
    }
    return keys;
  }();
  EXPECT_EQ(PutMany(a, 30), 30u);
  EXPECT_EQ(Of("a").used_bytes, 10 * kBlock);
  EXPECT_EQ(Of("a").entries, 10u);
  EXPECT_EQ(Of("a").evicted_blocks, 20u);
  for (size_t i = 0; i < next.size(); ++i) {
    EXPECT_EQ(cache_->Lookup(a.handle, std::span(&next[i], 1)), i < 20 ? 0u : 1u) << i;
  }
  EXPECT_EQ(Of("b").used_bytes, 20 * kBlock);
  EXPECT_EQ(Of("b").evicted_blocks, 0u);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

// A chain longer than the ceiling cannot push itself out.
TEST_F(CacheQuotaTest, OverQuotaSaysTheNumbers) {
  Quota("a", Resource::kHostBytes) = {0, 10 * kBlock};
  Make();
  const NamespaceInfo a = Open("a");
  const PutAnswer answer = Put(a, 12);
  EXPECT_THAT(std::vector(answer.results.begin(), answer.results.begin() + 10),
              Each(PutResult::kStored));
  EXPECT_EQ(answer.results[10], PutResult::kRejectedQuota);
  EXPECT_EQ(answer.results[11], PutResult::kRejectedParent);
  EXPECT_EQ(answer.quota.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(answer.quota.message()),
            "tenant \"a\" is over its quota of host_bytes: 10.0 MiB in use of at most 10.0 MiB, "
            "and nothing of it can leave now");
  EXPECT_EQ(Of("a").quota_refusals[static_cast<size_t>(Resource::kHostBytes)], 2u);
  EXPECT_EQ(cache_->Stats().put_blocks[static_cast<size_t>(PutResult::kRejectedQuota)], 1u);
}

// Nothing could make room for it, so nothing leaves.
TEST_F(CacheQuotaTest, ABlockLargerThanTheCeilingCostsNobodyAnything) {
  Quota("a", Resource::kHostBytes) = {0, 10 * kBlock};
  Make();
  const NamespaceInfo small = Open("a"), large = Open("a", 12 * kMi);
  EXPECT_EQ(PutMany(small, 5), 5u);
  const PutAnswer answer = Put(large, 1);
  EXPECT_EQ(answer.results[0], PutResult::kRejectedQuota);
  EXPECT_EQ(std::string(answer.quota.message()),
            "tenant \"a\" is over its quota of host_bytes: a block takes 12.0 MiB, and it may have "
            "at most 10.0 MiB in all");
  EXPECT_EQ(Of("a").entries, 5u);
  EXPECT_EQ(Of("a").evicted_blocks, 0u);
}

TEST_F(CacheQuotaTest, BlocksOfOtherSizesCountByTheirBytes) {
  Quota("a", Resource::kHostBytes) = {0, 10 * kBlock};
  Make();
  const NamespaceInfo small = Open("a"), large = Open("a", 4 * kMi);
  EXPECT_EQ(PutMany(small, 5), 5u);
  EXPECT_EQ(PutMany(large, 1), 1u);
  EXPECT_EQ(Of("a").used_bytes, 9 * kBlock);
  EXPECT_EQ(PutMany(large, 1), 1u);
  EXPECT_LE(Of("a").used_bytes, 10 * kBlock);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

TEST_F(CacheQuotaTest, Entries) {
  Quota("a", Resource::kEntries) = {0, 7};
  Make();
  const NamespaceInfo a = Open("a");
  EXPECT_EQ(PutMany(a, 20), 20u);
  EXPECT_EQ(Of("a").entries, 7u);
  LeaseAccount account;
  std::vector<BlockKey> keys;
  for (uint64_t number = 14; number <= 20; ++number) {
    BlockKey key;
    std::memcpy(key.bytes.data(), &number, sizeof(number));
    EXPECT_NE(cache_->Acquire(a.handle, std::span(&key, 1), &account, 0).lease, 0u);
  }
  const PutAnswer answer = Put(a);
  EXPECT_EQ(answer.results[0], PutResult::kRejectedQuota);
  EXPECT_THAT(std::string(answer.quota.message()),
              HasSubstr("over its quota of entries: 7 in use of at most 7"));
  cache_->ReleaseAll(&account);
  EXPECT_EQ(PutMany(a, 1), 1u);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

// The index is full: who is below its share takes from who is above.
TEST_F(CacheQuotaTest, TheIndexIsShared) {
  options_.max_entries = 100;
  options_.arena.capacity_bytes = 512 * kMi;
  Quota("b", Resource::kEntries) = {80, QuotaRange::kNoCeiling};
  Make();
  const NamespaceInfo a = Open("a"), b = Open("b");
  EXPECT_EQ(PutMany(a, 150), 150u);
  EXPECT_EQ(Of("a").entries, 100u);  // borrowed
  EXPECT_EQ(PutMany(b, 120), 120u);
  EXPECT_EQ(Of("b").entries, 90u);  // its floor, and half of the rest
  EXPECT_EQ(Of("a").entries, 10u);
  EXPECT_EQ(PutMany(a, 20), 20u);
  EXPECT_EQ(Of("b").entries, 90u);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

TEST_F(CacheQuotaTest, LeasesKeepOthersFloors) {
  options_.lease_bytes_max = 20 * kBlock;
  Quota("a", Resource::kLeaseBytes) = {0, 12 * kBlock};
  Quota("b", Resource::kLeaseBytes) = {5 * kBlock, QuotaRange::kNoCeiling};
  Make();
  const NamespaceInfo a = Open("a"), b = Open("b"), c = Open("c");
  const auto chain = [&](const NamespaceInfo& ns) {
    const uint64_t first = keys_ + 1;
    EXPECT_THAT(Put(ns, 20).results, Each(PutResult::kStored));
    std::vector<BlockKey> keys(20);
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t number = first + i;
      std::memcpy(keys[i].bytes.data(), &number, sizeof(number));
    }
    return keys;
  };
  const auto keys_a = chain(a), keys_b = chain(b), keys_c = chain(c);
  LeaseAccount account_a, account_b, account_c;
  const AcquireResult of_a = cache_->Acquire(a.handle, keys_a, &account_a, 0);
  EXPECT_EQ(of_a.grants.size(), 12u);
  EXPECT_TRUE(of_a.over_lease_cap);
  EXPECT_EQ(Of("a").quota_refusals[static_cast<size_t>(Resource::kLeaseBytes)], 8u);
  // 20 - 12 are free, 5 of them are b's.
  EXPECT_EQ(cache_->Acquire(c.handle, keys_c, &account_c, 0).grants.size(), 3u);
  EXPECT_EQ(Of("c").quota_refusals[static_cast<size_t>(Resource::kLeaseBytes)], 0u);
  EXPECT_EQ(cache_->Acquire(b.handle, keys_b, &account_b, 0).grants.size(), 5u);
  cache_->ReleaseAll(&account_a);
  EXPECT_EQ(Of("a").leased_bytes, 0u);
  EXPECT_EQ(cache_->Acquire(b.handle, keys_b, &account_b, 0).grants.size(), 12u);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
  cache_->ReleaseAll(&account_b);
  cache_->ReleaseAll(&account_c);
}

TEST_F(CacheQuotaTest, IngestByTheClock) {
  Quota("a", Resource::kIngest) = {0, 10 * kBlock};
  Make();
  const NamespaceInfo a = Open("a"), b = Open("b");
  EXPECT_EQ(PutMany(a, 15), 10u);
  const PutAnswer answer = Put(a, 3);
  EXPECT_THAT(answer.results[0], PutResult::kRejectedQuota);
  EXPECT_EQ(std::string(answer.quota.message()),
            "tenant \"a\" is over its quota of ingest_bytes_per_second: at most 10.0 MiB a second; "
            "again in 96ns");
  EXPECT_EQ(answer.retry_nanos, 96);
  EXPECT_EQ(PutMany(b, 30), 30u);
  clock_.Advance(kSecond / 2);
  EXPECT_EQ(PutMany(a, 15), 5u);
  clock_.Advance(10 * kSecond);
  EXPECT_EQ(PutMany(a, 15), 10u);
}

// What is rejected for want of room is not charged to the rate.
TEST_F(CacheQuotaTest, IngestIsGivenBack) {
  Quota("a", Resource::kIngest) = {0, 10 * kBlock};
  Quota("a", Resource::kEntries) = {0, 0};
  Make();
  const NamespaceInfo a = Open("a");
  EXPECT_EQ(PutMany(a, 50), 0u);
  EXPECT_EQ(Of("a").quota_refusals[static_cast<size_t>(Resource::kIngest)], 0u);
  TenantQuota quota;
  quota.of(Resource::kIngest) = {0, 10 * kBlock};
  ASSERT_TRUE(cache_->SetQuota("a", quota).ok());
  EXPECT_EQ(PutMany(a, 50), 10u);
}

// One fills everything while the others are away; each of them then gets its floor at its first
// puts, without waiting for anything, and the borrower keeps its own.
TEST_F(CacheQuotaTest, LentRoomIsGivenBack) {
  Quota("a", Resource::kHostBytes) = {64 * kMi, QuotaRange::kNoCeiling};
  Quota("b", Resource::kHostBytes) = {96 * kMi, QuotaRange::kNoCeiling};
  Quota("c", Resource::kHostBytes) = {32 * kMi, QuotaRange::kNoCeiling};
  Make();
  const NamespaceInfo a = Open("a");
  EXPECT_EQ(PutMany(a, 300), 300u);
  EXPECT_EQ(Of("a").used_bytes, 256 * kMi);
  const NamespaceInfo b = Open("b"), c = Open("c");
  // Nothing waits, and the clock of the test stands: it takes this thread's work, 96 MiB of copies
  // included, whatever else the machine does.
  const double begin = ThreadCpuSeconds();
  EXPECT_EQ(PutMany(b, 96), 96u);
  EXPECT_LT(ThreadCpuSeconds() - begin, 1.0);  // the promise: given back within a second
  EXPECT_EQ(Of("b").used_bytes, 96 * kMi);
  EXPECT_EQ(Of("b").evicted_blocks, 0u);
  EXPECT_EQ(PutMany(c, 32), 32u);
  EXPECT_EQ(Of("c").evicted_blocks, 0u);
  EXPECT_GE(Of("a").used_bytes, 64 * kMi);
  // However much the others want: the floor stays.
  EXPECT_EQ(PutMany(b, 500), 500u);
  EXPECT_EQ(PutMany(c, 500), 500u);
  EXPECT_GE(Of("a").chunk_bytes, 64 * kMi);
  EXPECT_GE(Of("b").chunk_bytes, 96 * kMi);
  EXPECT_GE(Of("c").chunk_bytes, 32 * kMi);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

// Chunks that clients still map come one for as much as is wanted, not one at each try.
TEST_F(CacheQuotaTest, ChunksOnTheirWay) {
  Quota("b", Resource::kHostBytes) = {128 * kMi, QuotaRange::kNoCeiling};
  options_.arena.hold_dropped = true;
  Make();
  const NamespaceInfo a = Open("a");
  EXPECT_EQ(PutMany(a, 256), 256u);
  const NamespaceInfo b = Open("b");
  EXPECT_EQ(PutMany(b, 20), 0u);
  EXPECT_EQ(cache_->DroppedChunks().size(), 1u);
  EXPECT_EQ(PutMany(b, 20), 0u);
  EXPECT_EQ(cache_->DroppedChunks().size(), 2u);  // 40 MiB are wanted by now
  const auto forget = [&] {
    for (const ChunkInfo& chunk : cache_->DroppedChunks()) cache_->ForgetDropped(chunk.id);
  };
  forget();
  EXPECT_EQ(PutMany(b, 64), 64u);
  for (int i = 0; i < 8; ++i) {
    PutMany(b, 32);
    forget();
  }
  EXPECT_GE(Of("b").chunk_bytes, 128 * kMi);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

TEST_F(CacheQuotaTest, ALowerCeilingIsReachedByPutting) {
  Make();
  const NamespaceInfo a = Open("a");
  EXPECT_EQ(PutMany(a, 100), 100u);
  TenantQuota quota;
  quota.of(Resource::kHostBytes) = {0, 20 * kBlock};
  ASSERT_TRUE(cache_->SetQuota("a", quota).ok());
  for (int i = 0; i < 100; ++i) Put(a);
  EXPECT_EQ(Of("a").used_bytes, 20 * kBlock);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

TEST_F(CacheQuotaTest, FloorsThatDoNotFit) {
  Quota("a", Resource::kHostBytes).floor = 100 * kMi;
  Quota("b", Resource::kHostBytes).floor = 129 * kMi;
  const auto create = [&] { return std::string(Cache::Create(options_).status().message()); };
  EXPECT_THAT(create(), HasSubstr("floors of host_bytes add up to 301989888"));
  options_.quotas.clear();
  Quota("a", Resource::kEntries).floor = 1 << 21;
  EXPECT_THAT(create(), HasSubstr("floors of entries"));
  options_.quotas.clear();
  Quota("a", Resource::kLeaseBytes).floor = 129 * kMi;
  EXPECT_THAT(create(), HasSubstr("floors of lease_bytes"));
  options_.quotas.clear();
  options_.ingest_bytes_per_second = 100;
  Quota("a", Resource::kIngest).floor = 101;
  EXPECT_THAT(create(), HasSubstr("floors of ingest_bytes_per_second"));
  options_.quotas.clear();
  options_.default_quota.of(Resource::kEntries).floor = 1;
  EXPECT_THAT(create(), HasSubstr("number is open"));
  options_.default_quota = {};
  Make();
  TenantQuota quota;
  quota.of(Resource::kHostBytes).floor = 300 * kMi;
  EXPECT_EQ(cache_->SetQuota("a", quota).code(), absl::StatusCode::kInvalidArgument);
}

// Eight writers, four tenants, chains, leases and invalidations at random, while another thread
// looks all the time: no tenant is ever over a ceiling by one block, no sum ever differs, and in
// the end every tenant that wanted more has exactly its ceiling.
TEST_F(CacheQuotaTest, ExactUnderEightWriters) {
  constexpr size_t kTenants = 4, kWriters = 8;
  constexpr uint64_t kCeilings[kTenants] = {16, 29, 40, 55};
  for (size_t i = 0; i < kTenants; ++i) {
    Quota("t" + std::to_string(i), Resource::kHostBytes) = {kCeilings[i] / 4 * kBlock,
                                                            kCeilings[i] * kBlock};
    Quota("t" + std::to_string(i), Resource::kEntries) = {0, kCeilings[i]};
    Quota("t" + std::to_string(i), Resource::kLeaseBytes) = {0, kCeilings[i] / 2 * kBlock};
  }
  Make();
  std::vector<NamespaceInfo> spaces;
  for (size_t i = 0; i < kTenants; ++i) spaces.push_back(Open("t" + std::to_string(i)));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> looks{0};
  std::thread watcher([&] {
    while (!stop) {
      const CacheStats stats = cache_->Stats();
      for (const PoolStats& pool : stats.pools) {
        const size_t i = static_cast<size_t>(pool.tenant[1] - '0');
        ASSERT_LE(pool.used_bytes, kCeilings[i] * kBlock);
        ASSERT_LE(pool.entries, kCeilings[i]);
        ASSERT_EQ(pool.entries * kBlock, pool.used_bytes);
        ASSERT_LE(pool.leased_bytes, kCeilings[i] / 2 * kBlock);
      }
      ++looks;
    }
  });
  const uint64_t seed = testing::SeededRandom(1).seed();
  std::vector<std::thread> writers;
  for (size_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      testing::SeededRandom random(seed * 100 + writer);
      LeaseAccount account;
      for (int i = 0; i < 400; ++i) {
        const NamespaceInfo& ns = spaces[random.Below(kTenants)];
        const size_t count = 1 + random.Below(12);
        const std::vector<BlockKey> keys = NewKeys(count);
        const std::vector<const std::byte*> sources(count, bytes_.data());
        std::vector<PutResult> results(count);
        PutRequest request;
        request.ns = ns.handle;
        request.keys = keys;
        request.sources = sources;
        ASSERT_TRUE(cache_->Put(request, results).ok());
        if (random.OneIn(3)) cache_->Acquire(ns.handle, keys, &account, 0);
        if (random.OneIn(4)) cache_->ReleaseAll(&account);
        if (random.OneIn(50)) cache_->Invalidate(ns.handle);
      }
      cache_->ReleaseAll(&account);
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  watcher.join();
  EXPECT_GT(looks, 0u);
  ASSERT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  for (size_t i = 0; i < kTenants; ++i) {
    EXPECT_EQ(PutMany(spaces[i], 100), 100u);
    EXPECT_EQ(Of("t" + std::to_string(i)).used_bytes, kCeilings[i] * kBlock);
  }
}

}  // namespace
}  // namespace kvarve
