// The cache with each eviction policy: what must be true whoever leaves. Random sessions put, read,
// lease and invalidate; after each step a naive record of what the cache said is compared with what
// it answers now: nothing leased is gone, no block that a lookup can reach left while one that none
// can was kept, no more is kept than there is room for, and every refusal has its reason.
// (cache_model_test predicts each
// victim, which is possible for lru alone.)
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "storage/cache/cache.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::SeededRandom;

constexpr uint64_t kBlockBytes = 256 << 10;
constexpr size_t kSlots = 128;  // of one extent
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 1;
#else
constexpr uint64_t kSeeds = 4;
#endif

class Node {
 public:
  explicit Node(std::string_view policy, uint64_t slots = kSlots) {
    CacheOptions options;
    options.policy = policy;
    options.arena.capacity_bytes = slots * kBlockBytes;
    options.arena.huge_pages = false;
    options.arena.prefault = false;
    options.seed = 7;
    auto cache = Cache::Create(options);
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    ns_ = Open("model");
  }
  ~Node() {
    cache_->ReleaseAll(&account_);
    EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  }
  NamespaceInfo Open(const std::string& model) {
    NamespaceDescriptor descriptor = OpaqueNamespace(model, kBlockBytes);
    descriptor.tenant = "default";
    auto info = cache_->OpenNamespace(descriptor);
    EXPECT_TRUE(info.ok()) << info.status();
    return *info;
  }

  std::vector<PutResult> Put(std::span<const BlockKey> chain, size_t from, uint64_t request) {
    std::optional<BlockKey> parent;
    if (from > 0) parent = chain[from - 1];
    return PutUnder(ns_, parent, static_cast<uint32_t>(from), chain.subspan(from), request);
  }
  std::vector<PutResult> PutUnder(const NamespaceInfo& ns, std::optional<BlockKey> parent,
                                  uint32_t depth, std::span<const BlockKey> keys,
                                  uint64_t request) {
    const std::vector<const std::byte*> sources(keys.size(), block_.data());
    PutRequest put;
    put.ns = ns.handle;
    put.parent = parent;
    put.first_depth = depth;
    put.keys = keys;
    put.sources = sources;
    put.request_id = request;
    std::vector<PutResult> results(keys.size());
    EXPECT_EQ(cache_->Put(put, results), absl::OkStatus());
    return results;
  }
  // A request as an engine has it: reads what is there and puts the rest. Returns the blocks found.
  size_t Request(std::span<const BlockKey> chain, std::vector<PutResult>* results = nullptr) {
    const uint64_t request = ++requests_;
    const AcquireResult got = cache_->Acquire(ns_.handle, chain, &account_, request);
    if (got.lease != 0) {
      EXPECT_TRUE(cache_->Release(got.lease, &account_));
    }
    if (got.grants.size() == chain.size()) return chain.size();
    const std::vector<PutResult> put = Put(chain, got.grants.size(), request);
    if (results != nullptr) results->insert(results->end(), put.begin(), put.end());
    return got.grants.size();
  }
  bool Has(const BlockKey& key) { return cache_->Lookup(ns_.handle, std::span(&key, 1)) == 1; }

  Cache& cache() { return *cache_; }
  const NamespaceInfo& ns() const { return ns_; }
  LeaseAccount* account() { return &account_; }
  uint64_t NextRequest() { return ++requests_; }

 private:
  std::unique_ptr<Cache> cache_;
  NamespaceInfo ns_;
  LeaseAccount account_;
  uint64_t requests_ = 0;
  const std::vector<std::byte> block_ = std::vector<std::byte>(kBlockBytes, std::byte{7});
};

// Prompts that grow turn by turn, and now and then one that nobody asks for again.
class Sessions {
 public:
  explicit Sessions(SeededRandom* random, size_t sessions) : random_(*random), turns_(sessions) {}

  std::vector<BlockKey> Next() {
    if (random_.OneIn(5)) return testing::KeyChain(1'000'000 + next_once_++, 4 + random_.Below(8));
    const size_t session = random_.Below(turns_.size());
    if (++turns_[session].second > 6) turns_[session] = {turns_[session].first + 1, 1};
    const uint64_t id = session * 1000 + turns_[session].first;
    return testing::KeyChain(id, 4 * turns_[session].second);
  }

 private:
  SeededRandom& random_;
  std::vector<std::pair<uint64_t, size_t>> turns_;  // of each session: which, and its turn
  uint64_t next_once_ = 0;
};

// What the cache has said is stored.
class Record {
 public:
  explicit Record(Node* node) : node_(*node) {}

  void Put(std::span<const BlockKey> chain, size_t from, const std::vector<PutResult>& results,
           bool may_refuse) {
    for (size_t i = 0; i < results.size(); ++i) {
      const PutResult before = i > 0 ? results[i - 1] : PutResult::kStored;
      const bool went_on = before == PutResult::kStored || before == PutResult::kExists;
      ASSERT_EQ(results[i] == PutResult::kRejectedParent, !went_on) << i;
      if (results[i] == PutResult::kRejectedPolicy) {
        ASSERT_TRUE(may_refuse);
        refused_ = true;
      }
      if (results[i] != PutResult::kStored && results[i] != PutResult::kExists) continue;
      ASSERT_TRUE(node_.Has(chain[from + i])) << i;
      parents_[Name(chain[from + i])] = from + i > 0 ? Name(chain[from + i - 1]) : "";
      keys_[Name(chain[from + i])] = chain[from + i];
    }
  }
  void Leased(std::span<const BlockKey> keys, LeaseId lease) {
    for (const BlockKey& key : keys) leases_[lease].insert(Name(key));
  }
  void Released(LeaseId lease) { leases_.erase(lease); }
  const std::map<LeaseId, std::set<std::string>>& leases() const { return leases_; }
  uint64_t dead_left() const { return dead_left_; }

  bool IsLeased(const BlockKey& key) const {
    return std::ranges::any_of(leases_,
                               [&](const auto& l) { return l.second.contains(Name(key)); });
  }
  void Invalidated(const BlockKey& key) { parents_.erase(Name(key)); }
  // Before a put of the chain, after which nothing of it is dead.
  void Begin(std::span<const BlockKey> chain) {
    std::set<std::string> coming;
    for (const BlockKey& key : chain) coming.insert(Name(key));
    before_ = parents_;
    dead_.clear();
    for (const auto& [block, parent] : before_) {
      std::string at = block;
      while (!at.empty() && !coming.contains(at) && before_.contains(at)) at = before_.at(at);
      if (!at.empty() && !coming.contains(at)) dead_.insert(block);
    }
  }

  void Check() {
    std::erase_if(parents_, [&](const auto& block) { return !node_.Has(keys_[block.first]); });
    const auto left = [&](const auto& block) { return !parents_.contains(block.first); };
    const auto is_here = [&](const std::string& block) { return parents_.contains(block); };
    if (std::ranges::any_of(before_,
                            [&](const auto& b) { return left(b) && !dead_.contains(b.first); })) {
      ASSERT_TRUE(std::ranges::none_of(dead_, is_here))
          << "a dead block is kept while live ones leave";
    }
    dead_left_ += static_cast<uint64_t>(
        std::ranges::count_if(dead_, [&](const auto& b) { return !is_here(b); }));
    before_.clear();
    dead_.clear();
    ASSERT_LE(parents_.size(), kSlots);
    // Only where it would have cost something.
    if (std::exchange(refused_, false)) {
      ASSERT_EQ(parents_.size(), kSlots);
    }
    for (const auto& [lease, blocks] : leases_) {
      for (const std::string& block : blocks) ASSERT_TRUE(parents_.contains(block));
    }
    const CacheStats stats = node_.cache().Stats();
    ASSERT_EQ(stats.index.entries, parents_.size());
    ASSERT_EQ(stats.arena.used_bytes, parents_.size() * kBlockBytes);
    ASSERT_LE(stats.learning.ghosts, 4 * kSlots);
  }

 private:
  static std::string Name(const BlockKey& key) {
    return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()};
  }
  Node& node_;
  std::map<std::string, std::string> parents_;
  std::map<std::string, BlockKey> keys_;
  std::map<LeaseId, std::set<std::string>> leases_;
  std::map<std::string, std::string> before_;  // parents_, before the step's put
  std::set<std::string> dead_;                 // of them
  uint64_t dead_left_ = 0;
  bool refused_ = false;  // in the step before
};

class CachePolicyTest : public ::testing::TestWithParam<std::tuple<std::string_view, uint64_t>> {};

TEST_P(CachePolicyTest, WhateverLeavesTheseStay) {
  const auto [policy, seed] = GetParam();
  SeededRandom random(seed);
  Node node(policy);
  Record record(&node);
  Sessions sessions(&random, 12);
  for (int step = 0; step < 1200; ++step) {
    SCOPED_TRACE(::testing::Message() << policy << ", seed " << seed << ", step " << step);
    const std::vector<BlockKey> chain = sessions.Next();
    const uint64_t request = random.OneIn(8) ? 0 : node.NextRequest();
    const AcquireResult got =
        node.cache().Acquire(node.ns().handle, chain, node.account(), request);
    const size_t found = got.grants.size();
    if (got.lease != 0) record.Leased(std::span(chain).first(found), got.lease);
    if (found < chain.size()) {
      record.Begin(chain);
      record.Put(chain, found, node.Put(chain, found, request), policy == "hazard");
    }
    if (HasFatalFailure()) return;
    while (record.leases().size() > 3 || (!record.leases().empty() && random.OneIn(2))) {
      const LeaseId lease = record.leases().begin()->first;
      ASSERT_TRUE(node.cache().Release(lease, node.account()));
      record.Released(lease);
    }
    record.Check();
    if (HasFatalFailure()) return;
    const BlockKey& key = chain[random.Below(chain.size())];
    if (random.OneIn(6) && !record.IsLeased(key)) {
      node.cache().InvalidateKeys(node.ns().handle, std::span(&key, 1));
      record.Invalidated(key);
    }
    if (step % 100 == 0) {
      ASSERT_EQ(node.cache().CheckInvariants(), absl::OkStatus());
    }
  }
  EXPECT_GT(node.cache().Stats().evicted_blocks, 500u);
  EXPECT_GT(record.dead_left(), 100u);
  EXPECT_EQ(node.cache().Stats().learning.is_trained, policy == "hazard");
}

INSTANTIATE_TEST_SUITE_P(Policies, CachePolicyTest,
                         ::testing::Combine(::testing::ValuesIn(kEvictionPolicies),
                                            ::testing::Range<uint64_t>(1, 1 + kSeeds)));

class EachPolicyTest : public ::testing::TestWithParam<std::string_view> {};

// Everything that a policy's choices can be seen by.
struct Seen {
  std::vector<size_t> found;
  std::vector<PutResult> results;
  std::string learned;
  PolicyLearning learning;
  friend bool operator==(const Seen&, const Seen&) = default;
};

Seen SeenOf(std::string_view policy, int lookups_a_request) {
  SeededRandom random(11);
  Node node(policy);
  Sessions sessions(&random, 12);
  Seen seen;
  for (int step = 0; step < 1500; ++step) {
    const std::vector<BlockKey> chain = sessions.Next();
    for (int n = 0; n < lookups_a_request; ++n) node.cache().Lookup(node.ns().handle, chain);
    seen.found.push_back(node.Request(chain, &seen.results));
  }
  seen.learned = node.cache().SavePolicy();
  seen.learning = node.cache().Stats().learning;
  return seen;
}

// An engine asks again and again while a request waits for its turn.
TEST_P(EachPolicyTest, LookupsOfAWaitingRequestChangeNothing) {
  EXPECT_EQ(SeenOf(GetParam(), 0), SeenOf(GetParam(), 100));
}

TEST_P(EachPolicyTest, IsDeterministic) { EXPECT_EQ(SeenOf(GetParam(), 1), SeenOf(GetParam(), 1)); }

// Parents are claims of clients: itself, a block of another namespace, a descendant.
TEST_P(EachPolicyTest, HostileParentsNeitherLoopNorEscape) {
  SeededRandom random(5);
  Node node(GetParam());
  const NamespaceInfo other = node.Open("another model");
  const std::vector<BlockKey> keys = testing::KeyChain(77, 300);
  for (int step = 0; step < 3000; ++step) {
    const BlockKey key = keys[random.Below(keys.size())];
    std::optional<BlockKey> parent = keys[random.Below(keys.size())];
    if (random.OneIn(4)) parent = key;
    const NamespaceInfo& ns = random.OneIn(3) ? other : node.ns();
    node.PutUnder(ns, parent, static_cast<uint32_t>(random.Below(4)), std::span(&key, 1),
                  random.Below(50));
    if (random.OneIn(20))
      node.cache().InvalidateKeys(ns.handle, std::span(&keys[random.Below(keys.size())], 1));
    if (random.OneIn(500)) node.cache().Invalidate(ns.handle);
    ASSERT_LE(node.cache().Stats().arena.used_bytes, kSlots * kBlockBytes);
    if (step % 100 == 0) {
      ASSERT_EQ(node.cache().CheckInvariants(), absl::OkStatus());
    }
  }
  node.cache().Evict(UINT64_MAX, "");  // ends: nothing is out of its reach
  EXPECT_EQ(node.cache().Stats().index.entries, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EachPolicyTest, ::testing::ValuesIn(kEvictionPolicies));

TEST(CachePolicy, OneThatNobodyKnowsIsRefused) {
  CacheOptions options;
  options.policy = "clock";
  EXPECT_EQ(Cache::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

// What was learned is there after a restart, and what was damaged is not believed.
TEST(CachePolicy, LearnedTablesAreSavedAndLoaded) {
  SeededRandom random(3);
  std::string saved;
  {
    Node node("hazard");
    EXPECT_FALSE(node.cache().Stats().learning.is_trained);
    Sessions sessions(&random, 12);
    for (int step = 0; step < 1500; ++step) node.Request(sessions.Next());
    ASSERT_TRUE(node.cache().Stats().learning.is_trained);
    saved = node.cache().SavePolicy();
  }
  Node again("hazard");
  std::string damaged = saved;
  damaged[damaged.size() / 2] ^= 4;
  EXPECT_FALSE(again.cache().LoadPolicy(damaged));
  EXPECT_FALSE(again.cache().LoadPolicy(saved.substr(1)));
  EXPECT_FALSE(again.cache().LoadPolicy(""));
  EXPECT_FALSE(again.cache().Stats().learning.is_trained);
  EXPECT_TRUE(again.cache().LoadPolicy(saved));
  EXPECT_TRUE(again.cache().Stats().learning.is_trained);
  EXPECT_EQ(again.cache().SavePolicy(), saved);
  EXPECT_EQ(Node("lru").cache().SavePolicy(), "");
  EXPECT_FALSE(Node("lru").cache().LoadPolicy(saved));
}

// Blocks that come back again and again fill the host tier; a scan that nobody asks for twice is
// not let in at their cost, which is an answer of its own, and is counted.
TEST(CachePolicy, AScanIsRefusedAndTheHotBlocksStay) {
  Node node("hazard");
  std::vector<std::vector<BlockKey>> hot;
  for (uint64_t i = 0; i < 16; ++i) hot.push_back(testing::KeyChain(i, 8));  // all of the slots
  std::vector<PutResult> results;
  size_t found = 0;
  for (uint64_t round = 0; round < 400; ++round) {
    for (const auto& chain : hot) found = (round < 399 ? 0 : found) + node.Request(chain, &results);
    node.Request(testing::KeyChain(1000 + round, 8), &results);
  }
  const auto rejected = std::ranges::count(results, PutResult::kRejectedPolicy);
  EXPECT_GT(found, 16 * 8 - 8u);  // of the last round
  EXPECT_GT(rejected, 200);
  const CacheStats stats = node.cache().Stats();
  EXPECT_EQ(stats.put_blocks[static_cast<int>(PutResult::kRejectedPolicy)],
            static_cast<uint64_t>(rejected));
  EXPECT_EQ(
      stats.refused_blocks,
      static_cast<uint64_t>(rejected + std::ranges::count(results, PutResult::kRejectedParent)));
}

}  // namespace
}  // namespace kvarve
