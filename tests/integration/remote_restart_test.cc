// Goal: a daemon that is killed and started again under remote clients costs them misses and no
// more: every client goes on by itself, no byte is wrong, no call outlasts its deadline. Method: a
// real kvarved as a process, 16 clients that put and get on threads of their own, SIGKILL at
// random.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "client/cpp/client.h"
#include "client/rpc/grpc_plane.h"
#include "storage/base/clock.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/free_port.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"
#include "tests/integration/daemon_process.h"

namespace kvarve {
namespace {

constexpr int kClients = 16;
constexpr int kKills = 4;
constexpr uint64_t kBlock = 128 << 10;
constexpr int64_t kTimeout = 3'000'000'000;
// How far past its deadline a call may come back on a busy machine.
constexpr int64_t kSlack = 30'000'000'000;
constexpr int64_t kPatience = 120'000'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

class RemoteRestartTest : public ::testing::Test {
 protected:
  RemoteRestartTest() {
    client::UseGrpc();
    daemon_.AddFlag("--rpc.token_file=" +
                    daemon_.Write("token", "a-token-of-the-test-0123456789\n"));
  }
  std::unique_ptr<Client> Connect() const {
    ClientOptions options;
    options.endpoint = "kvarve://" + daemon_.address();
    options.token_file = daemon_.folder() + "/token";
    options.staging_bytes = 4 << 20;
    options.timeout_nanos = options.put_timeout_nanos = kTimeout;
    options.probe_interval_nanos = 100'000'000;
    return Client::Create(options).value();
  }

  testing::DaemonProcess daemon_;
};

// One client's life: puts and gets, counted; what comes is right.
struct Life {
  std::atomic<uint64_t> good{0}, refused{0}, wrong{0}, late{0};

  template <typename Call>
  bool Do(Call call) {
    const int64_t begin = Now();
    const absl::Status status = call();
    late += Now() - begin > kTimeout + kSlack ? 1 : 0;
    (status.ok() ? good : refused) += 1;
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
    for (size_t i = 0; i < got; ++i) wrong += testing::IsBlock(7, keys[i], {to[i], kBlock}) ? 0 : 1;
  }
};

TEST_F(RemoteRestartTest, SixteenClientsGoOn) {
  daemon_.Start();
  std::vector<std::unique_ptr<Life>> lives;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t c = 0; c < kClients; ++c) {
    lives.push_back(std::make_unique<Life>());
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
  stop = true;
  for (std::thread& thread : threads) thread.join();
  uint64_t refused = 0;
  for (const auto& life : lives) {
    EXPECT_EQ(life->wrong, 0u);
    EXPECT_EQ(life->late, 0u);
    refused += life->refused;
  }
  EXPECT_GT(refused, 0u);  // the kills were felt
}

}  // namespace
}  // namespace kvarve
