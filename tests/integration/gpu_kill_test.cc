// Goal: kill -9 of an engine or of the daemon at any moment of a copy, queued, half done or done,
// leaves nothing behind and never a wrong byte, on the CPU device and through each host path of the
// fake driver. Method: engines as processes of their own; the cache's accounting, and this
// process's descriptors and mappings, before and after; 64 blocks that nobody may lose, read again
// by checksum after each kill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "services/local/testing/plane_fixture.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/holdings.h"
#include "tests/integration/engine_roles.h"
#include "tests/integration/gpu_engine.h"
#include "tests/integration/spawned.h"

namespace kvarve {
namespace {

using ::testing::AnyOf;
using testing::GpuEngine;
using testing::Holdings;
using testing::IsBlock;
using testing::KeyChain;
using testing::kGpuChains;
using testing::MakeBlock;
using testing::Spawned;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCycles = 8, kDeviceDaemonCycles = 8;
#else
constexpr int kCycles = 100, kDeviceDaemonCycles = 34;  // of daemons, on each of three paths
#endif
constexpr size_t kSurvivors = 64;
constexpr uint64_t kSurvivorBytes = 16384, kSurvivorNs = 3;
constexpr int64_t kPatienceNanos = 60'000'000'000;

// A client of blocks that must survive.
class Keeper {
 public:
  explicit Keeper(const std::string& socket) {
    ClientOptions options;
    options.endpoint = "unix://" + socket;
    options.engine_id = "keeper";
    options.staging_bytes = kSurvivors * kSurvivorBytes;
    options.timeout_nanos = options.put_timeout_nanos = kPatienceNanos;
    options.probe_interval_nanos = 10'000'000;
    client_ = Client::Create(options).value();
    NamespaceDescriptor descriptor;
    descriptor.model = "survivors";
    descriptor.model_digest = "sha256:survivors";
    descriptor.element_type = ElementType::kOpaque;
    descriptor.hash_version = "test";
    descriptor.layer_count = descriptor.layer_total = 1;
    descriptor.kv_head_count = descriptor.kv_head_total = 1;
    descriptor.block_tokens = 16;
    descriptor.block_bytes = kSurvivorBytes;
    ns_ = client_->OpenNamespace(descriptor).value();
  }
  bool Ready() { return client_->WaitReady(kPatienceNanos).ok(); }
  bool Connected() { return client_->State().connected; }
  void Put() {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> sources;
    for (const BlockKey& key : keys_) blocks.push_back(MakeBlock(kSurvivorNs, key, kSurvivorBytes));
    for (const auto& block : blocks) sources.push_back(block.data());
    const auto put = client_->Put(ns_, {.keys = keys_}, sources);
    ASSERT_TRUE(put.ok()) << put.status();
  }
  // How many are there and right, by checksum and by what their keys say.
  size_t Right() {
    const absl::StatusOr<View> view = client_->Acquire(ns_, keys_);
    if (!view.ok()) return 0;
    size_t right = 0;
    for (size_t i = 0; i < view->size(); ++i) {
      right += client_->Verify(ns_, keys_[i], view->block(i), view->checksum(i)) &&
               IsBlock(kSurvivorNs, keys_[i], {view->block(i), kSurvivorBytes});
    }
    return right;
  }

 private:
  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
  const std::vector<BlockKey> keys_ = KeyChain(1000, kSurvivors);
};

class GpuKillTest : public testing::PlaneFixture,
                    public ::testing::WithParamInterface<const char*> {
 protected:
  GpuKillTest() {
    cache_options_.arena.capacity_bytes = 64 * kMiB;
    cache_options_.arena.is_writable = std::string(GetParam()) == "writable";
  }
  // Where an engine is when it, or its daemon, is killed. The CPU's copies are over when they are
  // asked for.
  std::vector<std::string> States() const {
    if (std::string(GetParam()) == "host") return {"turn", "any"};
    return {"queued", "half", "turn", "any"};
  }
  // Each of them, in equal parts.
  static void ExpectAll(const std::map<std::string, int>& killed, size_t states) {
    EXPECT_EQ(killed.size(), states);
    for (const auto& [state, times] : killed) std::printf("killed %s: %d\n", state.c_str(), times);
  }
  uint64_t Seed() {
    const uint64_t seed = std::random_device()();
    std::printf("seed %lu\n", seed);
    return seed;
  }
};

// The daemon is this process.
TEST_P(GpuKillTest, KilledEnginesLeaveNothingBehind) {
  std::mt19937_64 random(Seed());
  StartServer();
  Keeper keeper(options_.socket_path);
  ASSERT_TRUE(keeper.Ready());
  keeper.Put();
  ASSERT_EQ(keeper.Right(), kSurvivors);
  auto idle = [&] {
    const CacheStats cache = cache_->Stats();
    const LocalStats local = Stats();
    return cache.leases == 0 && cache.leased_bytes == 0 && cache.quarantined_bytes == 0 &&
           local.sessions == 1 && local.ended_sessions == 0;
  };
  ASSERT_TRUE(Eventually(idle));
  const uint64_t staging = Stats().staging_bytes;
  const Holdings before = Holdings::Now();
  uint64_t turns = 0;
  const std::vector<std::string> states = States();
  std::map<std::string, int> killed;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    Spawned engine("gpu_engine", {options_.socket_path, "engine-" + std::to_string(cycle),
                                  GetParam(), std::to_string(random())});
    const std::string state = states[cycle % states.size()];
    uint64_t left = 1 + random() % 4;  // turns before
    for (bool there = false; !there;) {
      const std::string word = engine.Hear();
      ASSERT_THAT(word, AnyOf("turn", "queued", "half")) << "cycle " << cycle;
      turns += word == "turn" ? 1 : 0;
      left -= left > 0 && word == "turn" ? 1 : 0;
      there = left == 0 && (word == state || state == "any");
    }
    if (state == "any") std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    ::kill(engine.pid(), SIGKILL);
    ++killed[state];
    for (std::string word = engine.Hear(); !word.empty(); word = engine.Hear())
      EXPECT_THAT(word, AnyOf("turn", "queued", "half")) << "cycle " << cycle;
    engine.Wait();
    ASSERT_TRUE(Eventually([&] { return idle() && Stats().staging_bytes == staging; }))
        << "cycle " << cycle;
    ASSERT_EQ(keeper.Right(), kSurvivors) << "cycle " << cycle;
  }
  EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return Holdings::Now() == before; }))
      << Holdings::Now().descriptors << " descriptors of " << before.descriptors << ", "
      << Holdings::Now().mappings << " mappings of " << before.mappings;
  const CacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.arena.used_bytes, stats.index.entries * kSurvivorBytes)
      << "no slot but of a published block: blocks of both kinds are of one size";
  ExpectAll(killed, states.size());
  std::printf("%lu turns\n", turns);
}

// The engine is this process. What the daemon had is gone with it; put again, all is right again.
TEST_P(GpuKillTest, KilledDaemonsLeaveNothingBehind) {
  std::mt19937_64 random(Seed());
  const std::string trust = cache_options_.arena.is_writable ? "writable" : "read_only";
  GpuEngine engine(options_.socket_path, "engine", GetParam(), random());
  Keeper keeper(options_.socket_path);
  Holdings first;
  uint64_t lost = 0;
  const std::vector<std::string> states = States();
  std::map<std::string, int> killed;
  const int cycles = std::string(GetParam()) == "host" ? kCycles : kDeviceDaemonCycles;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    Spawned daemon("daemon", {options_.socket_path, trust});
    ASSERT_EQ(daemon.Hear(), "serving");
    ASSERT_TRUE(engine.Ready() && keeper.Ready());
    keeper.Put();
    for (uint64_t chain = 0; chain < 3; ++chain) {
      ASSERT_EQ(engine.Save(chain), GpuEngine::Answer::kDone) << "cycle " << cycle;
      ASSERT_EQ(engine.Load(chain), GpuEngine::Answer::kDone) << "cycle " << cycle;
    }
    EXPECT_EQ(engine.path(), GetParam());
    ASSERT_EQ(keeper.Right(), kSurvivors) << "cycle " << cycle;
    const std::string state = states[cycle % states.size()];
    const uint64_t kill_after = random() % 4000;
    bool alive = true;
    auto kill_in = [&](const std::string& now) {
      if (now != state || !std::exchange(alive, false)) return;
      ::kill(daemon.pid(), SIGKILL);
      ++killed[state];
    };
    engine.OnState(kill_in);
    std::thread killer([&] {
      if (state != "any") return;
      std::this_thread::sleep_for(std::chrono::microseconds(kill_after));
      ::kill(daemon.pid(), SIGKILL);
    });
    for (int turn = 0; turn < 3 || (alive && state != "any"); ++turn) {
      const GpuEngine::Answer answer = engine.Turn();
      EXPECT_NE(answer, GpuEngine::Answer::kWrong) << "cycle " << cycle;
      lost += answer == GpuEngine::Answer::kMiss ? 1 : 0;
      kill_in("turn");
    }
    killer.join();
    kill_in("any");
    engine.OnState([](const std::string&) {});
    daemon.Wait();
    ASSERT_EQ(engine.Complaints(), "") << "cycle " << cycle;
    // Nothing of a dead daemon's is kept.
    ASSERT_TRUE(Eventually([&] {
      const Holdings now = Holdings::Now();
      if (cycle == 0 && now.mappings == 0) first = now;
      return now.mappings == 0 && now.descriptors <= first.descriptors && !keeper.Connected();
    })) << "cycle "
        << cycle << ": " << Holdings::Now().descriptors << " descriptors of " << first.descriptors
        << ", " << Holdings::Now().mappings << " mappings";
  }
  EXPECT_GT(engine.loaded(), 0u);
  ExpectAll(killed, states.size());
  std::printf("%lu blocks loaded, %lu turns met no daemon\n", engine.loaded(), lost);
}

INSTANTIATE_TEST_SUITE_P(HostPaths, GpuKillTest,
                         ::testing::Values("host", "arena", "staging", "writable"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvarve

int main(int argc, char** argv) {
  int status = 0;
  if (kvarve::testing::RunRole(
          argc, argv,
          {{"gpu_engine", kvarve::testing::GpuEngineRole}, {"daemon", kvarve::testing::DaemonRole}},
          &status)) {
    return status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
