// Goal: a daemon that is killed and started again under remote clients costs them misses and no
// more: every client goes on by itself, no byte is wrong, no call outlasts its deadline. Method: a
// real kvarved as a process, 16 clients that put and get on threads of their own, SIGKILL at
// random, and SIGSTOP, after which nothing ends a call but its deadline; once in plaintext with a
// token, once in mutual TLS.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <thread>

#include "client/cpp/client.h"
#include "client/rpc/grpc_plane.h"
#include "storage/base/clock.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/test_certificates.h"

namespace kvarve {
namespace {

constexpr int kClients = 16;
constexpr int kKills = 4;
constexpr uint64_t kBlock = 128 << 10;
constexpr int64_t kTimeout = 3'000'000'000;
constexpr int64_t kPatience = 60'000'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

class RemoteRestartTest : public ::testing::TestWithParam<bool> {
 protected:
  RemoteRestartTest() {
    client::UseGrpc();
    if (tls()) {
      const Issued authority = testing::MakeAuthority("authority");
      testing::UseTls(&daemon_, authority);
      testing::WriteClient(daemon_, "client", authority);
    } else {
      daemon_.AddFlag("--rpc.token_file=" +
                      daemon_.Write("token", "a-token-of-the-test-0123456789\n"));
    }
  }
  static bool tls() { return GetParam(); }
  std::unique_ptr<Client> Connect() const {
    ClientOptions options;
    options.endpoint = (tls() ? "kvarves://" : "kvarve://") + daemon_.address();
    if (tls()) {
      options.tls = testing::TlsOf(daemon_, "client");
    } else {
      options.token_file = daemon_.folder() + "/token";
    }
    options.staging_bytes = 4 << 20;
    options.timeout_nanos = options.put_timeout_nanos = kTimeout;
    options.probe_interval_nanos = 100'000'000;
    return Client::Create(options).value();
  }

  testing::DaemonProcess daemon_;
};

// One client's life: puts and gets, counted; what comes is right.
struct Life {
  std::atomic<uint64_t> good{0}, refused{0}, late{0}, read{0}, wrong{0};
  std::atomic<int64_t> longest{0};  // call; each has one writer
  std::string address;

  template <typename Call>
  bool Do(Call call) {
    const int64_t begin = Now();
    const absl::Status status = call();
    longest = std::max<int64_t>(longest, Now() - begin);
    (status.ok() ? good : refused) += 1;
    if (absl::IsDeadlineExceeded(status)) {
      late += 1;
      EXPECT_TRUE(
          std::string(status.message()).starts_with(address + " did not answer in time (trace "))
          << status;
    }
    return status.ok();
  }
  void Round(Client& client, ClientNamespace ns, std::span<const BlockKey> keys) {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> sources;
    for (const BlockKey& key : keys) blocks.push_back(testing::MakeBlock(7, key, kBlock));
    for (const auto& block : blocks) sources.push_back(block.data());
    Do([&] {
      PutChain chain;
      chain.keys = keys;
      return client.Put(ns, chain, sources).status();
    });
    Do([&] { return client.Lookup(ns, keys).status(); });
    std::vector<std::byte> memory(keys.size() * kBlock);
    std::vector<std::byte*> to;
    for (size_t i = 0; i < keys.size(); ++i) to.push_back(&memory[i * kBlock]);
    size_t got = 0;
    Do([&] {
      const absl::StatusOr<size_t> found = client.Get(ns, keys, to);
      got = found.value_or(0);
      return found.status();
    });
    read += got;
    for (size_t i = 0; i < got; ++i) wrong += testing::IsBlock(7, keys[i], {to[i], kBlock}) ? 0 : 1;
  }
};

TEST_P(RemoteRestartTest, SixteenClientsGoOn) {
  daemon_.Start();
  std::vector<std::unique_ptr<Life>> lives;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t c = 0; c < kClients; ++c) {
    lives.push_back(std::make_unique<Life>());
    lives.back()->address = daemon_.address();
    threads.emplace_back([&, c, life = lives.back().get()] {
      const std::unique_ptr<Client> client = Connect();
      const ClientNamespace ns = *client->OpenNamespace(OpaqueNamespace("model", kBlock));
      for (uint64_t round = 0; !stop; ++round) {
        // Half of the chains are everybody's.
        life->Round(*client, ns, testing::KeyChain(round % 2 == 0 ? round % 8 : c + 100, 3));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  // Everybody got something since `before`.
  const auto all_go_on = [&](const std::vector<uint64_t>& before) {
    const int64_t until = Now() + kPatience;
    while (Now() < until) {
      bool all = true;
      for (size_t i = 0; i < lives.size(); ++i) all = all && lives[i]->good > before[i] + 3;
      if (all) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  };
  const auto good = [&] {
    std::vector<uint64_t> counts;
    for (const auto& life : lives) counts.push_back(life->good);
    return counts;
  };
  // Everybody's calls end, with an answer or without.
  const auto all_end_calls = [&](uint64_t count) {
    const auto ended = [](const auto& life) { return life->good + life->refused; };
    std::vector<uint64_t> begin;
    for (const auto& life : lives) begin.push_back(ended(life));
    const int64_t until = Now() + kPatience;
    for (size_t i = 0; i < lives.size() && Now() < until;) {
      if (ended(lives[i]) >= begin[i] + count) {
        ++i;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    return Now() < until;
  };
  testing::SeededRandom random(std::random_device{}());
  EXPECT_TRUE(all_go_on(good()));
  for (int kill = 0; kill < kKills; ++kill) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(100)));
    daemon_.Kill();
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(300)));
    const std::vector<uint64_t> before = good();
    daemon_.Start();
    EXPECT_TRUE(all_go_on(before)) << "after kill " << kill;
  }
  // A daemon that hangs: its connections stay, and it says nothing. It hangs until everybody's call
  // came back twice: once perhaps with an answer that was on its way.
  const std::vector<uint64_t> before = good();
  ASSERT_EQ(::kill(daemon_.pid(), SIGSTOP), 0);
  EXPECT_TRUE(all_end_calls(2)) << "while the daemon hangs";
  ASSERT_EQ(::kill(daemon_.pid(), SIGCONT), 0);
  EXPECT_TRUE(all_go_on(before)) << "after a hang";
  stop = true;
  for (std::thread& thread : threads) thread.join();
  uint64_t refused = 0, late = 0;
  int64_t longest = 0;
  for (const auto& life : lives) {
    EXPECT_EQ(life->wrong, 0u);
    EXPECT_GT(life->read, 0u);
    late += life->late;  // not of each: a read of which a part had come is a shorter one
    longest = std::max<int64_t>(longest, life->longest);
    refused += life->refused;
  }
  std::printf("the longest call took %.3f s of its %.3f\n", static_cast<double>(longest) / 1e9,
              static_cast<double>(kTimeout) / 1e9);
  EXPECT_LT(longest, 3 * kTimeout);  // a busy machine gets twice as much again
  EXPECT_GT(refused, 0u);            // the kills were felt
  EXPECT_GT(late, 0u);               // and the hang
  EXPECT_GE(longest, kTimeout);
}

INSTANTIATE_TEST_SUITE_P(Transports, RemoteRestartTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Tls" : "Token"; });

}  // namespace
}  // namespace kvarve
