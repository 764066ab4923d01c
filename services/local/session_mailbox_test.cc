// What is the mailbox's own: the order between it and the socket, and what a client can do there
// that it cannot do on a socket. The other tests of the plane run by mailbox too
// (kv_tests_by_mailbox).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>
#include <thread>

#include "client/local/sealed_memory.h"
#include "services/local/session.h"
#include "services/local/testing/plane_fixture.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {
namespace {

using local::Builder;
using local::Type;

constexpr uint64_t kBlock = 64 * kKiB;
constexpr int64_t kMillis = 1'000'000;

class SessionMailboxTest : public PlaneFixture {
 protected:
  SessionMailboxTest() {
    ::setenv("KVARVE_TEST_MAILBOX", "1", 1);
    options_.tick_nanos = 3'600'000 * kMillis;  // a lost ring is not made good
    options_.poll_nanos = 0;
  }
  ~SessionMailboxTest() override { ::unsetenv("KVARVE_TEST_MAILBOX"); }
};

TEST_F(SessionMailboxTest, WhoDoesNotAskGetsNone) {
  ::unsetenv("KVARVE_TEST_MAILBOX");
  StartServer();
  RawClient client(options_.socket_path);
  EXPECT_EQ(client.Hello()->body.mailbox_bytes, 0u);
  EXPECT_EQ(client.mailbox(), nullptr);
}

TEST_F(SessionMailboxTest, ADaemonWithoutOneServesAllTheSame) {
  options_.offers_mailbox = false;
  StartServer();
  RawClient client(options_.socket_path);
  EXPECT_EQ(client.Hello()->body.mailbox_bytes, 0u);
  EXPECT_TRUE(client.Sync().ok());
}

// With one lease at most, a release that is taken after the call behind it makes that call fail.
TEST_F(SessionMailboxTest, APacketComesBeforeTheCallBehindIt) {
  options_.max_leases_per_session = 1;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_NE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB)->body.mailbox_bytes, 0u);
  const std::vector<BlockKey> keys = KeyChain(1, 1);
  ASSERT_TRUE(client.PutBlocks(0, kBlock, keys).ok());
  for (int i = 0; i < 3000; ++i) {
    const auto grant = client.Acquire(0, keys);
    ASSERT_TRUE(grant.ok());
    ASSERT_EQ(grant->body.blocks, 1u) << i;
    client.Release(std::vector<uint64_t>{grant->body.lease});
  }
}

// Grants name only chunks that are known by then, though those are announced on the socket.
TEST_F(SessionMailboxTest, AnAnnouncementComesBeforeTheGrantBehindIt) {
  StartServer();
  RawClient reader(options_.socket_path), writer(options_.socket_path);
  ASSERT_TRUE(reader.Hello({OpaqueNamespace("m", kBlock)}).ok());
  ASSERT_TRUE(writer.Hello({OpaqueNamespace("m", kBlock)}, 32 * kMiB).ok());
  for (uint64_t chain = 0; chain < 4; ++chain) {
    const std::vector<BlockKey> keys = KeyChain(chain, 512);  // 32 MiB: another chunk
    ASSERT_TRUE(writer.PutBlocks(0, kBlock, keys).ok());
    const auto grant = reader.Acquire(0, keys);
    ASSERT_EQ(grant->body.blocks, keys.size());
    for (size_t i = 0; i < keys.size(); i += 100) {
      std::vector<std::byte> expected(kBlock);
      FillBlock(0, keys[i], expected);
      ASSERT_EQ(reader.Block(*grant, i).size(), kBlock) << "chunk unknown";
      EXPECT_EQ(std::memcmp(reader.Block(*grant, i).data(), expected.data(), kBlock), 0);
    }
    reader.Release(std::vector<uint64_t>{grant->body.lease});
  }
  EXPECT_GE(reader.chunks().size(), 4u);
}

TEST_F(SessionMailboxTest, AnAnswerThatDoesNotFitComesByTheSocket) {
  options_.admin = [](std::string_view json, uid_t) -> absl::StatusOr<std::string> {
    return std::string(static_cast<size_t>(std::stoul(std::string(json))), 'x');
  };
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  constexpr size_t kHead = sizeof(local::Header) + sizeof(local::AdminBody);
  constexpr size_t kFits = local::Mailbox::kMaxMessageBytes - kHead;
  for (const size_t size : {kFits - 1, kFits, kFits + 1, size_t{300'000}, size_t{1}}) {
    EXPECT_EQ(*client.Admin(std::to_string(size)), std::string(size, 'x'));
  }
}

TEST_F(SessionMailboxTest, AMessageWithoutAnAnswerFreesTheMailbox) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  local::Mailbox& mailbox = *client.mailbox();
  mailbox.Post(std::move(Builder(Type::kRelease, 0).Add(local::ReleaseBody{})).Finish());
  while (!mailbox.has_answer()) mailbox.AwaitAnswer(3'600'000 * kMillis);
  std::vector<uint8_t> buffer(local::Mailbox::kMaxMessageBytes);
  EXPECT_EQ(*mailbox.TakeAnswer(buffer), 0u);
  EXPECT_TRUE(client.Sync().ok());
}

// A session that is busy with one request never sees a call that was taken back meanwhile.
TEST_F(SessionMailboxTest, WhatWasTakenBackIsNotDone) {
  std::promise<void> begun, go_on;
  options_.admin = [&](std::string_view, uid_t) -> absl::StatusOr<std::string> {
    begun.set_value();
    go_on.get_future().wait();
    return "{}";
  };
  StartServer();
  RawClient client(options_.socket_path), other(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(other.Hello({OpaqueNamespace("m", kBlock)}).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 1);
  ASSERT_TRUE(client.PutBlocks(0, kBlock, keys).ok());
  ASSERT_TRUE(client.Sync().ok());  // what was announced is read
  client.Send(
      std::move(Builder(Type::kAdmin, client.NextRequest()).Add(local::AdminBody{})).Finish());
  begun.get_future().wait();
  client.mailbox()->Post(
      std::move(Builder(Type::kInvalidate, client.NextRequest()).Add(local::InvalidateBody{}))
          .Finish());
  EXPECT_TRUE(client.mailbox()->Withdraw());
  go_on.set_value();
  EXPECT_EQ(client.Receive()->type(), Type::kAdminReply);
  ASSERT_TRUE(client.Sync().ok());  // whatever was sent before is done
  EXPECT_EQ(other.Lookup(0, keys)->hit_blocks, 1u);
}

TEST_F(SessionMailboxTest, GarbageCostsOnlyItsSession) {
  options_.max_ended_per_process = 1'000'000;
  StartServer();
  SeededRandom random(5);
  std::unique_ptr<RawClient> client;
  std::vector<uint8_t> buffer(local::Mailbox::kMaxMessageBytes);
  int answers = 0;
  for (int i = 0; i < 4000; ++i) {
    if (client == nullptr) {
      client = std::make_unique<RawClient>(options_.socket_path);
      ASSERT_TRUE(client->Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
    }
    client->mailbox()->Post(RandomPacket(&random));
    for (int looks = 0; client != nullptr && !client->mailbox()->has_answer(); ++looks) {
      ASSERT_LT(looks, 20'000);
      client->mailbox()->AwaitAnswer(kMillis);
      char byte;
      if (::recv(client->socket(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) client.reset();
    }
    if (client == nullptr) continue;
    ++answers;
    ASSERT_TRUE(client->mailbox()->TakeAnswer(buffer).ok());
  }
  EXPECT_GT(answers, 2000);
  EXPECT_GT(Ends(SessionEnd::kProtocol), 0u);  // some were malformed too often
  client.reset();
  RawClient good(options_.socket_path);
  ASSERT_TRUE(good.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  EXPECT_TRUE(good.PutBlocks(0, kBlock, KeyChain(9, 2)).ok());
  EXPECT_EQ(good.Lookup(0, KeyChain(9, 2))->hit_blocks, 2u);
}

// A client that closes with something unread resets the connection, which is told before what it
// had sent.
TEST_F(SessionMailboxTest, AllThatWasSentBeforeAResetIsServed) {
  StartServer();
  for (int i = 0; i < 50; ++i) {
    RawClient client(options_.socket_path);
    ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
    const std::vector<BlockKey> keys = KeyChain(1, 1);
    ASSERT_TRUE(client.PutBlocks(0, kBlock, keys).ok());
    const uint64_t first = client.Acquire(0, keys)->body.lease;
    const uint64_t second = client.Acquire(0, keys)->body.lease;
    client.Send(Builder(Type::kSync, client.NextRequest()).Finish());
    client.Release(std::vector<uint64_t>{first});
    client.Release(std::vector<uint64_t>{second});
    client.Bye();
    client.Close();
    client.mailbox()->RingForSocket();
    ASSERT_TRUE(Eventually([&] { return Ends(SessionEnd::kBye) == static_cast<uint64_t>(i) + 1; }))
        << i;
  }
  EXPECT_EQ(cache_->Stats().leases, 0u);
}

// Answers that wait for room in the socket do not keep the daemon from hearing a call, and its
// answer comes behind them.
TEST_F(SessionMailboxTest, ACallBehindAnswersThatWaitForRoom) {
  constexpr int kAnswers = 60;
  constexpr size_t kBytes = 200'000;  // together far more than a socket takes
  options_.max_queued_bytes = 64 * kMiB;
  options_.admin = [](std::string_view, uid_t) -> absl::StatusOr<std::string> {
    return std::string(kBytes, 'x');
  };
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  for (int i = 0; i < kAnswers; ++i) {
    client.Send(
        std::move(Builder(Type::kAdmin, client.NextRequest()).Add(local::AdminBody{})).Finish());
  }
  local::Mailbox& mailbox = *client.mailbox();
  mailbox.Post(Builder(Type::kSync, client.NextRequest()).Finish());
  for (int looks = 0; !mailbox.has_answer(); ++looks) {
    ASSERT_LT(looks, 20'000);
    mailbox.AwaitAnswer(kMillis);
  }
  EXPECT_FALSE(mailbox.has_answer_here());
  for (int i = 0; i < kAnswers; ++i) {
    std::optional<Packet> packet = client.Receive();
    while (packet->type() == Type::kPoolAdd) packet = client.Receive();
    ASSERT_EQ(packet->type(), Type::kAdminReply) << i;
  }
  std::optional<Packet> last = client.Receive();
  while (last->type() == Type::kPoolAdd) last = client.Receive();
  EXPECT_EQ(last->type(), Type::kSyncReply);
}

// Whatever a client writes into its mailbox, and however often: its session ends with its socket.
TEST_F(SessionMailboxTest, ALyingBellDoesNotKeepASessionAlive) {
  options_.tick_nanos = 20 * kMillis;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  auto* const words =
      static_cast<std::atomic<uint32_t>*>(*local::MapSealedMemory(client.mailbox_fd(), 4096));
  constexpr size_t kRingsForSocket = 3, kDaemonRings = 16, kDaemonSleeps = 17;
  const uint32_t rings = words[kRingsForSocket];
  std::atomic<bool> stop{false};
  std::thread liar([&] {
    while (!stop) {
      words[kRingsForSocket] = rings;
      words[kDaemonSleeps] = 0;
      ++words[kDaemonRings];
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  client.Close();
  EXPECT_TRUE(Eventually([&] { return Ends(SessionEnd::kHangup) == 1; }));
  stop = true;
  liar.join();
  ::munmap(words, 4096);
}

// A client whose socket ends without a ring is found at a tick; one that waits hears of the end.
TEST_F(SessionMailboxTest, TheEndIsSeenOnBothSides) {
  options_.tick_nanos = 20 * kMillis;
  StartServer();
  auto leaver = std::make_unique<RawClient>(options_.socket_path);
  ASSERT_TRUE(leaver->Hello().ok());
  leaver->Close();
  EXPECT_TRUE(Eventually([&] { return Ends(SessionEnd::kHangup) == 1; }));

  RawClient waiter(options_.socket_path);
  ASSERT_TRUE(waiter.Hello().ok());
  std::thread stopping([&] { server_.reset(); });
  waiter.mailbox()->AwaitAnswer(3'600'000 * kMillis);  // returns
  EXPECT_TRUE(waiter.ReceiveEnd());
  stopping.join();
}

}  // namespace
}  // namespace kvarve::testing
