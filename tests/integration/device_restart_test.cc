// Goal: what a real daemon has on its devices is there after any end of it, and no byte of it is
// ever wrong. Method: the daemon as a process with a hook that tells each block that is complete on
// a device (hooked_daemon.cc); clients that put and get; SIGKILL at random, SIGTERM, a lost
// catalogue.
#include <atomic>
#include <cstdio>

#include "storage/testing/seeded_random.h"
#include "tests/integration/device_daemon_testing.h"

namespace kvarve {
namespace {

using testing::IsLong;
using testing::KeyChain;
using testing::kMiBytes;

using DeviceRestartTest = testing::DeviceDaemonTest;

// Killed at random moments under load; all that was complete is there, unless the ring went round
// since: a fast machine writes more than the device holds.
TEST_F(DeviceRestartTest, KilledAtRandomItLosesNoCompleteBlock) {
  constexpr uint64_t kBytes = 64 << 10;
  // So many newest blocks (1.1 GiB with their frames) are on the device in any case: each of 60
  // starts leaves at most one segment of 32 MiB unfilled, which makes 1.9 of its 3 GiB.
  constexpr size_t kSurelyThere = 16'000;
  testing::SeededRandom random(20);
  Make(96 * kMiBytes, 3072 * kMiBytes, 32 * kMiBytes);
  const int cycles = IsLong() ? 200 : 30;
  uint64_t next_chain = 0, all_checked = 0;
  for (int cycle = 0; cycle < cycles && !HasFailure(); ++cycle) {
    // As by default in half of the cycles: killed while its memory becomes huge pages that the
    // device knows.
    prefault_ = random.OneIn(2);
    Configure(96 * kMiBytes, folder_ + "/nvme0");
    Start();
    std::atomic<bool> stop{false};
    std::atomic<int> at_work{0};
    std::atomic<uint64_t> chains{next_chain};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, seed = random.Next()] {
        const auto client = Connect();
        const ClientNamespace ns = Open(*client, kBytes);
        ++at_work;
        uint64_t state = seed;
        while (!stop.load()) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          const uint64_t known = chains.load();
          if (known > 0 && state >> 62 == 0) {
            Get(*client, ns, KeyChain((state >> 20) % known, 8), kBytes);
          } else {
            Put(*client, ns, KeyChain(chains.fetch_add(1), 1 + (state >> 33) % 8), kBytes);
          }
        }
      });
    }
    while (at_work.load() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random.Below(200)));
    ::kill(pid_, SIGKILL);
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
    End(SIGKILL);
    next_chain = chains.load();

    const auto completed = Completed();
    size_t newest = 0;
    for (const auto& [key, place] : completed) newest = std::max(newest, place);
    const auto is_there = [&](const BlockKey& key) {
      const auto found = completed.find(key.bytes);
      return found != completed.end() && found->second + kSurelyThere > newest;
    };
    const bool loses_catalogue = random.OneIn(4);
    if (loses_catalogue) std::filesystem::remove_all(folder_ + "/catalogue");
    Start();
    const auto client = Connect();
    const ClientNamespace ns = Open(*client, kBytes);
    WaitRecovered(*client);
    uint64_t missing = 0, checked = 0;
    // All chains of the last cycles, and each tenth of the past; not in the long run, whose many
    // starts leave more unfilled.
    for (uint64_t c = 0; c < next_chain; ++c) {
      if (c + 400 < next_chain && (IsLong() || c % 10 != static_cast<uint64_t>(cycle) % 10)) {
        continue;
      }
      const std::vector<BlockKey> chain = KeyChain(c, 8);
      size_t expected = 0;
      while (expected < chain.size() && is_there(chain[expected])) ++expected;
      if (expected == 0) continue;
      checked += expected;
      const size_t got = Get(*client, ns, std::span(chain).first(expected), kBytes);
      missing += expected - got;
    }
    EXPECT_EQ(missing, 0u) << "cycle " << cycle << ", of " << checked << ", written " << newest + 1
                           << ", catalogue lost: " << loses_catalogue;
    all_checked += checked;
    End(SIGKILL);
  }
  EXPECT_GT(all_checked, 500u);
  std::printf("%d kills, %zu complete blocks\n", cycles, Completed().size());
}

// A burst that is four times the host tier: 1,024 blocks of 1 MiB through 256 MiB.
class BurstTest : public testing::DeviceDaemonTest {
 protected:
  static constexpr uint64_t kBytes = kMiBytes;
  static constexpr size_t kBlocks = 1024;

  void SetUp() override {
    prefault_ = true;
    Make(256 * kMiBytes, 8192 * kMiBytes, 256 * kMiBytes);
    Start();
    client_ = Connect();
    ns_ = Open(*client_, kBytes);
  }
  void PutAll() {
    for (size_t i = 0; i < kBlocks; ++i) {
      ASSERT_TRUE(Put(*client_, ns_, KeyChain(i, 1), kBytes)) << i;
    }
  }
  void Reconnect() {
    Start();
    client_ = Connect();
    ns_ = Open(*client_, kBytes);
  }
  size_t Readable() {
    size_t readable = 0;
    for (size_t i = 0; i < kBlocks; ++i) readable += Get(*client_, ns_, KeyChain(i, 1), kBytes);
    return readable;
  }

  void ExpectNothingGivenUp() {
    const auto stats = client_->Admin(R"({"op":"stats"})");
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_NE(stats->find(R"("given_up_blocks":{})"), std::string::npos) << *stats;
    EXPECT_NE(stats->find(R"("not_admitted_blocks":{})"), std::string::npos) << *stats;
  }

  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
};

TEST_F(BurstTest, NothingVanishesSilently) {
  PutAll();
  EXPECT_EQ(Readable(), kBlocks) << "before any restart";
  ExpectNothingGivenUp();
  client_.reset();
  End(SIGTERM);
  Reconnect();
  WaitRecovered(*client_);
  EXPECT_EQ(Readable(), kBlocks) << "after a polite restart";
  ExpectNothingGivenUp();
}

TEST_F(BurstTest, KilledThreeSecondsLaterItHasAllButTheLast) {
  PutAll();
  std::this_thread::sleep_for(std::chrono::seconds(3));
  client_.reset();
  End(SIGKILL);
  Reconnect();
  WaitRecovered(*client_);
  const size_t readable = Readable();
  std::printf("%zu of %zu readable, %zu were complete\n", readable, kBlocks, Completed().size());
  EXPECT_GE(readable, kBlocks - 16);
  ExpectNothingGivenUp();
}

TEST_F(BurstTest, KilledWhilePuttingItHasAllThatWasComplete) {
  std::atomic<size_t> put{0};
  std::atomic<bool> stop{false};
  std::thread puts([&] {
    for (size_t i = 0; i < kBlocks && !stop.load(); ++i) {
      if (!Put(*client_, ns_, KeyChain(i, 1), kBytes)) return;
      put.store(i + 1);
    }
  });
  while (put.load() < 300) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(pid_, SIGKILL);
  End(SIGKILL);
  // Puts that were not answered are not counted; those that come after the restart would be.
  const size_t acknowledged = put.load();
  const auto completed = Completed();
  stop.store(true);
  puts.join();
  Reconnect();
  WaitRecovered(*client_);
  size_t missing = 0, lost = 0;
  for (size_t i = 0; i < acknowledged; ++i) {
    const std::vector<BlockKey> key = KeyChain(i, 1);
    const bool is_there = Get(*client_, ns_, key, kBytes) == 1;
    missing += is_there ? 0 : 1;
    lost += !is_there && completed.contains(key[0].bytes) ? 1 : 0;
  }
  std::printf("%zu acknowledged, %zu missing\n", acknowledged, missing);
  EXPECT_EQ(lost, 0u);
  EXPECT_LE(missing * kBytes, 16 * kMiBytes);
}

}  // namespace
}  // namespace kvarve
