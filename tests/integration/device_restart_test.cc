// Goal: what a real daemon has on its devices is there after any end of it, and no byte of it is
// ever wrong. Method: the daemon as a process with a hook that tells each block that is complete on
// a device (hooked_daemon.cc); clients that put and get; SIGKILL at random, SIGTERM, a lost
// catalogue. A block's bytes follow from its key, so that every wrong one shows.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "client/cpp/client.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/segment/device_format.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::KeyChain;

constexpr uint64_t kMiBytes = 1 << 20;
constexpr int64_t kPatience = 60'000'000'000;
constexpr uint64_t kSeed = 11;  // of block bytes

bool IsLong() { return std::getenv("KVARVE_TEST_LONG") != nullptr; }

class DeviceRestartTest : public ::testing::Test {
 protected:
  DeviceRestartTest() {
    std::string pattern = ::testing::TempDir() + "kvarve-devices-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    completed_ =
        UniqueFd(::open((folder_ + "/completed").c_str(), O_CREAT | O_RDWR | O_APPEND, 0600));
  }
  ~DeviceRestartTest() override {
    End(SIGKILL);
    std::filesystem::remove_all(folder_);
  }

  void Make(uint64_t host_bytes, uint64_t device_bytes, uint64_t segment_bytes) {
    FormatOptions format;
    format.bytes = device_bytes;
    format.segment_bytes = segment_bytes;
    format.overwrite = false;
    ASSERT_TRUE(FormatDevice(folder_ + "/nvme0", format).ok());
    std::ofstream(folder_ + "/kvarved.yaml")
        << "socket: {path: " << folder_ << "/kvarved.sock}\n"
        << "arena: {capacity_bytes: " << host_bytes << ", prefault: false}\n"
        << "metrics: {listen: \"off\"}\nlog: {level: error}\n"
        << "tenant: {state_dir: " << folder_ << "}\n"
        << "nvme: {devices: [" << folder_ << "/nvme0], drive_writes_per_day: \"0\"}\n";
  }
  void Start() {
    const auto self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string program = (self.parent_path() / "../bin/hooked_daemon").string();
    const std::string file = folder_ + "/kvarved.yaml";
    ::setenv("KVARVE_COMPLETED_FD", std::to_string(completed_.get()).c_str(), 1);
    pid_ = ::fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execl(program.c_str(), program.c_str(), file.c_str(), nullptr);
      ::_exit(127);
    }
  }
  void End(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    if (signal == SIGTERM) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    pid_ = -1;
  }
  std::unique_ptr<Client> Connect(uint64_t staging_bytes = 16 * kMiBytes) const {
    ClientOptions options;
    options.endpoint = "unix://" + folder_ + "/kvarved.sock";
    options.staging_bytes = staging_bytes;
    options.timeout_nanos = 2'000'000'000;
    options.put_timeout_nanos = kPatience;
    options.load_timeout_nanos = kPatience;
    options.probe_interval_nanos = 20'000'000;
    auto client = Client::Create(options).value();
    EXPECT_TRUE(client->WaitReady(kPatience).ok()) << client->State().last_error;
    return client;
  }
  // Keys that the hook told, as often as they were.
  std::set<std::array<uint8_t, 32>> Completed() const {
    std::ifstream in(folder_ + "/completed", std::ios::binary);
    std::set<std::array<uint8_t, 32>> keys;
    char line[40];
    while (in.read(line, sizeof(line))) {
      std::array<uint8_t, 32> key;
      std::memcpy(key.data(), line, key.size());
      keys.insert(key);
    }
    return keys;
  }
  // Until lookups find all that they will: the daemon recovers in the background.
  void WaitFound(Client& client, ClientNamespace ns, const BlockKey& key) {
    const int64_t until = SystemClock::Get()->NowNanos() + kPatience;
    while (SystemClock::Get()->NowNanos() < until) {
      const auto found = client.Lookup(ns, {&key, 1});
      if (found.ok() && found->hit_blocks == 1) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // How many leading blocks come; wrong bytes fail the test.
  size_t Get(Client& client, ClientNamespace ns, std::span<const BlockKey> keys, uint64_t bytes) {
    std::vector<std::vector<std::byte>> blocks(keys.size(), std::vector<std::byte>(bytes));
    std::vector<std::byte*> to;
    for (auto& block : blocks) to.push_back(block.data());
    const absl::StatusOr<size_t> got = client.Get(ns, keys, to);
    if (!got.ok()) return 0;
    for (size_t i = 0; i < *got; ++i) {
      EXPECT_TRUE(testing::IsBlock(kSeed, keys[i], blocks[i])) << "wrong bytes";
    }
    return *got;
  }
  bool Put(Client& client, ClientNamespace ns, std::span<const BlockKey> keys, uint64_t bytes) {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> from;
    for (const BlockKey& key : keys) blocks.push_back(testing::MakeBlock(kSeed, key, bytes));
    for (const auto& block : blocks) from.push_back(block.data());
    const auto put = client.Put(ns, {.keys = keys}, from);
    return put.ok() && (put->back() == PutOutcome::kStored || put->back() == PutOutcome::kExists);
  }
  ClientNamespace Open(Client& client, uint64_t bytes) {
    return client.OpenNamespace(OpaqueNamespace("model", bytes)).value();
  }

  std::string folder_;
  UniqueFd completed_;
  pid_t pid_ = -1;
};

// Killed at random moments under load; the ring does not go round, so what was complete is there.
TEST_F(DeviceRestartTest, KilledAtRandomItLosesNoCompleteBlock) {
  constexpr uint64_t kBytes = 64 << 10;
  testing::SeededRandom random(20);
  Make(96 * kMiBytes, 3072 * kMiBytes, 32 * kMiBytes);
  const int cycles = IsLong() ? 200 : 30;
  uint64_t next_chain = 0, all_checked = 0;
  for (int cycle = 0; cycle < cycles && !HasFailure(); ++cycle) {
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
    const bool loses_catalogue = random.OneIn(4);
    if (loses_catalogue) std::filesystem::remove_all(folder_ + "/catalogue");
    Start();
    const auto client = Connect();
    const ClientNamespace ns = Open(*client, kBytes);
    uint64_t missing = 0, checked = 0;
    // Each tenth chain of the past, and all of the last cycles, block by block.
    for (uint64_t c = next_chain > 400 ? next_chain - 400 : 0; c < next_chain; ++c) {
      const std::vector<BlockKey> chain = KeyChain(c, 8);
      size_t expected = 0;
      while (expected < chain.size() && completed.contains(chain[expected].bytes)) ++expected;
      if (expected == 0) continue;
      if (checked == 0) WaitFound(*client, ns, chain[0]);
      checked += expected;
      const size_t got = Get(*client, ns, std::span(chain).first(expected), kBytes);
      missing += expected - got;
    }
    EXPECT_EQ(missing, 0u) << "cycle " << cycle << ", catalogue lost: " << loses_catalogue;
    all_checked += checked;
    End(SIGKILL);
  }
  EXPECT_GT(all_checked, 500u);
  std::printf("%d kills, %zu complete blocks\n", cycles, Completed().size());
}

// A burst that is four times the host tier: 1,024 blocks of 1 MiB through 256 MiB.
class BurstTest : public DeviceRestartTest {
 protected:
  static constexpr uint64_t kBytes = kMiBytes;
  static constexpr size_t kBlocks = 1024;

  void SetUp() override {
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

  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
};

TEST_F(BurstTest, NothingVanishesSilently) {
  PutAll();
  EXPECT_EQ(Readable(), kBlocks) << "before any restart";
  client_.reset();
  End(SIGTERM);
  Reconnect();
  WaitFound(*client_, ns_, KeyChain(0, 1)[0]);
  EXPECT_EQ(Readable(), kBlocks) << "after a polite restart";
}

TEST_F(BurstTest, KilledThreeSecondsLaterItHasAllButTheLast) {
  PutAll();
  std::this_thread::sleep_for(std::chrono::seconds(3));
  client_.reset();
  End(SIGKILL);
  Reconnect();
  WaitFound(*client_, ns_, KeyChain(0, 1)[0]);
  const size_t readable = Readable();
  std::printf("%zu of %zu readable, %zu were complete\n", readable, kBlocks, Completed().size());
  EXPECT_GE(readable, kBlocks - 16);
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
  WaitFound(*client_, ns_, KeyChain(0, 1)[0]);
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
