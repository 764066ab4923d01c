// Goal: a client of another host's daemon keeps the promises of one on the same host: what is
// acknowledged is found, what is read is right, nothing waits past its deadline. Method: real
// clients against a real gRPC server over a real cache, bytes from a generator.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <set>

#include "client/cpp/client.h"
#include "client/cpp/engine/block_ports.h"
#include "client/rpc/grpc_plane.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/seeded_random.h"
#include "tests/integration/remote_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsBlock;
using testing::KeyChain;
using testing::MakeBlock;

constexpr uint64_t kBlock = 16384;

class RemoteClientTest : public RemoteFixture {
 protected:
  // Reads and compares; how many.
  static size_t Get(Client& client, ClientNamespace ns, std::span<const BlockKey> keys,
                    uint64_t block_bytes) {
    std::vector<std::byte> memory(keys.size() * block_bytes);
    std::vector<std::byte*> destinations;
    for (size_t i = 0; i < keys.size(); ++i) destinations.push_back(&memory[i * block_bytes]);
    const absl::StatusOr<size_t> got = client.Get(ns, keys, destinations);
    EXPECT_TRUE(got.ok()) << got.status();
    for (size_t i = 0; i < got.value_or(0); ++i) {
      EXPECT_TRUE(IsBlock(0, keys[i], {destinations[i], block_bytes})) << i;
    }
    return got.value_or(0);
  }
};

TEST_F(RemoteClientTest, RandomChainsAgainstASet) {
  Start();
  const auto client = Connect();
  std::mt19937_64 random{testing::SeededRandom(std::random_device{}()).Next()};
  const uint64_t sizes[] = {4096, 100'000, 5 << 20};
  for (const uint64_t size : sizes) {
    const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(size));
    EXPECT_EQ(client->block_bytes(ns), size);
    std::set<std::pair<uint64_t, size_t>> stored;
    const size_t longest = size > 1 << 20 ? 3 : 12;
    for (int round = 0; round < 30; ++round) {
      const uint64_t chain = random() % 3;
      const std::vector<BlockKey> keys = KeyChain(chain + size * 8, 1 + random() % longest);
      size_t hit = 0;
      while (hit < keys.size() && stored.contains({chain, hit})) ++hit;
      EXPECT_EQ(client->Lookup(ns, keys)->hit_blocks, hit);
      EXPECT_EQ(Get(*client, ns, keys, size), hit);
      if (random() % 3 != 0) {
        const std::vector<PutOutcome> outcomes = Put(*client, ns, keys, size);
        ASSERT_EQ(outcomes.size(), keys.size());
        for (size_t i = 0; i < keys.size(); ++i) {
          EXPECT_EQ(outcomes[i],
                    stored.contains({chain, i}) ? PutOutcome::kExists : PutOutcome::kStored);
          stored.emplace(chain, i);
        }
      } else if (random() % 3 == 0) {
        const size_t from = random() % keys.size();
        const uint64_t removed = *client->Invalidate(ns, std::span(keys).subspan(from));
        size_t expected = 0;
        for (size_t i = from; i < keys.size(); ++i) expected += stored.erase({chain, i});
        EXPECT_EQ(removed, expected);
      } else {
        EXPECT_EQ(*client->Touch(ns, keys, 0), hit);
      }
    }
    EXPECT_EQ(*client->Invalidate(ns), stored.size());
  }
  EXPECT_TRUE(client->is_remote());
  EXPECT_TRUE(client->State().connected);
  EXPECT_EQ(client->State().incarnation, cache_->incarnation());
  EXPECT_EQ(client->State().checksum_mismatches, 0u);
}

TEST_F(RemoteClientTest, LongChainsTakeSeveralRuns) {
  cache_options_.arena.capacity_bytes = 256ull << 20;
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(4096));
  const std::vector<BlockKey> keys = KeyChain(9, 2500);
  EXPECT_THAT(Put(*client, ns, keys, 4096), Each(PutOutcome::kStored));
  EXPECT_EQ(Get(*client, ns, keys, 4096), keys.size());
  const std::vector<BlockKey> more = KeyChain(9, 20000);
  EXPECT_EQ(client->Lookup(ns, more)->hit_blocks, keys.size());
}

// A node that may have one namespace forgets the empty ones of clients that come and go; a client
// whose namespace it forgot opens it again and sees nothing of it.
TEST_F(RemoteClientTest, NamespacesThatTheNodeForgetsAreOpenedAgain) {
  cache_options_.max_namespaces_per_tenant = 1;
  Start();
  const auto a = Connect(), b = Connect();
  const ClientNamespace of_a = *a->OpenNamespace(TestDescriptor(4096));
  const ClientNamespace of_b = *b->OpenNamespace(TestDescriptor(8192));
  const std::vector<BlockKey> keys = KeyChain(1, 3);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(a->Lookup(of_a, keys)->hit_blocks, 0u);
    EXPECT_THAT(Put(*b, of_b, keys, 8192), Each(PutOutcome::kStored));
    // With blocks in it, it stays, and there is no place for another.
    EXPECT_EQ(a->Lookup(of_a, keys).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Get(*b, of_b, keys, 8192), 3u);
    EXPECT_EQ(*b->Invalidate(of_b), 3u);
  }
  EXPECT_THAT(Put(*a, of_a, keys, 4096), Each(PutOutcome::kStored));
  EXPECT_EQ(Get(*a, of_a, keys, 4096), 3u);
}

// As the connector does it: one process keeps, another loads.
TEST_F(RemoteClientTest, PortsOfAnEngine) {
  Start();
  const auto scheduler = Connect(), worker = Connect();
  const NamespaceDescriptor descriptor = TestDescriptor(kBlock);
  const ClientNamespace ns = *scheduler->OpenNamespace(descriptor);
  const ClientNamespace same = *worker->OpenNamespace(descriptor);
  const std::vector<BlockKey> keys = KeyChain(1, 4);

  const std::unique_ptr<BlockSink> sink = SinkOf(worker.get());
  StagedBytes staged = *sink->Stage(keys.size() * kBlock);
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::vector<std::byte> block = MakeBlock(0, keys[i], kBlock);
    std::memcpy(staged.data + i * kBlock, block.data(), kBlock);
  }
  PutChain chain;
  chain.keys = keys;
  EXPECT_THAT(*sink->Put(same, chain, std::move(staged)), Each(PutOutcome::kStored));

  const LookupResult found = *scheduler->Lookup(ns, keys, 5'000'000'000);
  EXPECT_EQ(found.hit_blocks, 4u);
  EXPECT_NE(found.hold, 0u);
  GrantSet grants = *scheduler->AcquireGrants(ns, keys, 1);
  ASSERT_EQ(grants.items.size(), 4u);
  EXPECT_NE(grants.lease, 0u);
  scheduler->Release(found.hold);
  cache_->Evict(1ull << 40, "");  // nothing leaves
  EXPECT_EQ(scheduler->Lookup(ns, keys)->hit_blocks, 4u);

  const std::unique_ptr<BlockSource> source = SourceOf(worker.get());
  const OpenBlocks open = *source->Open(same, keys, grants, 1);
  ASSERT_EQ(open.blocks.size(), 4u);
  EXPECT_EQ(open.block_bytes, kBlock);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(IsBlock(0, keys[i], {open.blocks[i], kBlock}));
    EXPECT_TRUE(source->Verify(same, keys[i], open.blocks[i], open.checksums[i]));
    EXPECT_TRUE(worker->Verify(same, keys[i], open.blocks[i], open.checksums[i]));
  }
  EXPECT_EQ(worker->Map(grants).status().code(), absl::StatusCode::kFailedPrecondition);
  scheduler->Release(grants.lease);
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().leased_bytes == 0; }));
  cache_->Evict(1ull << 40, "");
  EXPECT_EQ(scheduler->AcquireGrants(ns, keys, 2)->items.size(), 0u);
  EXPECT_EQ(worker->Acquire(same, keys)->size(), 0u);
}

TEST_F(RemoteClientTest, ADamagedBlockIsAMissAndLeaves) {
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(3, 3);
  EXPECT_THAT(Put(*client, ns, keys, kBlock), Each(PutOutcome::kStored));
  LeaseAccount account;
  const AcquireResult read = cache_->Acquire(0, std::span(keys).subspan(1, 1), &account, 0);
  const_cast<std::byte&>(cache_->Data(read.grants[0].slot)[777]) ^= std::byte{4};
  cache_->ReleaseAll(&account);
  EXPECT_EQ(Get(*client, ns, keys, kBlock), 1u);
  EXPECT_EQ(client->State().checksum_mismatches, 1u);
  EXPECT_EQ(cache_->Stats().corrupt_blocks, 1u);
  EXPECT_EQ(client->Lookup(ns, keys)->hit_blocks, 1u);
}

// Room for one put at a time: the others are shed, told when to come again, and get in.
TEST_F(RemoteClientTest, ShedPutsGetInAfterAll) {
  constexpr uint64_t kBig = 1 << 20;
  options_.streams.write_bytes = 2 * kBig;
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto client = Connect();
      const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBig));
      for (uint64_t round = 0; round < 3; ++round) {
        const std::vector<BlockKey> keys = KeyChain(round * 10 + static_cast<uint64_t>(t), 4);
        EXPECT_THAT(Put(*client, ns, keys, kBig), Each(PutOutcome::kStored));
        EXPECT_EQ(Get(*client, ns, keys, kBig), keys.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A put that finds no room in its whole time says so.
  ClientOptions options = Options();
  options.put_timeout_nanos = 300'000'000;
  const auto hasty = Client::Create(options).value();
  const auto holder = Connect();
  const ClientNamespace ns = *hasty->OpenNamespace(TestDescriptor(kBig));
  const v1::Namespace opened = Open(TestDescriptor(kBig));
  grpc::ClientContext context;
  Prepare(&context);
  v1::WriteRunReply reply;
  const auto writer = stub_->WriteRun(&context, &reply);
  v1::WriteFrame frame;
  *frame.mutable_open() = OpenOf(opened, std::string(32, 'a'));
  ASSERT_TRUE(writer->Write(frame));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.open == 1; }));
  const BlockKey key = KeyChain(99, 1)[0];
  const std::vector<std::byte> block = MakeBlock(0, key, kBig);
  const std::byte* const source = block.data();
  PutChain chain;
  chain.keys = {&key, 1};
  EXPECT_EQ(hasty->Put(ns, chain, {&source, 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  context.TryCancel();
}

// As on the same host: a chain of which nothing can be taken is an error that has the numbers;
// where a part was, the outcomes say how far.
TEST_F(RemoteClientTest, OverQuotaSaysTheNumbers) {
  cache_options_.quotas["team"].of(Resource::kEntries) = {0, 2};
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  std::string reason = "of the put before";
  EXPECT_THAT(Put(*client, ns, KeyChain(1, 2), kBlock, &reason), Each(PutOutcome::kStored));
  EXPECT_EQ(reason, "");
  EXPECT_THAT(Put(*client, ns, KeyChain(1, 4), kBlock, &reason),
              ElementsAre(PutOutcome::kExists, PutOutcome::kExists, PutOutcome::kRejectedQuota,
                          PutOutcome::kRejectedParent));
  EXPECT_EQ(
      reason,
      "tenant \"team\" is over its quota of entries: 2 in use of at most 2, and nothing of it "
      "can leave now");
  TenantQuota none;
  none.of(Resource::kEntries) = {0, 0};
  ASSERT_TRUE(client->Invalidate(ns).ok());
  ASSERT_TRUE(cache_->SetQuota("team", none).ok());
  const BlockKey key = KeyChain(2, 1)[0];
  const std::vector<std::byte> block = MakeBlock(0, key, kBlock);
  const std::byte* const source = block.data();
  PutChain chain;
  chain.keys = {&key, 1};
  const absl::Status refused = client->Put(ns, chain, {&source, 1}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      std::string(refused.message()),
      "tenant \"team\" is over its quota of entries: 0 in use of at most 0, and nothing of it "
      "can leave now");
}

// Reads beyond what may be read at once wait for their turn.
TEST_F(RemoteClientTest, ReadsOfManyWaitForTheirTurn) {
  constexpr uint64_t kBig = 4 << 20;
  store_options_.read_bytes_max = kBig / 8 * 9;  // one for this tenant
  Start();
  const auto writer = Connect();
  const ClientNamespace ns = *writer->OpenNamespace(TestDescriptor(kBig));
  const std::vector<BlockKey> keys = KeyChain(5, 6);
  EXPECT_THAT(Put(*writer, ns, keys, kBig), Each(PutOutcome::kStored));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto client = Connect();
      const ClientNamespace mine = *client->OpenNamespace(TestDescriptor(kBig));
      EXPECT_EQ(Get(*client, mine, keys, kBig), keys.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RemoteClientTest, WhoMayNotAndWhoIsNotThere) {
  Start();
  ClientOptions options = Options();
  options.token_file.clear();
  const auto nobody = Client::Create(options).value();
  const absl::Status refused = nobody->WaitReady(kLong);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated) << refused;
  options.token_file = "/nowhere/token";
  EXPECT_EQ(Client::Create(options).status().code(), absl::StatusCode::kNotFound);
  options = Options();
  ::chmod(options_.auth.token_file.c_str(), 0644);
  EXPECT_EQ(Client::Create(options).status().code(), absl::StatusCode::kPermissionDenied);
  ::chmod(options_.auth.token_file.c_str(), 0600);

  const auto client = Connect();
  NamespaceDescriptor bad = TestDescriptor(kBlock);
  bad.model_digest.clear();
  EXPECT_EQ(client->OpenNamespace(bad).status().code(), absl::StatusCode::kInvalidArgument);
  const BlockKey key = KeyChain(1, 1)[0];
  EXPECT_EQ(client->Lookup(77, {&key, 1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Admin("{}").status().code(), absl::StatusCode::kUnimplemented);

  server_->Stop(0);
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  EXPECT_EQ(client->Lookup(ns, {&key, 1}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(client->State().connected);
  const absl::Status late = client->WaitReady(100'000'000);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("127.0.0.1"));
}

TEST_F(RemoteClientTest, AForkedChildIsTold) {
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 1);
  EXPECT_EQ(client->Lookup(ns, keys)->hit_blocks, 0u);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_told =
        client->Lookup(ns, keys).status().code() == absl::StatusCode::kFailedPrecondition;
    client->Release(1);
    ::_exit(is_told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(client->Lookup(ns, keys)->hit_blocks, 0u);
}

}  // namespace
}  // namespace kvarve
