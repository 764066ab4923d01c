// Goal: a chunk is mapped exactly as long as the map or a holder needs it, and the daemon hears of
// its unmapping once, on the session that asked. Method: the process's own list of mappings.
#include "client/cpp/pool_map.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/connection.h"
#include "client/cpp/endpoint.h"
#include "client/cpp/fake_daemon_testing.h"
#include "client/local/messages.h"

namespace kvarve::client {
namespace {

constexpr uint64_t kBytes = 1 << 16;

// How often memory named so is mapped here, with the flags that smaps shows.
int Mapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != line.npos ? 1 : 0;
  return count;
}

struct Sent {
  std::vector<local::Type> types;
  std::vector<std::string> messages;
};
Sent FlushAll(Outbox& outbox) {
  Sent sent;
  outbox.Flush([&](std::string_view message) {
    const std::span<const uint8_t> packet(reinterpret_cast<const uint8_t*>(message.data()),
                                          message.size());
    sent.types.push_back(static_cast<local::Type>(local::ParseHeader(packet)->type));
    sent.messages.emplace_back(message);
    return absl::OkStatus();
  });
  return sent;
}

struct Fixture {
  std::shared_ptr<Outbox> outbox = std::make_shared<Outbox>();
  std::shared_ptr<Session> session = std::make_shared<Session>();
  PoolMap pools{outbox, session};
  UniqueFd fd = MakeMemory(kBytes);
  Fixture() { outbox->Begin(session); }
};

TEST(PoolMap, DroppedWithoutHolderIsUnmappedAndToldAtOnce) {
  Fixture f;
  ASSERT_TRUE(f.pools.Add(5, kBytes, f.fd.get()).ok());
  ASSERT_TRUE(f.pools.Add(5, kBytes, f.fd.get()).ok());  // announced again
  EXPECT_EQ(Mapped("kvarve-test"), 1);
  EXPECT_EQ(f.pools.Find(5)->bytes(), kBytes);
  EXPECT_EQ(f.pools.Find(6), nullptr);
  EXPECT_TRUE(f.outbox->empty());
  f.pools.Drop(5);
  EXPECT_EQ(Mapped("kvarve-test"), 0);
  EXPECT_EQ(f.pools.Find(5), nullptr);
  EXPECT_EQ(FlushAll(*f.outbox).types, std::vector{local::Type::kPoolDropped});
  EXPECT_TRUE(FlushAll(*f.outbox).types.empty());
}

TEST(PoolMap, AHolderKeepsADroppedChunk) {
  Fixture f;
  ASSERT_TRUE(f.pools.Add(5, kBytes, f.fd.get()).ok());
  std::shared_ptr<const ChunkMapping> holder = f.pools.Find(5);
  f.pools.Drop(5);
  EXPECT_EQ(f.pools.Find(5), nullptr);
  EXPECT_EQ(Mapped("kvarve-test"), 1);
  EXPECT_TRUE(FlushAll(*f.outbox).types.empty());
  ASSERT_EQ(::pwrite(f.fd.get(), "x", 1, 9), 1);
  EXPECT_EQ(holder->data()[9], std::byte{'x'});
  holder = nullptr;
  EXPECT_EQ(Mapped("kvarve-test"), 0);
  EXPECT_EQ(FlushAll(*f.outbox).types, std::vector{local::Type::kPoolDropped});
}

TEST(PoolMap, TheEndUnmapsWhatNobodyHoldsAndOwesNothing) {
  Fixture f;
  const UniqueFd other = MakeMemory(kBytes);
  ASSERT_TRUE(f.pools.Add(5, kBytes, f.fd.get()).ok());
  ASSERT_TRUE(f.pools.Add(6, kBytes, other.get()).ok());
  std::shared_ptr<const ChunkMapping> holder = f.pools.Find(6);
  f.pools.Clear();
  EXPECT_EQ(Mapped("kvarve-test"), 1);
  f.outbox->End();
  holder = nullptr;
  EXPECT_EQ(Mapped("kvarve-test"), 0);
  f.outbox->Begin(std::make_shared<Session>());
  const Sent sent = FlushAll(*f.outbox);
  EXPECT_EQ(sent.types, std::vector{local::Type::kBye});  // of the earlier session: no view is left
}

TEST(PoolMap, ADroppedChunkOfAnEarlierSessionIsNotTold) {
  Fixture f;
  ASSERT_TRUE(f.pools.Add(5, kBytes, f.fd.get()).ok());
  std::shared_ptr<const ChunkMapping> holder = f.pools.Find(5);
  f.session->users.fetch_add(1);  // as a view does
  f.pools.Drop(5);
  f.outbox->End();
  f.outbox->Begin(std::make_shared<Session>());
  holder = nullptr;
  EXPECT_TRUE(FlushAll(*f.outbox).types.empty());
}

TEST(PoolMap, UnknownDropsAreAnswered) {
  Fixture f;
  f.pools.Drop(77);
  EXPECT_EQ(FlushAll(*f.outbox).types, std::vector{local::Type::kPoolDropped});
}

TEST(PoolMap, MemoryThatCouldShrinkIsRefused) {
  Fixture f;
  const UniqueFd open = MakeMemory(kBytes, /*sealed=*/false);
  EXPECT_EQ(f.pools.Add(1, kBytes, open.get()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(f.pools.Add(1, kBytes + 1, f.fd.get()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(f.pools.Add(1, 0, f.fd.get()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Mapped("kvarve-test"), 0);
}

// ---- What is owed to the daemon.

TEST(Outbox, LeasesOfThisSessionAreReleasedInBatches) {
  Outbox outbox;
  const auto session = std::make_shared<Session>();
  outbox.Begin(session);
  const size_t count = local::kMaxLeasesPerRelease + 3;
  for (size_t i = 1; i <= count; ++i) {
    session->users.fetch_add(1);
    outbox.EndView(session.get(), i);
  }
  EXPECT_FALSE(outbox.empty());
  const Sent sent = FlushAll(outbox);
  ASSERT_EQ(sent.types, (std::vector{local::Type::kRelease, local::Type::kRelease}));
  EXPECT_EQ(sent.messages[1].size(), sizeof(local::Header) + 8 + 3 * 8);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(session->users.load(), 0);
}

TEST(Outbox, WhatCannotBeSentStaysOwed) {
  Outbox outbox;
  const auto session = std::make_shared<Session>();
  outbox.Begin(session);
  outbox.EndLease(session.get(), 4);
  outbox.Unmapped(session.get(), 9);
  outbox.Flush([](std::string_view) { return absl::ResourceExhaustedError("full"); });
  EXPECT_FALSE(outbox.empty());
  EXPECT_EQ(FlushAll(outbox).types,
            (std::vector{local::Type::kRelease, local::Type::kPoolDropped}));
}

// Nobody has noticed yet that the daemon is gone: the send does, and ends the connection, while the
// outbox is being emptied.
TEST(Outbox, ASendMayFindThatTheConnectionHasEnded) {
  char folder[] = "/tmp/kvarve-outbox-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s";
  auto daemon = std::make_unique<FakeDaemon>(path, FakeDaemon::Options());
  const auto outbox = std::make_shared<Outbox>();
  Connection::Params params;
  params.endpoint = *ParseEndpoint("unix://" + path);
  params.timeout_nanos = 60'000'000'000;
  const absl::StatusOr<std::unique_ptr<Connection>> connection =
      Connection::Connect(params, outbox);
  ASSERT_TRUE(connection.ok()) << connection.status();
  outbox->Begin((*connection)->session());
  outbox->EndLease((*connection)->session().get(), 7);
  daemon = nullptr;
  outbox->Flush([&](std::string_view message) { return (*connection)->SendOnly(message); });
  EXPECT_TRUE((*connection)->broken());
  EXPECT_FALSE(outbox->empty());  // until the link has seen it
  ::rmdir(folder);
}

TEST(Outbox, ByeWaitsForTheLastUserAndNamesTheSession) {
  Outbox outbox;
  const auto first = std::make_shared<Session>();
  first->id = 3;
  first->incarnation = 8;
  first->token.fill(0xab);
  outbox.Begin(first);
  first->users.fetch_add(1);
  ASSERT_TRUE(outbox.AddGrant(first, 50));
  outbox.End();
  const auto second = std::make_shared<Session>();
  second->id = 4;
  second->incarnation = 8;
  outbox.Begin(second);
  EXPECT_TRUE(FlushAll(outbox).types.empty());
  outbox.EndView(first.get(), 7);
  EXPECT_TRUE(FlushAll(outbox).types.empty());  // the grant is still out
  outbox.EndById(50);
  const Sent sent = FlushAll(outbox);
  ASSERT_EQ(sent.types, std::vector{local::Type::kBye});
  EXPECT_EQ(sent.messages[0].substr(sizeof(local::Header)),
            std::string("\3\0\0\0\0\0\0\0", 8) + std::string(16, '\xab'));
  EXPECT_TRUE(FlushAll(outbox).types.empty());
}

TEST(Outbox, ASuccessorDaemonIsToldNothingOfItsPredecessor) {
  Outbox outbox;
  const auto first = std::make_shared<Session>();
  first->incarnation = 8;
  outbox.Begin(first);
  ASSERT_TRUE(outbox.AddGrant(first, 50));
  outbox.End();
  const auto second = std::make_shared<Session>();
  second->incarnation = 9;
  outbox.Begin(second);
  EXPECT_TRUE(FlushAll(outbox).types.empty());
  ASSERT_TRUE(outbox.AddGrant(second, 50));  // the same number, another lease
  outbox.EndById(50);
  EXPECT_EQ(FlushAll(outbox).types, std::vector{local::Type::kRelease});
}

TEST(Outbox, RemembersABoundedNumberOfGrants) {
  Outbox outbox;
  const auto session = std::make_shared<Session>();
  outbox.Begin(session);
  for (size_t i = 1; i <= Outbox::kMaxGrants; ++i) ASSERT_TRUE(outbox.AddGrant(session, i));
  EXPECT_FALSE(outbox.AddGrant(session, Outbox::kMaxGrants + 1));
  outbox.EndById(1);
  EXPECT_TRUE(outbox.AddGrant(session, Outbox::kMaxGrants + 1));
}

}  // namespace
}  // namespace kvarve::client
