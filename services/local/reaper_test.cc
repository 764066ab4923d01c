// Ends of sessions, with real processes: BYE, close, SIGKILL, forked children that keep the socket,
// engines of several processes; what stays quarantined meanwhile, and that it never stays longer.
#include "services/local/reaper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "services/local/testing/plane_fixture.h"

namespace kvarve::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBlock = 64 * kKiB;
constexpr uint8_t kStored = 0;

class ReaperTest : public PlaneFixture {
 protected:
  // A client process. Words: "connect", "lease" (chain 1, all that is there), "bye", "close",
  // "fork" (a child that keeps the socket until the puppet's own end of a pipe closes), "quit".
  std::unique_ptr<Puppet> Client(const std::string& engine_id, uint64_t staging_bytes = 2 * kMiB) {
    const std::string path = options_.socket_path;
    return std::make_unique<Puppet>([path, engine_id, staging_bytes](Puppet::Strings& strings) {
      std::unique_ptr<RawClient> client;
      for (std::string word = strings.Listen(); !word.empty() && word != "quit";
           word = strings.Listen()) {
        if (word == "connect") {
          client = std::make_unique<RawClient>(path);
          const auto welcome =
              client->Hello({OpaqueNamespace("m", kBlock)}, staging_bytes, engine_id);
          strings.Say(welcome.ok() ? "ok" : std::string(welcome.status().message()));
        } else if (word == "lease") {
          const auto grant = client->Acquire(0, KeyChain(1, 4));
          strings.Say(grant.ok() ? std::to_string(grant->body.blocks) : "failed");
        } else if (word == "bye") {
          client->Bye();
          strings.Say(client->ReceiveEnd() ? "ended" : "");
        } else if (word == "close") {
          client->Close();
          strings.Say("ok");
        } else if (word == "fork") {
          // The child outlives the puppet, and ends with the test.
          const pid_t child = ::fork();
          if (child == 0) {
            while (!strings.Listen().empty()) {
            }
            ::_exit(0);
          }
          strings.Say("ok");
        }
      }
    });
  }
  // Four blocks of chain 1, put by a client that is gone again.
  void PutFour() {
    RawClient writer(options_.socket_path);
    ASSERT_TRUE(writer.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
    ASSERT_THAT(*writer.PutBlocks(0, kBlock, KeyChain(1, 4)), Each(kStored));
    writer.Bye();
    ASSERT_TRUE(writer.ReceiveEnd());
  }
  bool NothingLeft() const {
    const LocalStats stats = Stats();
    return stats.leased_bytes == 0 && stats.quarantined_bytes == 0 && stats.staging_bytes == 0 &&
           stats.ended_sessions == 0 && stats.sessions == 0 && stats.processes == 0;
  }
};

TEST_F(ReaperTest, ByeEndsAllAtOnce) {
  auto puppet = Client("");
  StartServer();
  PutFour();
  ASSERT_EQ(puppet->Ask("connect"), "ok");
  ASSERT_EQ(puppet->Ask("lease"), "4");
  EXPECT_EQ(Stats().leased_bytes, 4 * kBlock);
  EXPECT_EQ(Stats().sessions, 1u);
  ASSERT_EQ(puppet->Ask("bye"), "ended");
  // The end of the connection comes after the end of its leases.
  EXPECT_TRUE(NothingLeft());
  EXPECT_EQ(Ends(SessionEnd::kBye), 2u);
}

TEST_F(ReaperTest, ClosingWithoutByeQuarantinesUntilTheProcessExits) {
  auto puppet = Client("");
  StartServer();
  PutFour();
  ASSERT_EQ(puppet->Ask("connect"), "ok");
  ASSERT_EQ(puppet->Ask("lease"), "4");
  ASSERT_EQ(puppet->Ask("close"), "ok");
  EXPECT_TRUE(Eventually([&] { return Stats().ended_sessions == 1; }));
  LocalStats stats = Stats();
  EXPECT_EQ(stats.sessions, 0u);
  EXPECT_EQ(stats.leased_bytes, 4 * kBlock);
  EXPECT_EQ(stats.quarantined_bytes, 4 * kBlock);
  EXPECT_EQ(stats.staging_bytes, 2 * kMiB);
  // Other clients are served meanwhile; the quarantined slots are not reused, whatever is put.
  RawClient writer(options_.socket_path);
  ASSERT_TRUE(writer.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  for (uint64_t chain = 2; chain < 200; ++chain) {
    ASSERT_THAT(*writer.PutBlocks(0, kBlock, KeyChain(chain, 32)), Each(kStored));
  }
  EXPECT_GT(cache_->Stats().evicted_blocks, 0u);
  EXPECT_EQ(Stats().quarantined_bytes, 4 * kBlock);
  writer.Bye();
  puppet->Tell("quit");
  EXPECT_EQ(puppet->Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
  EXPECT_EQ(Ends(SessionEnd::kHangup), 1u);
}

TEST_F(ReaperTest, SigkillWithLeasesLeavesNothing) {
  std::vector<std::unique_ptr<Puppet>> puppets;
  for (int i = 0; i < 20; ++i) puppets.push_back(Client(i % 2 == 0 ? "" : "engine"));
  StartServer();
  PutFour();
  for (auto& puppet : puppets) {
    ASSERT_EQ(puppet->Ask("connect"), "ok");
    ASSERT_EQ(puppet->Ask("lease"), "4");
  }
  EXPECT_EQ(Stats().leased_bytes, puppets.size() * 4 * kBlock);
  for (auto& puppet : puppets) puppet->Kill();
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
  const CacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.leases, 0u);
  EXPECT_EQ(stats.index.doomed, 0u);
}

TEST_F(ReaperTest, AForkedChildThatKeepsTheSocketKeepsNoDeadParentsSession) {
  auto puppet = Client("");
  StartServer();
  PutFour();
  ASSERT_EQ(puppet->Ask("connect"), "ok");
  ASSERT_EQ(puppet->Ask("lease"), "4");
  ASSERT_EQ(puppet->Ask("fork"), "ok");
  puppet->Kill();  // the child lives on, with the socket
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
  EXPECT_EQ(Ends(SessionEnd::kProcessExit), 1u);
}

TEST_F(ReaperTest, LeasesOfADeadSchedulerWaitForTheWorkersOfItsEngine) {
  auto scheduler = Client("engine");
  auto worker = Client("engine", 4 * kMiB);
  auto stranger = Client("another engine", 4 * kMiB);
  StartServer();
  PutFour();
  ASSERT_EQ(scheduler->Ask("connect"), "ok");
  ASSERT_EQ(worker->Ask("connect"), "ok");
  ASSERT_EQ(stranger->Ask("connect"), "ok");
  ASSERT_EQ(scheduler->Ask("lease"), "4");
  EXPECT_EQ(Stats().staging_bytes, 10 * kMiB);
  scheduler->Kill();
  // Its staging is its own: that it is gone says that the exit was seen.
  EXPECT_TRUE(Eventually([&] { return Stats().staging_bytes == 8 * kMiB; }));
  EXPECT_EQ(Stats().quarantined_bytes, 4 * kBlock);
  stranger->Kill();
  EXPECT_TRUE(Eventually([&] { return Stats().staging_bytes == 4 * kMiB; }));
  EXPECT_EQ(Stats().quarantined_bytes, 4 * kBlock);
  worker->Kill();
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
}

TEST_F(ReaperTest, AWorkerThatSaidByeIsStillWaitedForWhileItIsKnown) {
  // The worker's connection ends first (without BYE, so it is known), then the scheduler dies.
  auto scheduler = Client("engine");
  auto worker = Client("engine", 4 * kMiB);
  StartServer();
  PutFour();
  ASSERT_EQ(scheduler->Ask("connect"), "ok");
  ASSERT_EQ(worker->Ask("connect"), "ok");
  ASSERT_EQ(scheduler->Ask("lease"), "4");
  ASSERT_EQ(worker->Ask("close"), "ok");
  EXPECT_TRUE(Eventually([&] { return Stats().ended_sessions == 1; }));
  scheduler->Kill();
  EXPECT_TRUE(Eventually([&] { return Stats().staging_bytes == 4 * kMiB; }));
  EXPECT_EQ(Stats().quarantined_bytes, 4 * kBlock);
  worker->Kill();
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
}

TEST_F(ReaperTest, ALaterSessionSaysByeForAnEarlierOne) {
  StartServer();
  PutFour();
  RawClient first(options_.socket_path), live(options_.socket_path), later(options_.socket_path);
  const auto first_welcome = first.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB);
  const auto live_welcome = live.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB);
  ASSERT_TRUE(later.Hello().ok());
  ASSERT_EQ(first.Acquire(0, KeyChain(1, 4))->body.blocks, 4u);
  ASSERT_EQ(live.Acquire(0, KeyChain(1, 4))->body.blocks, 4u);
  first.Close();
  EXPECT_TRUE(Eventually([&] { return Stats().quarantined_bytes == 4 * kBlock; }));

  uint8_t wrong[16];
  std::memcpy(wrong, first_welcome->body.session_token, 16);
  wrong[15] ^= 1;
  later.Bye(first_welcome->body.session, wrong);
  later.Bye(123456, wrong);
  ASSERT_TRUE(later.Sync().ok());
  EXPECT_EQ(Stats().quarantined_bytes, 4 * kBlock);
  EXPECT_EQ(Stats().requests[static_cast<size_t>(local::Type::kBye)].failed, 2u);

  later.Bye(first_welcome->body.session, first_welcome->body.session_token);
  ASSERT_TRUE(later.Sync().ok());
  EXPECT_EQ(Stats().quarantined_bytes, 0u);
  EXPECT_EQ(Stats().ended_sessions, 0u);
  EXPECT_EQ(Stats().leased_bytes, 4 * kBlock);

  // One that is still connected is closed by it.
  later.Bye(live_welcome->body.session, live_welcome->body.session_token);
  EXPECT_TRUE(live.ReceiveEnd());
  // Its leases end after it is out of the list.
  EXPECT_TRUE(Eventually([&] { return Stats().sessions == 1 && Stats().leased_bytes == 0; }));
  EXPECT_EQ(Stats().ended_sessions, 0u);
  EXPECT_EQ(Ends(SessionEnd::kBye), 2u);  // and the writer's
}

TEST_F(ReaperTest, ByeIsHeardThoughAnswersStayUnread) {
  StartServer();
  PutFour();
  const uint64_t byes = Ends(SessionEnd::kBye);
  for (uint64_t i = 1; i <= 100; ++i) {
    RawClient client(options_.socket_path);
    ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
    ASSERT_EQ(client.Acquire(0, KeyChain(1, 4))->body.blocks, 4u);
    for (int n = 0; n < 3; ++n) client.Send(local::Builder(local::Type::kSync, 1).Finish());
    client.Bye();
    client.Close();
    EXPECT_TRUE(Eventually([&] { return Ends(SessionEnd::kBye) == byes + i; }));
  }
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
  EXPECT_EQ(Ends(SessionEnd::kHangup), 0u);
}

TEST_F(ReaperTest, ConnectLeaseCloseLoopsAreCapped) {
  options_.lease_bytes_per_process = 6 * kBlock;
  options_.max_ended_per_process = 5;
  options_.staging_bytes_per_process = 6 * kMiB;
  StartServer();
  PutFour();
  // Ended sessions that hold nothing are forgotten at once.
  for (int i = 0; i < 20; ++i) {
    RawClient client(options_.socket_path);
    ASSERT_TRUE(client.Hello().ok());
  }
  EXPECT_TRUE(Eventually([&] { return Stats().ended_sessions == 0 && Stats().sessions == 0; }));
  uint64_t granted = 0;
  for (int i = 0; i < 5; ++i) {
    RawClient client(options_.socket_path);
    const auto welcome = client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB);
    ASSERT_TRUE(welcome.ok()) << welcome.status();
    EXPECT_EQ(welcome->body.staging_bytes, i < 3 ? 2 * kMiB : 0);
    granted += client.Acquire(0, KeyChain(1, 4))->body.blocks;
    client.Close();
    EXPECT_TRUE(Eventually([&] { return Stats().ended_sessions == static_cast<uint64_t>(i) + 1; }));
  }
  EXPECT_EQ(granted, 6u);
  EXPECT_EQ(Stats().quarantined_bytes, 6 * kBlock);
  RawClient refused(options_.socket_path);
  const auto packet = refused.Receive();  // without a HELLO: refused at the door
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(local::ParseError(packet->bytes).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Refusals(Refusal::kEndedOfProcess), 1u);
}

TEST_F(ReaperTest, WithoutPidfdsQuarantineEndsByTheClock) {
  options_.pidfd_source = PidfdSource::kNone;
  options_.no_pidfd_nanos = 30'000'000;
  auto puppet = Client("");
  StartServer();
  PutFour();
  ASSERT_EQ(puppet->Ask("connect"), "ok");
  ASSERT_EQ(puppet->Ask("lease"), "4");
  ASSERT_EQ(puppet->Ask("close"), "ok");
  EXPECT_TRUE(Eventually([&] { return Stats().quarantined_bytes == 4 * kBlock; }));
  puppet->Kill();
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
}

TEST_F(ReaperTest, PidfdsOpenedByNumber) {
  options_.pidfd_source = PidfdSource::kOpen;
  auto puppet = Client("");
  StartServer();
  PutFour();
  ASSERT_EQ(puppet->Ask("connect"), "ok");
  ASSERT_EQ(puppet->Ask("lease"), "4");
  ASSERT_EQ(puppet->Ask("fork"), "ok");
  puppet->Kill();
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
}

TEST_F(ReaperTest, APutGoesOnThoughItsClientDies) {
  auto puppet = std::make_unique<Puppet>([path = options_.socket_path](Puppet::Strings& strings) {
    strings.Listen();
    RawClient client(path);
    KV_CHECK(client.Hello({OpaqueNamespace("m", kMiB)}, 64 * kMiB).ok());
    const std::vector<BlockKey> keys = KeyChain(1, 64);
    std::vector<uint64_t> offsets;
    for (size_t i = 0; i < keys.size(); ++i) {
      offsets.push_back(i * kMiB);
      FillBlock(0, keys[i], client.staging().subspan(i * kMiB, kMiB));
    }
    strings.Say("ready");
    strings.Listen();
    local::KeysBody body;
    body.keys = 64;
    body.key_bytes = 32;
    local::Builder builder(local::Type::kPut, 1);
    builder.Add(body).AddKeys(keys, 32).AddBytes(offsets.data(), offsets.size() * 8);
    client.Send(std::move(builder).Finish());
    ::_exit(0);  // at once: nobody waits for the answer
  });
  StartServer();
  ASSERT_EQ(puppet->Ask("connect"), "ready");
  puppet->Tell("go");
  EXPECT_EQ(puppet->Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return NothingLeft(); }));
  const std::vector<BlockKey> keys = KeyChain(1, 64);
  RawClient reader(options_.socket_path);
  ASSERT_TRUE(reader.Hello({OpaqueNamespace("m", kMiB)}).ok());
  const auto grant = reader.Acquire(0, keys);
  ASSERT_EQ(grant->body.blocks, 64u);
  for (size_t i = 0; i < keys.size(); ++i)
    EXPECT_TRUE(IsBlock(0, keys[i], reader.Block(*grant, i)));
}

TEST_F(ReaperTest, DroppedChunksWaitForThoseWhoMapThem) {
  auto puppet = Client("");  // connects, and never answers a POOL_DROP
  cache_options_.arena.capacity_bytes = 128 * kMiB;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kMiB)}, 32 * kMiB).ok());
  for (uint64_t chain = 0; chain < 4; ++chain) {
    ASSERT_THAT(*client.PutBlocks(0, kMiB, KeyChain(chain, 32)), Each(kStored));
  }
  ASSERT_EQ(puppet->Ask("connect"), "ok");
  ASSERT_TRUE(client.Sync().ok());
  ASSERT_THAT(client.chunks(), SizeIs(4));
  ASSERT_TRUE(Eventually([&] { return Stats().pool_adds == 8; }));  // WELCOME comes before them
  const auto grant = client.Acquire(0, std::span<const BlockKey>(KeyChain(3, 32)).first(1));
  ASSERT_EQ(grant->body.blocks, 1u);

  ASSERT_EQ(cache_->Resize(32 * kMiB), absl::OkStatus());
  // Idle clients hear of it too. A chunk with a leased block stays until the lease ends.
  EXPECT_TRUE(Eventually([&] { return client.Sync().ok() && client.dropped().size() >= 2; }));
  client.Release(std::vector<uint64_t>{grant->body.lease});
  EXPECT_TRUE(Eventually([&] { return client.Sync().ok() && client.dropped().size() == 3; }));
  EXPECT_EQ(cache_->Stats().arena.draining_bytes, 96 * kMiB);
  for (const uint64_t chunk : std::vector<uint64_t>(client.dropped())) client.PoolDropped(chunk);
  ASSERT_EQ(*client.Sync(), 1u);
  // The other still maps them.
  EXPECT_EQ(cache_->Stats().arena.draining_bytes, 96 * kMiB);
  EXPECT_TRUE(Eventually([&] { return Stats().pool_drops == 6; }));
  EXPECT_EQ(Stats().chunks_forgotten, 0u);
  puppet->Kill();
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().arena.draining_bytes == 0; }));
  EXPECT_EQ(Stats().chunks_forgotten, 3u);
}

TEST_F(ReaperTest, AnIdleClientHearsOfNewAndOldChunks) {
  StartServer();
  RawClient idle(options_.socket_path), writer(options_.socket_path);
  ASSERT_TRUE(idle.Hello({OpaqueNamespace("m", kMiB)}).ok());
  ASSERT_TRUE(writer.Hello({OpaqueNamespace("m", kMiB)}, 32 * kMiB).ok());
  ASSERT_THAT(*writer.PutBlocks(0, kMiB, KeyChain(1, 8)), Each(kStored));
  const auto added = idle.Receive();  // unasked, within a tick
  ASSERT_TRUE(added.has_value());
  EXPECT_EQ(added->type(), local::Type::kPoolAdd);
  EXPECT_EQ(added->header().request, 0u);
  EXPECT_THAT(added->fds, SizeIs(1));
}

TEST_F(ReaperTest, StopEndsLiveSessionsAndLetsGoOfAll) {
  StartServer();
  PutFour();
  RawClient client(options_.socket_path), gone(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(gone.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_EQ(client.Acquire(0, KeyChain(1, 4))->body.blocks, 4u);
  ASSERT_EQ(gone.Acquire(0, KeyChain(1, 4))->body.blocks, 4u);
  gone.Close();
  EXPECT_TRUE(Eventually([&] { return Stats().ended_sessions == 1; }));
  server_->Stop();
  EXPECT_TRUE(client.ReceiveEnd());
  EXPECT_EQ(Ends(SessionEnd::kStop), 1u);
  EXPECT_EQ(cache_->Stats().leased_bytes, 0u);
  EXPECT_EQ(Stats().staging_bytes, 0u);
}

}  // namespace
}  // namespace kvarve::testing
