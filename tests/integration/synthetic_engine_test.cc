// Goal: whatever processes of an engine die of, and whatever they do before, the daemon gets its
// memory back and publishes nothing half. Method: schedulers and workers as processes of their own,
// killed at seeded moments with leases and puts outstanding; the cache's own accounting; every
// published block compared with what its key says.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "services/local/testing/plane_fixture.h"
#include "storage/testing/block_generator.h"
#include "tests/integration/engine_roles.h"
#include "tests/integration/spawned.h"

namespace kvarve {
namespace {

using testing::EngineClient;
using testing::IsBlock;
using testing::JoinEngine;
using testing::kChainBlocks;
using testing::kEngineBlockBytes;
using testing::kEngineChains;
using testing::kEngineNs;
using testing::KeyChain;
using testing::PutRight;
using testing::Spawned;

// A sanitizer makes the start of a process many times dearer.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kKills = 20;
#else
constexpr int kKills = 100;
#endif

class SyntheticEngineTest : public testing::PlaneFixture {
 protected:
  SyntheticEngineTest() { cache_options_.arena.capacity_bytes = 64 * kMiB; }

  // The accounting of a daemon that nobody uses.
  ::testing::AssertionResult Idle() {
    return Eventually([&] {
      const CacheStats cache = cache_->Stats();
      const LocalStats local = Stats();
      return cache.leases == 0 && cache.leased_bytes == 0 && cache.quarantined_bytes == 0 &&
             cache.arena.draining_bytes == 0 && local.sessions == 0 && local.ended_sessions == 0 &&
             local.staging_bytes == 0;
    });
  }
  // Every block that is published now is what its key says. Returns how many there are.
  size_t VerifyAll() {
    const EngineClient engine = JoinEngine(options_.socket_path, "verifier", 0);
    KV_CHECK(engine.client != nullptr);
    size_t blocks = 0;
    for (uint64_t chain = 0; chain < kEngineChains; ++chain) {
      const std::vector<BlockKey> keys = KeyChain(chain, kChainBlocks);
      for (size_t first = 0; first < kChainBlocks; ++first) {
        const absl::StatusOr<View> view =
            engine.client->Acquire(engine.ns, std::span(keys).subspan(first));
        KV_CHECK(view.ok());
        for (size_t i = 0; i < view->size(); ++i) {
          EXPECT_TRUE(IsBlock(kEngineNs, keys[first + i], {view->block(i), kEngineBlockBytes}));
          EXPECT_TRUE(
              engine.client->Verify(engine.ns, keys[first + i], view->block(i), view->checksum(i)));
        }
        blocks += view->size() > 0 ? 1 : 0;
        if (view->size() == kChainBlocks - first) {
          blocks += view->size() - 1;
          break;
        }
      }
    }
    return blocks;
  }
};

// Waits for `turns` words "turn"; false when it said that something is wrong, or died.
bool HearTurns(Spawned& process, int turns) {
  for (int i = 0; i < turns; ++i) {
    if (process.Hear() != "turn") return false;
  }
  return true;
}

// Reads what it said until it ended.
bool SaidWrong(Spawned& process) {
  for (std::string word = process.Hear(); !word.empty(); word = process.Hear()) {
    if (word == "wrong") return true;
  }
  return false;
}

TEST_F(SyntheticEngineTest, AHundredKillsLeaveNothingBehind) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937_64 random(seed);
  StartServer();
  size_t killed_with_leases = 0;
  for (int cycle = 0; cycle < kKills; ++cycle) {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    UniqueFd ends[] = {UniqueFd(pair[0]), UniqueFd(pair[1])};
    const std::string engine = "engine-" + std::to_string(cycle);
    auto args = [&] {
      return std::vector<std::string>{options_.socket_path, engine, std::to_string(random())};
    };
    Spawned worker("worker", args(), ends[0].get());
    Spawned scheduler("scheduler", args(), ends[1].get());
    for (UniqueFd& end : ends) end.reset();
    ASSERT_TRUE(HearTurns(worker, 1 + static_cast<int>(random() % 3))) << "cycle " << cycle;
    ASSERT_TRUE(HearTurns(scheduler, 1 + static_cast<int>(random() % 4))) << "cycle " << cycle;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    const int victim = static_cast<int>(random() % 3);  // worker, scheduler, both
    for (Spawned* process : {&worker, &scheduler}) {
      if (victim == 2 || (victim == 0) == (process == &worker)) ::kill(process->pid(), SIGKILL);
    }
    killed_with_leases += cache_->Stats().leases > 0 ? 1 : 0;
    scheduler.Finish();
    worker.Finish();
    EXPECT_FALSE(SaidWrong(worker)) << "cycle " << cycle;
    scheduler.Wait();
    worker.Wait();
    ASSERT_TRUE(Idle()) << "cycle " << cycle;
    if (cycle % 20 == 19) {
      VerifyAll();
      EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
    }
  }
  EXPECT_GT(killed_with_leases, 0u);
  EXPECT_GT(VerifyAll(), 0u);
  ASSERT_TRUE(Idle());
  // No slot is used by anything but a published block.
  const CacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.arena.used_bytes, stats.index.entries * kEngineBlockBytes);
}

TEST_F(SyntheticEngineTest, ConnectLeaseCloseCannotTakeTheArena) {
  StartServer();
  const EngineClient other = JoinEngine(options_.socket_path, "other", 8 << 20);
  ASSERT_TRUE(PutRight(*other.client, other.ns, KeyChain(0, kChainBlocks)).ok());
  Spawned looper("looper", {options_.socket_path});
  const int rounds = std::stoi(looper.Hear());
  std::printf("refused after %d rounds\n", rounds);
  EXPECT_GT(rounds, 0);
  EXPECT_LE(rounds, 100);
  const CacheStats stats = cache_->Stats();
  EXPECT_LE(stats.leased_bytes, cache_options_.arena.capacity_bytes / 4);
  // Others put and read as ever.
  for (uint64_t chain = 1; chain < 5; ++chain) {
    const std::vector<BlockKey> keys = KeyChain(chain, kChainBlocks);
    ASSERT_TRUE(PutRight(*other.client, other.ns, keys).ok());
    EXPECT_EQ(other.client->Acquire(other.ns, keys)->size(), kChainBlocks);
  }
  looper.Kill();
  EXPECT_TRUE(
      Eventually([&] { return cache_->Stats().leased_bytes == 0 && Stats().ended_sessions == 0; }));
}

TEST_F(SyntheticEngineTest, AForkThatOutlivesItsParentCannotTakeTheArena) {
  StartServer();
  {
    const EngineClient other = JoinEngine(options_.socket_path, "other", 8 << 20);
    ASSERT_TRUE(PutRight(*other.client, other.ns, KeyChain(0, kChainBlocks)).ok());
  }
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd gate(pair[0]), theirs(pair[1]);
  Spawned forker("forker", {options_.socket_path}, theirs.get());
  theirs.reset();
  ASSERT_EQ(forker.Hear(), "ready");
  EXPECT_EQ(cache_->Stats().leased_bytes, kChainBlocks * kEngineBlockBytes);
  forker.Kill();
  EXPECT_TRUE(Idle());
  // The child lives: its end of the pair is open.
  char byte;
  EXPECT_EQ(::recv(gate.get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST_F(SyntheticEngineTest, AWriterThatScribblesPublishesOnlyWhatVerifies) {
  StartServer();
  const EngineClient writer = JoinEngine(options_.socket_path, "writer", 1 << 20);
  const EngineClient reader = JoinEngine(options_.socket_path, "reader", 0);
  constexpr size_t kBlocks = 16;
  constexpr uint64_t kBytes = kBlocks * kEngineBlockBytes;
  Staging probe = *writer.client->Stage(kBytes);
  std::byte* const memory = probe.data();
  probe = Staging();
  std::atomic<bool> stop = false;
  std::thread scribbler([&] {
    std::mt19937_64 random(1);
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t word = random();
      std::memcpy(memory + word % (kBytes - 8), &word, 8);
    }
  });
  size_t changed = 0;
  for (uint64_t put = 0; put < 1000; ++put) {
    const std::vector<BlockKey> keys = KeyChain(put, kBlocks);
    Staging staging = *writer.client->Stage(kBytes);
    ASSERT_EQ(staging.data(), memory);
    for (size_t i = 0; i < kBlocks; ++i) {
      testing::FillBlock(kEngineNs, keys[i], {memory + i * kEngineBlockBytes, kEngineBlockBytes});
    }
    const absl::StatusOr<std::vector<PutOutcome>> outcomes =
        writer.client->PutStaged(writer.ns, {.keys = keys}, std::move(staging));
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    const absl::StatusOr<View> view = reader.client->Acquire(reader.ns, keys);
    ASSERT_EQ(view->size(), kBlocks);
    for (size_t i = 0; i < kBlocks; ++i) {
      ASSERT_TRUE(reader.client->Verify(reader.ns, keys[i], view->block(i), view->checksum(i)));
      changed += IsBlock(kEngineNs, keys[i], {view->block(i), kEngineBlockBytes}) ? 0 : 1;
    }
  }
  stop = true;
  scribbler.join();
  EXPECT_GT(changed, 0u);  // or it did not scribble
}

// Bytes of daemons' memory that this process keeps alive: mapped, or open.
uint64_t HeldBytes() {
  uint64_t bytes = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    if (line.find("/memfd:") == line.npos) continue;
    if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2) bytes += end - begin;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry, error).string();
    if (target.find("/memfd:") != target.npos) bytes += std::filesystem::file_size(entry, error);
  }
  return bytes;
}

TEST_F(SyntheticEngineTest, TenKilledDaemonsLeaveNoMoreThanTheViewsHold) {
  constexpr uint64_t kStaging = 4 << 20;
  std::unique_ptr<Client> client;
  View first;
  for (int life = 0; life < 10; ++life) {
    Spawned daemon("daemon", {options_.socket_path});
    ASSERT_EQ(daemon.Hear(), "serving");
    if (client == nullptr) client = JoinEngine(options_.socket_path, "keeper", kStaging).client;
    ASSERT_NE(client, nullptr);
    while (client->State().reconnects < static_cast<uint64_t>(life)) std::this_thread::yield();
    ASSERT_EQ(client->WaitReady(testing::kPatienceNanos), absl::OkStatus());
    const ClientNamespace ns = *client->OpenNamespace(testing::EngineDescriptor());
    for (uint64_t chain = 0; chain < 200; ++chain) {
      ASSERT_TRUE(PutRight(*client, ns, KeyChain(chain, kChainBlocks)).ok());
    }
    absl::StatusOr<View> view = client->Acquire(ns, KeyChain(0, kChainBlocks));
    ASSERT_EQ(view->size(), kChainBlocks);
    EXPECT_GE(HeldBytes(), 64 * kMiB);
    if (life == 0) first = *std::move(view);
    daemon.Kill();
    while (client->State().connected) std::this_thread::yield();
    *view = View();
    // The chunk of the one view that is left, and nothing of the daemons since.
    EXPECT_TRUE(Eventually([&] { return HeldBytes() == 32 * kMiB; })) << HeldBytes();
    EXPECT_TRUE(IsBlock(kEngineNs, KeyChain(0, 1)[0], {first.block(0), kEngineBlockBytes}));
  }
  first = View();
  EXPECT_EQ(HeldBytes(), 0u);
}

}  // namespace
}  // namespace kvarve

int main(int argc, char** argv) {
  int status = 0;
  if (kvarve::testing::RunRole(argc, argv,
                               {{"scheduler", kvarve::testing::SchedulerRole},
                                {"worker", kvarve::testing::WorkerRole},
                                {"looper", kvarve::testing::LooperRole},
                                {"forker", kvarve::testing::ForkerRole},
                                {"daemon", kvarve::testing::DaemonRole}},
                               &status)) {
    return status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
