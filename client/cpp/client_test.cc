// Goal: every call of the client, in the order and size that a daemon accepts. Method: a small
// daemon in this process that checks what it gets; bytes compared with a generator.
#include "client/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "client/cpp/fake_daemon_testing.h"
#include "storage/block/checksum.h"

namespace kvarve {
namespace {

using local::Type;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLong = 60'000'000'000;
constexpr uint64_t kBlock = FakeDaemon::kBlockBytes;

std::string TempFolder() {
  char name[] = "/tmp/kvarve-client-XXXXXX";
  KV_CHECK(::mkdtemp(name) != nullptr);
  return name;
}

class ClientTest : public ::testing::Test {
 protected:
  ~ClientTest() override {
    daemon_ = nullptr;
    ::rmdir(folder_.c_str());
  }
  void StartDaemon(FakeDaemon::Options options = {}) {
    daemon_ = nullptr;
    daemon_ = std::make_unique<FakeDaemon>(folder_ + "/s", options);
  }
  ClientOptions Options() {
    ClientOptions options;
    options.endpoint = "unix://" + folder_ + "/s";
    options.staging_bytes = 1 << 20;
    options.timeout_nanos = kLong;
    options.put_timeout_nanos = kLong;
    return options;
  }
  // A client that is ready, with one namespace.
  void Connect(ClientOptions options) {
    client_ = *Client::Create(options);
    ns_ = *client_->OpenNamespace(TestDescriptor("m"));
    const absl::Status ready = client_->WaitReady(kLong);
    ASSERT_TRUE(ready.ok()) << ready;
  }
  std::vector<PutOutcome> PutBlocks(uint64_t first, size_t count) {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> sources;
    for (size_t i = 0; i < count; ++i) blocks.push_back(TestBlock(first + i));
    for (const auto& block : blocks) sources.push_back(block.data());
    const std::vector<BlockKey> keys = TestKeys(first, count);
    absl::StatusOr<std::vector<PutOutcome>> put = client_->Put(ns_, {.keys = keys}, sources);
    KV_CHECK(put.ok());
    return *put;
  }

  const std::string folder_ = TempFolder();
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
};

TEST_F(ClientTest, OptionsAreChecked) {
  for (auto edit : std::initializer_list<void (*)(ClientOptions&)>{
           [](ClientOptions& o) { o.endpoint = "tcp://host:7400"; },
           [](ClientOptions& o) { o.engine_id = std::string(129, 'x'); },
           [](ClientOptions& o) { o.timeout_nanos = 0; },
           [](ClientOptions& o) { o.put_timeout_nanos = -1; },
           [](ClientOptions& o) { o.poll_nanos = -1; },
           [](ClientOptions& o) { o.poll_nanos = 1'000'001; },
           [](ClientOptions& o) { o.breaker_failures = 0; },
           [](ClientOptions& o) { o.probe_interval_nanos = 0; }}) {
    ClientOptions options = Options();
    edit(options);
    EXPECT_EQ(Client::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ClientTest, WorksWithoutADaemonAndJoinsOneThatAppears) {
  client_ = *Client::Create(Options());
  ns_ = *client_->OpenNamespace(TestDescriptor("m"));
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 3)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->Acquire(ns_, TestKeys(0, 3)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->Stage(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->Map(GrantSet()).status().code(), absl::StatusCode::kFailedPrecondition);
  while (client_->State().last_error.empty()) std::this_thread::yield();
  const absl::Status waited = client_->WaitReady(30'000'000);
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message().data(), waited.message().size()),
              HasSubstr("is kvarved running"));
  EXPECT_FALSE(client_->State().connected);
  EXPECT_EQ(client_->block_bytes(ns_), kBlock);
  StartDaemon();
  EXPECT_TRUE(client_->WaitReady(kLong).ok());
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 3))->hit_blocks, 0u);
  const ClientState state = client_->State();
  EXPECT_TRUE(state.connected);
  EXPECT_EQ(state.daemon_version, "fake");
  EXPECT_EQ(state.incarnation, 1u);
  EXPECT_EQ(state.reconnects, 0u);
  EXPECT_EQ(state.last_error, "");
}

TEST_F(ClientTest, WithoutDescriptorsThereIsNoClientAndNoCrash) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto client = Client::Create({});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kResourceExhausted) << client.status();
}

TEST_F(ClientTest, PutLookupAcquireGet) {
  StartDaemon();
  Connect(Options());
  EXPECT_EQ(PutBlocks(0, 5), std::vector<PutOutcome>(5, PutOutcome::kStored));
  EXPECT_EQ(PutBlocks(4, 2), (std::vector{PutOutcome::kExists, PutOutcome::kStored}));
  const std::vector<BlockKey> keys = TestKeys(0, 9);
  EXPECT_EQ(client_->Lookup(ns_, keys)->hit_blocks, 6u);
  EXPECT_EQ(client_->Lookup(ns_, {})->hit_blocks, 0u);
  EXPECT_EQ(client_->Lookup(ns_, std::span(keys).subspan(6))->hit_blocks, 0u);

  absl::StatusOr<View> view = client_->Acquire(ns_, keys);
  ASSERT_TRUE(view.ok());
  ASSERT_EQ(view->size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::memcmp(view->block(i), TestBlock(i).data(), kBlock), 0) << i;
    EXPECT_TRUE(client_->Verify(ns_, keys[i], view->block(i), view->checksum(i)));
  }
  const uint64_t lease = view->grants().lease;
  View moved = *std::move(view);
  EXPECT_EQ(moved.size(), 6u);
  moved = View();
  EXPECT_TRUE(daemon_->WaitFor([&](const auto& seen) { return seen.released.size() == 1; }));
  EXPECT_THAT(daemon_->seen().released, ElementsAre(lease));

  EXPECT_EQ(client_->Acquire(ns_, std::span(keys).subspan(6))->size(), 0u);

  std::vector<std::byte> out(9 * kBlock + 1);
  for (size_t shift : {0, 1}) {  // aligned and not
    std::vector<std::byte*> to;
    for (size_t i = 0; i < 9; ++i) to.push_back(out.data() + shift + i * kBlock);
    for (bool verify : {true, false}) {
      std::fill(out.begin(), out.end(), std::byte{0});
      EXPECT_EQ(*client_->Get(ns_, keys, to, 0, verify), 6u);
      for (size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(std::memcmp(to[i], TestBlock(i).data(), kBlock), 0) << i;
      }
      EXPECT_EQ(out.back(), std::byte{0});
    }
  }
}

TEST_F(ClientTest, ShortKeysAndSeveralNamespaces) {
  StartDaemon({.first_handle = 40});
  Connect(Options());
  const ClientNamespace other = *client_->OpenNamespace(TestDescriptor("other", 16));
  EXPECT_NE(other, ns_);
  EXPECT_EQ(*client_->OpenNamespace(TestDescriptor("other", 16)), other);
  const std::vector<BlockKey> keys = TestKeys(0, 3, 16);
  const std::vector<std::byte> block = TestBlock(5);
  const std::vector<const std::byte*> sources(3, block.data());
  EXPECT_EQ(*client_->Put(other, {.keys = keys}, sources),
            std::vector<PutOutcome>(3, PutOutcome::kStored));
  EXPECT_EQ(client_->Lookup(other, keys)->hit_blocks, 3u);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 3))->hit_blocks, 0u);
  EXPECT_EQ(client_->Lookup(77, keys).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->block_bytes(77), 0u);
}

TEST_F(ClientTest, BadDescriptorsAreRefusedHere) {
  StartDaemon();
  Connect(Options());
  NamespaceDescriptor descriptor = TestDescriptor("x");
  descriptor.tenant = "somebody else";
  EXPECT_EQ(client_->OpenNamespace(descriptor).status().code(), absl::StatusCode::kInvalidArgument);
  descriptor = TestDescriptor("x");
  descriptor.key_bytes = 20;
  EXPECT_EQ(client_->OpenNamespace(descriptor).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, LookupsBeyondOneMessageAreSplitAndStopShort) {
  StartDaemon();
  Connect(Options());
  // The daemon here answers by itself: all of the first two messages, nothing of the third.
  int asked = 0;
  daemon_->SetHook([&](FakeDaemon::Peer& peer, const local::Header& header, auto packet) {
    if (header.type != static_cast<uint16_t>(Type::kLookup)) return false;
    const uint32_t keys = local::ParseKeys(packet, 0)->body.keys;
    EXPECT_LE(keys, local::kMaxKeysPerLookup);
    const uint32_t hits = ++asked <= 2 ? keys : 5;
    FakeDaemon::Reply(peer, std::move(local::Builder(Type::kLookupReply, header.request)
                                          .Add(local::LookupReplyBody{hits, 0, 0}))
                                .Finish());
    return true;
  });
  const std::vector<BlockKey> keys(40'000);
  EXPECT_EQ(client_->Lookup(ns_, keys)->hit_blocks, 2 * local::kMaxKeysPerLookup + 5);
  EXPECT_EQ(daemon_->seen().packets[Type::kLookup], 3);
  // With a hold one message is all.
  daemon_->SetHook(nullptr);
  EXPECT_EQ(client_->Lookup(ns_, keys, 1'000'000)->hit_blocks, 0u);
  EXPECT_EQ(daemon_->seen().packets[Type::kLookup], 4);
}

TEST_F(ClientTest, LongChainsArePutInPiecesThatStagingTakes) {
  StartDaemon({.max_staging_bytes = 8 * kBlock});
  Connect(Options());
  std::vector<local::KeysBody> bodies;
  daemon_->SetHook([&](FakeDaemon::Peer&, const local::Header& header, auto packet) {
    if (header.type == static_cast<uint16_t>(Type::kPut)) {
      bodies.push_back(local::ParseKeys(packet, 1)->body);
    }
    return false;
  });
  EXPECT_EQ(PutBlocks(0, 20), std::vector<PutOutcome>(20, PutOutcome::kStored));
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 20))->hit_blocks, 20u);
  uint32_t depth = 0;
  for (const local::KeysBody& body : bodies) {
    EXPECT_EQ(body.first_depth, depth);
    EXPECT_EQ(body.flags, depth == 0 ? 0u : uint32_t{local::kHasParent});
    if (depth > 0) {
      EXPECT_EQ(std::memcmp(body.parent, TestKey(depth - 1).bytes.data(), 32), 0);
    }
    depth += body.keys;
  }
  EXPECT_EQ(depth, 20u);
  EXPECT_GE(bodies.size(), 3u);
}

TEST_F(ClientTest, ARejectedBlockEndsItsChain) {
  StartDaemon({.max_staging_bytes = 2 * kBlock});
  Connect(Options());
  int puts = 0;
  daemon_->SetHook([&](FakeDaemon::Peer& peer, const local::Header& header, auto packet) {
    if (header.type != static_cast<uint16_t>(Type::kPut) || ++puts < 2) return false;
    local::Builder reply(Type::kPutReply, header.request);
    reply.Add(local::PutReplyBody{.blocks = 2}).Add(uint8_t{3}).Add(uint8_t{2});
    FakeDaemon::Reply(peer, std::move(reply).Finish());
    return true;
  });
  EXPECT_EQ(PutBlocks(0, 7),
            (std::vector{PutOutcome::kStored, PutOutcome::kStored, PutOutcome::kRejectedNoSpace,
                         PutOutcome::kRejectedParent, PutOutcome::kRejectedParent,
                         PutOutcome::kRejectedParent, PutOutcome::kRejectedParent}));
  EXPECT_EQ(puts, 2);
}

TEST_F(ClientTest, StagedPutsSendWhatLiesThere) {
  StartDaemon();
  Connect(Options());
  absl::StatusOr<Staging> staging = client_->Stage(3 * kBlock);
  ASSERT_TRUE(staging.ok());
  EXPECT_TRUE(staging->valid());
  EXPECT_EQ(staging->size(), 3 * kBlock);
  for (size_t i = 0; i < 3; ++i) {
    std::memcpy(staging->data() + i * kBlock, TestBlock(i).data(), kBlock);
  }
  const std::vector<BlockKey> keys = TestKeys(0, 4);
  EXPECT_EQ(client_->PutStaged(ns_, {.keys = keys}, *client_->Stage(3 * kBlock)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      client_->PutStaged(ns_, {.keys = std::span(keys).first(3)}, *std::move(staging))->size(), 3u);
  EXPECT_FALSE(staging->valid());
  const absl::StatusOr<View> view = client_->Acquire(ns_, keys);
  ASSERT_EQ(view->size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(view->block(i), TestBlock(i).data(), kBlock), 0);
  }
  // All of it is free again.
  EXPECT_TRUE(client_->Stage(1 << 20).ok());
  EXPECT_EQ(client_->Stage((1 << 20) + 1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ClientTest, AClientWithoutStagingReadsAndNeverPuts) {
  StartDaemon();
  Connect(Options());
  PutBlocks(0, 2);
  ClientOptions options = Options();
  options.staging_bytes = 0;
  const std::unique_ptr<Client> reader = *Client::Create(options);
  const ClientNamespace ns = *reader->OpenNamespace(TestDescriptor("m"));
  ASSERT_TRUE(reader->WaitReady(kLong).ok());
  EXPECT_EQ(reader->Stage(1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reader->Acquire(ns, TestKeys(0, 2))->size(), 2u);
}

TEST_F(ClientTest, GrantsTravelToASiblingThatMapsThem) {
  StartDaemon();
  Connect(Options());
  PutBlocks(0, 3);
  const absl::StatusOr<GrantSet> grants = client_->AcquireGrants(ns_, TestKeys(0, 3), 9);
  ASSERT_TRUE(grants.ok());
  ASSERT_EQ(grants->items.size(), 3u);
  EXPECT_EQ(grants->block_bytes, kBlock);
  ClientOptions options = Options();
  options.staging_bytes = 0;
  const std::unique_ptr<Client> worker = *Client::Create(options);
  ASSERT_TRUE(worker->WaitReady(kLong).ok());
  {
    const absl::StatusOr<View> view = worker->Map(*grants);
    ASSERT_TRUE(view.ok()) << view.status();
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(view->block(i), TestBlock(i).data(), kBlock), 0);
    }
  }
  EXPECT_TRUE(daemon_->seen().released.empty());  // the lease is the scheduler's
  GrantSet outside = *grants;
  outside.items[1].offset = FakeDaemon::kChunkBytes - kBlock + 1;
  EXPECT_EQ(worker->Map(outside).status().code(), absl::StatusCode::kInvalidArgument);
  outside.items[1].offset = ~uint64_t{0} - 10;
  EXPECT_EQ(worker->Map(outside).status().code(), absl::StatusCode::kInvalidArgument);
  GrantSet older = *grants;
  older.incarnation += 1;
  EXPECT_EQ(worker->Map(older).status().code(), absl::StatusCode::kFailedPrecondition);
  GrantSet unknown = *grants;
  unknown.items[2].chunk += 1;
  EXPECT_EQ(worker->Map(unknown).status().code(), absl::StatusCode::kNotFound);
  client_->Release(grants->lease);
  EXPECT_TRUE(daemon_->WaitFor([&](const auto& seen) { return seen.released.size() == 1; }));
  EXPECT_THAT(daemon_->seen().released, ElementsAre(grants->lease));
}

TEST_F(ClientTest, AChunkThatWasNotAnnouncedIsAskedFor) {
  StartDaemon({.announce = false});
  Connect(Options());
  PutBlocks(0, 2);
  EXPECT_EQ(daemon_->seen().packets[Type::kSync], 0);
  EXPECT_EQ(client_->Acquire(ns_, TestKeys(0, 2))->size(), 2u);
  EXPECT_EQ(daemon_->seen().packets[Type::kSync], 1);
}

TEST_F(ClientTest, AnUnknownChunkIsNotFoundAndItsLeaseEnds) {
  StartDaemon({.announce = false});
  Connect(Options());
  PutBlocks(0, 2);
  daemon_->SetHook([](FakeDaemon::Peer& peer, const local::Header& header, auto) {
    if (header.type != static_cast<uint16_t>(Type::kSync)) return false;
    FakeDaemon::Reply(
        peer,
        std::move(local::Builder(Type::kSyncReply, header.request).Add(local::CountReplyBody{0}))
            .Finish());
    return true;
  });
  EXPECT_EQ(client_->Acquire(ns_, TestKeys(0, 2)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.released.size() == 1; }));
}

TEST_F(ClientTest, HoldsEndEarlyOnRelease) {
  StartDaemon();
  Connect(Options());
  PutBlocks(0, 2);
  const absl::StatusOr<LookupResult> found = client_->Lookup(ns_, TestKeys(0, 2), 5'000'000'000);
  ASSERT_NE(found->hold, 0u);
  client_->Release(found->hold);
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.released.size() == 1; }));
  EXPECT_THAT(daemon_->seen().released, ElementsAre(found->hold));
}

TEST_F(ClientTest, OverTheLeaseCapCopiesStillWork) {
  StartDaemon({.max_staging_bytes = 4 * kBlock, .over_cap = true});
  Connect(Options());
  PutBlocks(0, 10);
  const absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(0, 10));
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->size(), 0u);
  EXPECT_TRUE(view->grants().over_lease_cap);
  std::vector<std::byte> out(12 * kBlock);
  std::vector<std::byte*> to;
  for (size_t i = 0; i < 12; ++i) to.push_back(out.data() + i * kBlock);
  EXPECT_EQ(*client_->Get(ns_, TestKeys(0, 12), to), 10u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(std::memcmp(to[i], TestBlock(i).data(), kBlock), 0) << i;
  }
}

TEST_F(ClientTest, ACorruptBlockEndsTheHitAndIsReported) {
  for (bool over_cap : {false, true}) {
    StartDaemon({.over_cap = over_cap});
    Connect(Options());
    PutBlocks(0, 5);
    daemon_->FlipStoredByte(TestKey(3));
    std::vector<std::byte> out(5 * kBlock);
    std::vector<std::byte*> to;
    for (size_t i = 0; i < 5; ++i) to.push_back(out.data() + i * kBlock);
    EXPECT_EQ(*client_->Get(ns_, TestKeys(0, 5), to), 3u);
    EXPECT_EQ(client_->State().checksum_mismatches, 1u);
    EXPECT_EQ(daemon_->seen().packets[Type::kReportCorrupt], 1);
    EXPECT_EQ(*client_->Get(ns_, TestKeys(0, 5), to, 0, /*verify=*/false), 5u);
    client_ = nullptr;
  }
}

TEST_F(ClientTest, TouchInvalidateAdmin) {
  StartDaemon();
  Connect(Options());
  PutBlocks(0, 4);
  EXPECT_EQ(*client_->Touch(ns_, TestKeys(0, 6), 3), 4u);
  EXPECT_EQ(*client_->Touch(ns_, {}, 3), 0u);
  EXPECT_EQ(*client_->Invalidate(ns_), 4u);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 4))->hit_blocks, 0u);
  EXPECT_EQ(*client_->Admin(R"({"op":"stats"})"), R"({"op":"stats"})");
  EXPECT_EQ(client_->Admin(std::string(1 << 20, ' ')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, ADroppedChunkIsGivenBackWhenNoViewNeedsIt) {
  StartDaemon();
  Connect(Options());
  PutBlocks(0, 2);
  absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(0, 2));
  ASSERT_EQ(view->size(), 2u);
  daemon_->DropChunk();
  EXPECT_TRUE(client_->Lookup(ns_, TestKeys(0, 1)).ok());  // reads the message on the way
  EXPECT_TRUE(daemon_->seen().pool_dropped.empty());
  EXPECT_EQ(std::memcmp(view->block(1), TestBlock(1).data(), kBlock), 0);
  *view = View();
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return !seen.pool_dropped.empty(); }));
  EXPECT_THAT(daemon_->seen().pool_dropped, ElementsAre(daemon_->chunk_id()));
}

TEST_F(ClientTest, AnIdleClientReadsUnaskedMessages) {
  StartDaemon();
  Connect(Options());
  daemon_->DropChunk();
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return !seen.pool_dropped.empty(); }));
}

TEST_F(ClientTest, SaysByeWhenItEnds) {
  StartDaemon();
  Connect(Options());
  client_ = nullptr;
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.connections == 0; }));
  ASSERT_EQ(daemon_->seen().byes.size(), 1u);
  EXPECT_EQ(daemon_->seen().byes[0].first, 0u);
}

TEST_F(ClientTest, EnginesHaveNames) {
  StartDaemon();
  Connect(Options());
  EXPECT_THAT(daemon_->seen().engine_id, HasSubstr("pid-"));
  client_ = nullptr;
  ClientOptions options = Options();
  options.engine_id = "vllm-0";
  Connect(options);
  EXPECT_EQ(daemon_->seen().engine_id, "vllm-0");
}

TEST_F(ClientTest, MoreNamespacesThanOneHelloTakes) {
  client_ = *Client::Create(Options());
  std::vector<ClientNamespace> all;
  for (int i = 0; i < 150; ++i) {
    all.push_back(*client_->OpenNamespace(TestDescriptor("m" + std::to_string(i))));
  }
  StartDaemon();
  ASSERT_TRUE(client_->WaitReady(kLong).ok());
  for (ClientNamespace ns : all) EXPECT_EQ(client_->Lookup(ns, TestKeys(0, 1))->hit_blocks, 0u);
}

TEST_F(ClientTest, ThreadsTakeTurns) {
  StartDaemon();
  Connect(Options());
  PutBlocks(0, 64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const uint64_t first = static_cast<uint64_t>(t * 16);
        const std::vector<BlockKey> keys = TestKeys(first, 16);
        EXPECT_EQ(client_->Lookup(ns_, keys)->hit_blocks, 16u);
        const absl::StatusOr<View> view = client_->Acquire(ns_, keys);
        ASSERT_TRUE(view.ok()) << view.status();
        ASSERT_EQ(view->size(), 16u);
        EXPECT_EQ(std::memcmp(view->block(i % 16), TestBlock(first + i % 16).data(), 64), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.released.size() == 800; }));
}

}  // namespace
}  // namespace kvarve
