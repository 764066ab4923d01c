// Goal: what an engine's worker saves through a real daemon comes back into other pages byte for
// byte, and what can go wrong with a load makes it fail, never wrong. Method: loader, saver,
// Clients, plane and cache in one process; pages compared with the oracle of pages_testing.h.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "client/cpp/client.h"
#include "client/cpp/engine/block_loader.h"
#include "client/cpp/engine/block_saver.h"
#include "client/cpp/engine/pages_testing.h"
#include "services/local/testing/plane_fixture.h"
#include "storage/block/prefix_hash.h"

namespace kvarve {
namespace {

constexpr int64_t kLong = 60'000'000'000;

class EngineTransferTest : public testing::PlaneFixture {
 protected:
  static NamespaceDescriptor Descriptor() {
    const BlockLayout& layout = TestPages::kLayout;
    NamespaceDescriptor descriptor;
    descriptor.model = "toy";
    descriptor.model_digest = "sha256:toy";
    descriptor.hash_version = kChainHashVersion;
    descriptor.layer_count = descriptor.layer_total = layout.layers;
    descriptor.kv_head_count = descriptor.kv_head_total = layout.kv_heads;
    descriptor.k_dim = layout.k_dim;
    descriptor.v_dim = layout.v_dim;
    descriptor.block_tokens = layout.tokens;
    descriptor.block_bytes = layout.BlockBytes();
    return descriptor;
  }
  std::unique_ptr<Client> Connect(local::Role role, uint64_t staging_bytes) {
    ClientOptions options;
    options.endpoint = "unix://" + options_.socket_path;
    options.engine_id = "engine";
    options.role = role;
    options.staging_bytes = staging_bytes;
    options.timeout_nanos = options.put_timeout_nanos = kLong;
    std::unique_ptr<Client> client = Client::Create(options).value();
    ns_ = client->OpenNamespace(Descriptor()).value();
    EXPECT_EQ(client->WaitReady(kLong), absl::OkStatus());
    return client;
  }
  void Start(uint64_t staging_bytes = 1 << 20) {
    StartServer();
    scheduler_ = Connect(local::Role::kScheduler, 0);
    worker_ = Connect(local::Role::kWorker, 0);
    putter_ = Connect(local::Role::kWorker, staging_bytes);
    saver_ = std::make_unique<BlockSaver>(SinkOf(putter_.get()));
    loader_ = BlockLoader::Create(SourceOf(worker_.get()), {}).value();
    for (std::byte& byte : pages_.memory) byte = static_cast<std::byte>(random_());
  }
  void TearDown() override {
    loader_.reset();
    saver_.reset();
    scheduler_.reset();
    worker_.reset();
    putter_.reset();
    PlaneFixture::TearDown();
  }

  std::vector<BlockKey> Keys(uint32_t seed, size_t blocks) {
    std::vector<uint32_t> tokens(8 * blocks);
    std::iota(tokens.begin(), tokens.end(), 1000 * seed);
    PrefixHasher hasher(8, {});
    hasher.Extend(tokens);
    return hasher.keys();
  }
  std::vector<int64_t> RandomPages(size_t blocks) {
    std::vector<int64_t> ids(TestPages::kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(2 * blocks);
    return ids;
  }
  SaveResult Save(const std::vector<BlockKey>& keys, const std::vector<int64_t>& page_ids) {
    SaveJob job{.id = 1, .ns = ns_, .keys = keys, .pages = pages_.mover, .page_ids = page_ids};
    const absl::StatusOr<SaveAnswer> answer = saver_->Save(job);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(saver_->Drain(kLong));
    std::vector<SaveResult> results = saver_->Poll();
    EXPECT_EQ(results.size(), 1u);
    return results.empty() ? SaveResult{} : results[0];
  }
  LoadJob Load(const std::vector<BlockKey>& keys, const std::vector<int64_t>& page_ids) {
    return {.id = 9, .ns = ns_, .keys = keys, .pages = pages_.mover, .page_ids = page_ids};
  }
  LoadResult Run(LoadJob job) {
    EXPECT_EQ(loader_->Submit(std::move(job)), absl::OkStatus());
    pollfd ready = {loader_->event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 60'000), 1);
    std::vector<LoadResult> results = loader_->Poll();
    EXPECT_EQ(results.size(), 1u);
    return results.empty() ? LoadResult{} : results[0];
  }
  std::vector<std::byte> Content(const std::vector<int64_t>& page_ids) {
    std::vector<std::byte> content;
    for (size_t i = 0; i < page_ids.size(); i += 2) {
      for (const std::byte* byte : pages_.Bytes(std::span(page_ids).subspan(i, 2), 0, 8))
        content.push_back(*byte);
    }
    return content;
  }
  void Scribble() {
    for (std::byte& byte : pages_.memory) byte = static_cast<std::byte>(random_());
  }

  std::mt19937_64 random_{51};
  TestPages pages_;
  ClientNamespace ns_ = 0;
  std::unique_ptr<Client> scheduler_, worker_, putter_;
  std::unique_ptr<BlockSaver> saver_;
  std::unique_ptr<BlockLoader> loader_;
};

TEST_F(EngineTransferTest, SavedPagesComeBackIntoOtherPages) {
  Start();
  for (uint32_t round = 1; round <= 20; ++round) {
    SCOPED_TRACE(round);
    const size_t blocks = 1 + random_() % 30;
    const std::vector<BlockKey> keys = Keys(round, blocks);
    const std::vector<int64_t> from = RandomPages(blocks), to = RandomPages(blocks);
    const std::vector<std::byte> content = Content(from);
    const SaveResult saved = Save(keys, from);
    ASSERT_TRUE(saved.status.ok()) << saved.status;
    ASSERT_EQ(saved.outcomes, std::vector<PutOutcome>(blocks, PutOutcome::kStored));
    Scribble();
    LoadJob job = Load(keys, to);
    if (round % 2 == 0) {  // as an engine does: the scheduler leases, the worker maps
      absl::StatusOr<GrantSet> grants = scheduler_->AcquireGrants(ns_, keys, 1);
      ASSERT_TRUE(grants.ok()) << grants.status();
      job.grants = *grants;
    }
    const absl::StatusOr<uint64_t> lease = job.grants ? absl::StatusOr<uint64_t>(job.grants->lease)
                                                      : absl::StatusOr<uint64_t>(uint64_t{0});
    const LoadResult result = Run(std::move(job));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.blocks, blocks);
    EXPECT_EQ(result.bytes, blocks * TestPages::kLayout.BlockBytes());
    EXPECT_TRUE(Content(to) == content);
    if (*lease != 0) scheduler_->Release(*lease);
  }
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().leased_bytes == 0; }));
}

TEST_F(EngineTransferTest, ADamagedBlockFailsTheLoadAndLeavesTheCache) {
  Start();
  const std::vector<BlockKey> keys = Keys(1, 4);
  const std::vector<int64_t> from = RandomPages(4), to = RandomPages(4);
  ASSERT_TRUE(Save(keys, from).status.ok());
  LeaseAccount account;
  const AcquireResult leased = cache_->Acquire(ns_, keys, &account, 0);
  ASSERT_EQ(leased.grants.size(), 4u);
  const_cast<std::byte*>(cache_->Data(leased.grants[2].slot))[100] ^= std::byte{1};
  cache_->ReleaseAll(&account);
  Scribble();
  const std::vector<std::byte> before = pages_.memory;
  const LoadResult result = Run(Load(keys, to));
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(result.blocks, 2u);
  for (int i = 4; i < 8; ++i) {
    const auto* page = pages_.memory.data() + to[i] * TestPages::kPage;
    EXPECT_TRUE(
        std::equal(page, page + TestPages::kPage, before.data() + to[i] * TestPages::kPage));
  }
  EXPECT_EQ(worker_->State().checksum_mismatches, 1u);
  EXPECT_EQ(scheduler_->Lookup(ns_, keys)->hit_blocks, 2u) << "the daemon was told";
}

TEST_F(EngineTransferTest, BlocksThatAreGoneFailTheLoad) {
  Start();
  const std::vector<BlockKey> keys = Keys(1, 3);
  ASSERT_TRUE(Save(keys, RandomPages(3)).status.ok());
  const std::vector<BlockKey> longer = Keys(1, 4);
  Scribble();
  const std::vector<std::byte> before = pages_.memory;
  EXPECT_EQ(Run(Load(longer, RandomPages(4))).status.code(), absl::StatusCode::kNotFound);

  LoadJob stale = Load(keys, RandomPages(3));
  stale.grants = scheduler_->AcquireGrants(ns_, keys, 1).value();
  ++stale.grants->incarnation;  // as after a daemon's restart
  EXPECT_EQ(Run(stale).status.code(), absl::StatusCode::kFailedPrecondition);
  --stale.grants->incarnation;
  server_->Stop();
  EXPECT_FALSE(Run(Load(keys, RandomPages(3))).status.ok());
  EXPECT_TRUE(pages_.memory == before) << "none of these wrote a byte";
}

TEST_F(EngineTransferTest, ShortStagingStoresTheLeadingPartAndADeadDaemonNothing) {
  constexpr uint64_t kStaging = 2 << 20;
  Start(kStaging);
  const absl::StatusOr<Staging> taken = putter_->Stage(kStaging - 3 * 4096);
  ASSERT_TRUE(taken.ok()) << taken.status();
  const std::vector<BlockKey> keys = Keys(1, 30);
  const SaveResult saved = Save(keys, RandomPages(30));
  ASSERT_TRUE(saved.status.ok()) << saved.status;
  // 15 in two units of 4 KiB, 7 in the third; more when the first put gave staging back in time.
  EXPECT_GE(saved.outcomes.size(), 22u);
  EXPECT_EQ(scheduler_->Lookup(ns_, keys)->hit_blocks, saved.outcomes.size());
  server_->Stop();
  ASSERT_TRUE(Eventually([&] { return !putter_->State().connected; }));
  const auto answer = saver_->Save(
      {.id = 2, .ns = ns_, .keys = Keys(2, 2), .pages = pages_.mover, .page_ids = RandomPages(2)});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->blocks, 0u);
  EXPECT_EQ(answer->dropped.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(saver_->pending_blocks(), 0u);
}

}  // namespace
}  // namespace kvarve
