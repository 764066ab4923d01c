// Goal: what a daemon does wrong costs a client its answers and nothing else: no wrong answer, no
// crash, no hang beyond the time-out, and it recovers by itself. Method: the small daemon, told to
// hang, lie, answer late, hang up, be replaced; time-outs are a minute where they must not strike
// and half a second where they must.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "client/cpp/client.h"
#include "client/cpp/fake_daemon_testing.h"
#include "client/cpp/faults_fixture_testing.h"
#include "client/local/socket.h"

namespace kvarve {
namespace {

using local::Builder;
using local::Header;
using local::Type;
using ::testing::HasSubstr;
using Packet = std::span<const uint8_t>;
using Peer = FakeDaemon::Peer;

// Strikes where nothing answers; what is answered takes less on a busy machine, too.
constexpr int64_t kShort = 500'000'000;

bool Is(const Header& header, Type type) { return header.type == static_cast<uint16_t>(type); }

template <typename Body>
std::string Plain(Type type, uint64_t request, const Body& body) {
  return std::move(Builder(type, request).Add(body)).Finish();
}

TEST_F(FaultsTest, AHangOpensTheBreakerAndAnAnswerClosesIt) {
  options_.timeout_nanos = kShort;
  StartDaemon();
  Connect();
  std::atomic<bool> hang = true;
  std::atomic<int> lookups = 0;
  daemon_->SetHook([&](Peer&, const Header& header, Packet) {
    lookups += Is(header, Type::kLookup) ? 1 : 0;
    return hang.load();
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Lookup().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client_->State().breaker_open);
  EXPECT_EQ(client_->State().timeouts, 3u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Lookup().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) {
    const auto probes = seen.packets.find(Type::kSync);
    return probes != seen.packets.end() && probes->second > 0;
  }));
  EXPECT_EQ(lookups.load(), 3);
  EXPECT_TRUE(client_->State().connected);
  hang = false;
  while (client_->State().breaker_open) {
  }
  EXPECT_TRUE(Lookup().ok());
  EXPECT_EQ(client_->State().reconnects, 0u);
}

TEST_F(FaultsTest, TheEndOfTheConnectionFailsACallAtOnceAndTheClientJoinsAgain) {
  StartDaemon();
  Connect();
  PutOne(0);
  daemon_->SetHook([](Peer& peer, const Header& header, Packet) {
    if (!Is(header, Type::kLookup)) return false;
    ::shutdown(peer.socket.get(), SHUT_RDWR);
    return true;
  });
  EXPECT_EQ(Lookup().code(), absl::StatusCode::kUnavailable);  // not after a minute
  daemon_->SetHook(nullptr);
  ASSERT_TRUE(client_->WaitReady(kLong).ok());
  EXPECT_EQ(client_->State().reconnects, 1u);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 2))->hit_blocks, 1u);
}

TEST_F(FaultsTest, AnIdleClientNoticesTheEnd) {
  StartDaemon();
  Connect();
  daemon_->HangUp();
  WaitReconnected(1);
  EXPECT_TRUE(Lookup().ok());
}

TEST_F(FaultsTest, LateAnswersAreSkippedAndWhatTheyGaveIsGivenBack) {
  options_.timeout_nanos = kShort;
  options_.breaker_failures = 1000;
  StartDaemon();
  Connect();
  PutOne(0);
  // Answers are kept back until `delay` ends, then go out before the next one.
  std::vector<std::pair<Header, std::vector<uint8_t>>> delayed;
  std::atomic<bool> delay = true;
  daemon_->SetHook([&](Peer& peer, const Header& header, Packet packet) {
    if (!Is(header, Type::kLookup) && !Is(header, Type::kAcquire)) return false;
    if (delay) {
      delayed.emplace_back(header, std::vector<uint8_t>(packet.begin(), packet.end()));
      return true;
    }
    for (const auto& [late, bytes] : delayed) daemon_->Serve(peer, late, bytes);
    delayed.clear();
    return false;
  });
  const std::vector<BlockKey> hit = TestKeys(0, 1), miss = TestKeys(5, 1);
  EXPECT_EQ(client_->Lookup(ns_, hit, kLong).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client_->Acquire(ns_, hit).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client_->AcquireGrants(ns_, hit, 0).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  delay = false;
  absl::StatusOr<LookupResult> answer = client_->Lookup(ns_, miss);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->hit_blocks, 0u);  // not the late hit
  EXPECT_EQ(answer->hold, 0u);
  // The hold and both leases are released.
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.released.size() == 3; }));
  EXPECT_EQ(client_->State().reconnects, 0u);
}

TEST_F(FaultsTest, StagingOfAPutThatTimedOutIsBusyUntilItsAnswerComes) {
  options_.put_timeout_nanos = kShort;
  options_.breaker_failures = 1000;
  StartDaemon();
  Connect();
  std::pair<Header, std::vector<uint8_t>> put;
  daemon_->SetHook([&](Peer&, const Header& header, Packet packet) {
    if (!Is(header, Type::kPut)) return false;
    put = {header, std::vector<uint8_t>(packet.begin(), packet.end())};
    return true;
  });
  const std::vector<BlockKey> keys = TestKeys(0, 1);
  Staging staging = *client_->Stage(kBlock);
  std::memcpy(staging.data(), TestBlock(0).data(), kBlock);
  EXPECT_EQ(client_->PutStaged(ns_, {.keys = keys}, std::move(staging)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client_->Stage(4 * kBlock).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(client_->Stage(3 * kBlock).ok());
  daemon_->SetHook([&](Peer& peer, const Header& header, Packet) {
    if (Is(header, Type::kLookup)) daemon_->Serve(peer, put.first, put.second);
    return false;
  });
  EXPECT_EQ(client_->Lookup(ns_, keys)->hit_blocks, 1u);  // the daemon finished it
  EXPECT_TRUE(client_->Stage(4 * kBlock).ok());
}

// An answer that the mailbox has no room for comes by the socket, before or after the word of it.
TEST_F(FaultsTest, AnswersBySocketToCallsByMailbox) {
  StartDaemon({.answers_by_socket = true});
  Connect();
  for (uint64_t i = 0; i < 5; ++i) {
    PutOne(i);
    ASSERT_EQ(client_->Lookup(ns_, TestKeys(0, 6))->hit_blocks, i + 1);
    const absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(i, 1));
    ASSERT_TRUE(view.ok()) << view.status();
    ASSERT_EQ(view->size(), 1u);
    EXPECT_EQ(std::memcmp(view->block(0), TestBlock(i).data(), kBlock), 0);
  }
  EXPECT_TRUE(client_->Stage(4 * kBlock).ok());
  EXPECT_EQ(client_->State().reconnects, 0u);
  EXPECT_EQ(client_->State().timeouts, 0u);
}

// A call that ran out of time before the daemon began it is taken out of the mailbox: it is not
// done later, behind what the client sent since, and its staging is free at once.
TEST_F(FaultsTest, ACallThatTheDaemonDidNotBeginIsNeverDone) {
  if (std::getenv("KVARVE_TEST_MAILBOX") == nullptr) return;  // on a socket it is on its way
  options_.put_timeout_nanos = kShort;
  options_.breaker_failures = 1000;
  StartDaemon();
  Connect();
  std::promise<void> begun, go_on;
  daemon_->SetHook([&](Peer&, const Header& header, Packet) {
    if (!Is(header, Type::kTouch)) return false;
    begun.set_value();
    go_on.get_future().wait();
    return false;
  });
  ClientOptions others = options_;
  others.timeout_nanos = kLong;
  const auto other = *Client::Create(others);
  const ClientNamespace other_ns = *other->OpenNamespace(TestDescriptor("m"));
  ASSERT_TRUE(other->WaitReady(kLong).ok());
  std::thread busy([&] { EXPECT_TRUE(other->Touch(other_ns, TestKeys(9, 1), 1).ok()); });
  begun.get_future().wait();
  const std::vector<BlockKey> keys = TestKeys(0, 1);
  Staging staging = *client_->Stage(kBlock);
  EXPECT_EQ(client_->PutStaged(ns_, {.keys = keys}, std::move(staging)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client_->Stage(4 * kBlock).ok());
  go_on.set_value();
  busy.join();
  EXPECT_EQ(client_->Lookup(ns_, keys)->hit_blocks, 0u);
  EXPECT_EQ(daemon_->seen().packets[Type::kPut], 0);
}

TEST_F(FaultsTest, StagingIsAnewAfterAReconnect) {
  StartDaemon();
  Connect();
  Staging before = *client_->Stage(kBlock);
  daemon_->HangUp();
  WaitReconnected(1);
  std::memset(before.data(), 1, kBlock);  // still memory
  const std::vector<BlockKey> keys = TestKeys(0, 1);
  EXPECT_EQ(client_->PutStaged(ns_, {.keys = keys}, std::move(before)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client_->Stage(4 * kBlock).ok());
}

TEST_F(FaultsTest, AnotherVersionIsNotJoinedAndSaysSo) {
  StartDaemon({.edit_welcome = [](local::Welcome& welcome) { welcome.body.version = 9; }});
  client_ = *Client::Create(options_);
  while (client_->State().last_error.empty()) {
    ASSERT_EQ(client_->WaitReady(kShort).code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_THAT(client_->State().last_error, HasSubstr("speaks version 9"));
  StartDaemon();
  EXPECT_TRUE(client_->WaitReady(kLong).ok());
}

TEST_F(FaultsTest, ARefusalOfHelloIsTold) {
  StartDaemon();
  daemon_->SetHook([](Peer& peer, const Header& header, Packet) {
    FakeDaemon::Reply(
        peer, local::BuildError(header.request, absl::PermissionDeniedError("uid 7 may not")));
    return true;
  });
  client_ = *Client::Create(options_);
  while (client_->State().last_error.empty()) {
    ASSERT_EQ(client_->WaitReady(kShort).code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_THAT(client_->State().last_error, HasSubstr("uid 7 may not"));
}

TEST_F(FaultsTest, ARefusedNamespaceAnswersItsRefusal) {
  StartDaemon();
  Connect();
  daemon_->SetHook([](Peer& peer, const Header& header, Packet) {
    if (!Is(header, Type::kOpenNamespace)) return false;
    FakeDaemon::Reply(peer,
                      local::BuildError(header.request, absl::ResourceExhaustedError("too many")));
    return true;
  });
  const ClientNamespace refused = *client_->OpenNamespace(TestDescriptor("other"));
  EXPECT_EQ(client_->Lookup(refused, TestKeys(0, 1)).status(),
            absl::ResourceExhaustedError("too many"));
  EXPECT_EQ(client_->WaitReady(kLong).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Lookup().ok());
  daemon_->SetHook(nullptr);
  daemon_->HangUp();
  WaitReconnected(1);
  EXPECT_TRUE(client_->Lookup(refused, TestKeys(0, 1)).ok());
}

TEST_F(FaultsTest, UnsealedMemoryIsNotMapped) {
  StartDaemon({.seal = false});
  client_ = *Client::Create(options_);
  while (client_->State().last_error.empty()) {
    ASSERT_EQ(client_->WaitReady(kShort).code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_THAT(client_->State().last_error, HasSubstr("sealed"));
}

std::string Raw(size_t bytes, std::mt19937_64* random) {
  std::string raw;
  for (size_t i = 0; i < bytes; ++i) raw += static_cast<char>((*random)());
  return raw;
}

TEST_F(FaultsTest, GarbageEndsTheConnectionAndNothingElse) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937_64 random(seed);
  StartDaemon();
  Connect();
  PutOne(0);
  using Answer = std::function<std::string(const Header&)>;
  const Answer answers[] = {
      [&](const Header&) { return Raw(1 + random() % 200, &random); },
      [&](const Header& h) { return Plain(Type::kGrant, h.request, local::GrantBody{}); },
      [&](const Header& h) {
        return Plain(Type::kLookupReply, h.request, local::LookupReplyBody{3, 0, 0});
      },
      [&](const Header& h) {
        return Plain(Type::kLookupReply, h.request, local::LookupReplyBody{1, 2, 0});
      },
      [&](const Header& h) { return Plain(Type::kLookupReply, h.request, uint32_t{0}); },
      [&](const Header& h) {
        return Plain(Type::kLookupReply, h.request + 5, local::LookupReplyBody{});
      },
      [&](const Header&) { return Plain(Type::kLookupReply, 0, local::LookupReplyBody{}); },
      [&](const Header&) {
        return Plain(Type::kPoolAdd, 0, local::PoolAddBody{9, 4096, 4096});
      },
      [&](const Header& h) { return Plain(Type::kHello, h.request, uint64_t{0}); },
      [&](const Header& h) {
        return Plain(Type::kError, h.request, local::ErrorBody{3, 9});
      },
      [&](const Header&) { return std::string(400'000, 'x'); },
  };
  uint64_t round = 0;
  for (const Answer& answer : answers) {
    daemon_->SetHook([&](Peer& peer, const Header& header, Packet) {
      if (!Is(header, Type::kLookup)) return false;
      FakeDaemon::Reply(peer, answer(header));
      return true;
    });
    const absl::Status status = Lookup();
    EXPECT_FALSE(status.ok()) << "answer " << round;
    EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    daemon_->SetHook(nullptr);
    if (status.code() == absl::StatusCode::kUnavailable) ++round;
    WaitReconnected(round);
    EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 2))->hit_blocks, 1u);
  }
}

TEST_F(FaultsTest, GarbageGrantsAndPutRepliesAreRefused) {
  StartDaemon();
  Connect();
  PutOne(0);
  const local::GrantBody grants[] = {
      {.lease = 0, .incarnation = 1, .block_bytes = kBlock, .blocks = 1},
      {.lease = 5, .incarnation = 1, .block_bytes = kBlock, .blocks = 0},
      {.lease = 5, .incarnation = 2, .block_bytes = kBlock, .blocks = 1},
      {.lease = 5, .incarnation = 1, .block_bytes = kBlock + 1, .blocks = 1},
      {.lease = 5, .incarnation = 1, .block_bytes = kBlock, .blocks = 2},
  };
  uint64_t round = 0;
  for (const local::GrantBody& body : grants) {
    daemon_->SetHook([&](Peer& peer, const Header& header, Packet) {
      if (!Is(header, Type::kAcquire)) return false;
      Builder reply(Type::kGrant, header.request);
      reply.Add(body);
      for (uint32_t i = 0; i < body.blocks; ++i) reply.Add(local::GrantItem{11, 0, 0});
      FakeDaemon::Reply(peer, std::move(reply).Finish());
      return true;
    });
    EXPECT_EQ(client_->Acquire(ns_, TestKeys(0, 1)).status().code(), absl::StatusCode::kUnavailable)
        << round;
    WaitReconnected(++round);
  }
  // A block outside its chunk is no crash, and its lease ends.
  daemon_->SetHook([&](Peer& peer, const Header& header, Packet) {
    if (!Is(header, Type::kAcquire)) return false;
    Builder reply(Type::kGrant, header.request);
    reply.Add(local::GrantBody{.lease = 5, .incarnation = 1, .block_bytes = kBlock, .blocks = 1});
    reply.Add(local::GrantItem{daemon_->chunk_id(), FakeDaemon::kChunkBytes - 1, 0});
    FakeDaemon::Reply(peer, std::move(reply).Finish());
    return true;
  });
  EXPECT_FALSE(client_->Acquire(ns_, TestKeys(0, 1)).ok());
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.released.size() == 1; }));
}

TEST_F(FaultsTest, ASuccessorDaemonIsJoinedWithNewHandlesAndViewsLiveOn) {
  StartDaemon();
  Connect();
  PutOne(0);
  absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(0, 1));
  ASSERT_EQ(view->size(), 1u);
  const GrantSet old = view->grants();
  StartDaemon({.incarnation = 2, .first_handle = 7});
  WaitReconnected(1);
  EXPECT_EQ(client_->State().incarnation, 2u);
  EXPECT_EQ(std::memcmp(view->block(0), TestBlock(0).data(), kBlock), 0);
  EXPECT_EQ(client_->Map(old).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 1))->hit_blocks, 0u);
  PutOne(3);
  EXPECT_EQ(client_->Acquire(ns_, TestKeys(3, 1))->size(), 1u);
  const size_t released = daemon_->seen().released.size();
  *view = View();  // the successor knows nothing of that lease or session
  EXPECT_TRUE(Lookup().ok());
  EXPECT_LE(daemon_->seen().released.size(), released + 1);
  EXPECT_TRUE(daemon_->seen().byes.empty());
}

TEST_F(FaultsTest, TheSameDaemonIsToldWhenNoViewOfAnEarlierSessionIsLeft) {
  StartDaemon();
  Connect();
  PutOne(0);
  absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(0, 1));
  const absl::StatusOr<GrantSet> grants = client_->AcquireGrants(ns_, TestKeys(0, 1), 0);
  ASSERT_TRUE(view.ok() && grants.ok());
  daemon_->HangUp();
  WaitReconnected(1);
  EXPECT_TRUE(Lookup().ok());
  *view = View();
  EXPECT_TRUE(Lookup().ok());
  EXPECT_TRUE(daemon_->seen().byes.empty());  // another process may still read the grants
  EXPECT_TRUE(daemon_->seen().released.empty());
  client_->Release(grants->lease);
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.byes.size() == 1; }));
  EXPECT_EQ(daemon_->seen().byes[0].first, 1u);
  EXPECT_EQ(daemon_->seen().byes[0].second, FakeDaemon::TokenOf(1));
  EXPECT_TRUE(daemon_->seen().released.empty());
}

int MappedChunks() {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  int count = 0;
  char line[512];
  while (std::fgets(line, sizeof(line), maps) != nullptr) {
    if (std::strstr(line, "kvarve-test") != nullptr &&
        std::strncmp(std::strchr(line, ' '), " r--s", 5) == 0) {
      ++count;
    }
  }
  std::fclose(maps);
  return count;
}

TEST_F(FaultsTest, TheEndUnmapsChunksThatNoViewHolds) {
  StartDaemon();
  Connect();
  PutOne(0);
  EXPECT_EQ(MappedChunks(), 1);
  absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(0, 1));
  ASSERT_EQ(view->size(), 1u);
  daemon_ = nullptr;
  while (client_->State().connected) {
  }
  EXPECT_EQ(MappedChunks(), 1);
  EXPECT_EQ(std::memcmp(view->block(0), TestBlock(0).data(), kBlock), 0);
  *view = View();
  EXPECT_EQ(MappedChunks(), 0);
}

// ---- fork

int WaitForExit(pid_t child) {
  int status = 0;
  KV_CHECK(::waitpid(child, &status, 0) == child);
  return status;
}

TEST_F(FaultsTest, AForkedChildsClientIsDeadAndTheParentsLives) {
  StartDaemon();
  Connect();
  PutOne(0);
  absl::StatusOr<View> view = client_->Acquire(ns_, TestKeys(0, 1));
  Staging staging = *client_->Stage(kBlock);
  const pid_t child = ::fork();
  if (child == 0) {
    const absl::StatusCode dead = absl::StatusCode::kFailedPrecondition;
    const bool all = client_->Lookup(ns_, TestKeys(0, 1)).status().code() == dead &&
                     client_->Acquire(ns_, TestKeys(0, 1)).status().code() == dead &&
                     client_->Map(view->grants()).status().code() == dead &&
                     client_->Stage(1).status().code() == dead &&
                     client_->OpenNamespace(TestDescriptor("x")).status().code() == dead &&
                     client_->WaitReady(kLong).code() == dead && !client_->State().connected;
    *view = View();
    staging = Staging();
    client_->Release(5);
    client_ = nullptr;
    ::_exit(all ? 0 : 1);
  }
  EXPECT_EQ(WaitForExit(child), 0);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 1))->hit_blocks, 1u);
  EXPECT_EQ(std::memcmp(view->block(0), TestBlock(0).data(), kBlock), 0);
  EXPECT_TRUE(daemon_->seen().released.empty());
  EXPECT_EQ(client_->State().reconnects, 0u);
}

TEST_F(FaultsTest, AChildThatOutlivesItsParentDoesNotKeepTheConnection) {
  int gate[2];  // the grandchild lives until this closes
  ASSERT_EQ(::pipe(gate), 0);
  const pid_t parent = ::fork();  // before this process has threads
  if (parent == 0) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options_);
    if (!client.ok() || !(*client)->WaitReady(kLong).ok()) ::_exit(1);
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      ::close(gate[1]);
      char byte;
      [[maybe_unused]] const ssize_t end = ::read(gate[0], &byte, 1);
      ::_exit(0);
    }
    ::_exit(0);  // without any destructor, as a killed process
  }
  ::close(gate[0]);
  StartDaemon();
  EXPECT_EQ(WaitForExit(parent), 0);
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) {
    const auto hellos = seen.packets.find(Type::kHello);
    return hellos != seen.packets.end() && hellos->second == 1 && seen.connections == 0;
  }));
  ::close(gate[1]);
}

}  // namespace
}  // namespace kvarve
