// Goal: a device that fails, lies, is full or slow costs hits and nothing else: no wrong byte, no
// daemon that ends or waits for ever, and what was complete is there when the device is well again
// (unless it lied to a start, which then takes a segment for none).
// Method: the real daemon over a FUSE filesystem that does all that when it is told to
// (fault_fs.cc). Without /dev/fuse the tests are skipped.
#include <sys/mman.h>
#include <sys/mount.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "storage/testing/seeded_random.h"
#include "tests/integration/device_daemon_testing.h"
#include "tests/integration/fault_fs.h"

namespace kvarve {
namespace {

using testing::FsFaults;
using testing::KeyChain;
using testing::kMiBytes;

constexpr uint64_t kBytes = 256 << 10;
constexpr size_t kChainBlocks = 4;

class DeviceFaultsTest : public testing::DeviceDaemonTest {
 protected:
  void SetUp() override {
    if (::access("/dev/fuse", R_OK | W_OK) != 0) {
      GTEST_SKIP() << "there is no /dev/fuse here that this user may open";
    }
    std::filesystem::create_directories(below());
    std::filesystem::create_directories(mount());
    FormatOptions format;
    format.bytes = 1024 * kMiBytes;
    format.segment_bytes = 16 * kMiBytes;
    format.overwrite = false;
    ASSERT_TRUE(FormatDevice(below() + "/nvme0", format).ok());
    Configure(64 * kMiBytes, mount() + "/nvme0");
    const std::string control = below() + "/" + testing::kFaultsFile;
    const UniqueFd fd(::open(control.c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(::ftruncate(fd.get(), sizeof(FsFaults)), 0);
    void* const map =
        ::mmap(nullptr, sizeof(FsFaults), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(map, MAP_FAILED);
    faults_ = static_cast<FsFaults*>(map);
    Mount();
    Start();
    client_ = Connect();
    ns_ = Open(*client_, kBytes);
  }
  void TearDown() override {
    if (faults_ == nullptr) return;
    Heal();
    client_.reset();
    End(SIGKILL);
    ::kill(filesystem_, SIGTERM);  // it takes its mount away
    ::waitpid(filesystem_, nullptr, 0);
    ::munmap(faults_, sizeof(FsFaults));
  }

  std::string below() const { return folder_ + "/below"; }
  std::string mount() const { return folder_ + "/mount"; }
  void Mount() {
    const auto self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string program = (self.parent_path() / "../bin/fault_fs").string();
    filesystem_ = ::fork();
    ASSERT_GE(filesystem_, 0);
    if (filesystem_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      ::execl(program.c_str(), program.c_str(), below().c_str(), mount().c_str(), nullptr);
      ::_exit(127);
    }
    while (!std::filesystem::exists(mount() + "/nvme0")) {
      int status = 0;
      ASSERT_EQ(::waitpid(filesystem_, &status, WNOHANG), 0)
          << "fault_fs ended with " << status << ": may this user mount?";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void Heal() {
    for (auto* one_in : {&faults_->read_one_in, &faults_->write_one_in, &faults_->sync_one_in,
                         &faults_->flip_one_in, &faults_->delay_micros}) {
      one_in->store(0);
    }
  }
  void Restart() {
    client_.reset();
    End(SIGKILL);
    Start();
    client_ = Connect();
    ns_ = Open(*client_, kBytes);
  }
  static std::vector<BlockKey> Chain(uint64_t chain) { return KeyChain(chain, kChainBlocks); }
  void PutChains(uint64_t begin, uint64_t end) {
    for (uint64_t c = begin; c < end; ++c) EXPECT_TRUE(Put(*client_, ns_, Chain(c), kBytes)) << c;
  }
  void WaitCompleted(size_t blocks) const {
    while (Completed().size() < blocks) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Blocks of the chains that come; no wrong byte.
  size_t GetChains(uint64_t begin, uint64_t end) {
    size_t blocks = 0;
    for (uint64_t c = begin; c < end; ++c) blocks += Get(*client_, ns_, Chain(c), kBytes);
    return blocks;
  }
  // After a restart over a healthy filesystem every block that was complete comes.
  void ExpectAllCompleted(uint64_t chains) {
    Heal();
    const auto completed = Completed();
    Restart();
    WaitRecovered(*client_);
    size_t missing = 0, expected = 0;
    for (uint64_t c = 0; c < chains; ++c) {
      const std::vector<BlockKey> chain = Chain(c);
      size_t blocks = 0;
      while (blocks < chain.size() && completed.contains(chain[blocks].bytes)) ++blocks;
      if (blocks == 0) continue;
      expected += blocks;
      missing += blocks - Get(*client_, ns_, std::span(chain).first(blocks), kBytes);
    }
    EXPECT_EQ(missing, 0u) << "of " << expected;
    std::printf("%zu complete blocks, %zu missing; %llu faults in %llu reads and %llu writes\n",
                expected, missing, (unsigned long long)faults_->faults.load(),
                (unsigned long long)faults_->reads.load(),
                (unsigned long long)faults_->writes.load());
  }

  FsFaults* faults_ = nullptr;
  pid_t filesystem_ = -1;
  std::unique_ptr<Client> client_;
  ClientNamespace ns_ = 0;
};

// Four times what memory holds, so that most has to come from the device.
constexpr uint64_t kChains = 256;

TEST_F(DeviceFaultsTest, ReadsThatFailAreMisses) {
  PutChains(0, kChains);
  WaitCompleted(kChains * kChainBlocks);
  EXPECT_EQ(GetChains(0, kChains), kChains * kChainBlocks);
  faults_->read_error.store(EIO);
  faults_->read_one_in.store(4);
  EXPECT_LT(GetChains(0, kChains), kChains * kChainBlocks);
  faults_->read_one_in.store(1);
  GetChains(0, kChains);
  // Memory serves on.
  PutChains(kChains, kChains + 4);
  EXPECT_EQ(GetChains(kChains, kChains + 4), 4 * kChainBlocks);
  ExpectAllCompleted(kChains);
}

TEST_F(DeviceFaultsTest, FlippedBitsAreMisses) {
  PutChains(0, kChains);
  WaitCompleted(kChains * kChainBlocks);
  faults_->flip_one_in.store(2);
  EXPECT_LT(GetChains(0, kChains), kChains * kChainBlocks);
  EXPECT_GT(faults_->faults.load(), 50u);
  ExpectAllCompleted(kChains);
}

TEST_F(DeviceFaultsTest, AFlippedBitMeetsTheRecoveryToo) {
  PutChains(0, kChains);
  WaitCompleted(kChains * kChainBlocks);
  faults_->flip_one_in.store(3);
  for (int start = 0; start < 3; ++start) {
    std::filesystem::remove_all(folder_ + "/catalogue");
    Restart();
    GetChains(0, 32);
  }
  // What was misread when it was needed may be gone: a header that nobody can read is a free slot.
  Heal();
  Restart();
  WaitRecovered(*client_);
  EXPECT_GT(GetChains(0, kChains), kChains * kChainBlocks / 2);
}

TEST_F(DeviceFaultsTest, WritesThatFailLeavePutsInMemory) {
  PutChains(0, 64);
  WaitCompleted(64 * kChainBlocks);
  uint64_t next = 64;
  for (const int error : {0 /* short */, ENOSPC, EIO}) {
    faults_->write_error.store(error);
    faults_->write_one_in.store(3);
    PutChains(next, next + 48);
    faults_->write_one_in.store(1);
    PutChains(next + 48, next + 64);
    // The last ones are in memory, whatever became of them on the device.
    EXPECT_EQ(GetChains(next + 60, next + 64), 4 * kChainBlocks);
    next += 64;
    ExpectAllCompleted(next);
  }
}

TEST_F(DeviceFaultsTest, SyncsThatFailLoseNothing) {
  faults_->sync_error.store(EIO);
  faults_->sync_one_in.store(2);
  PutChains(0, 128);
  EXPECT_EQ(GetChains(124, 128), 4 * kChainBlocks);
  ExpectAllCompleted(128);
}

// Puts come faster than the device takes them: they wait for their turn, and all arrive.
TEST_F(DeviceFaultsTest, ASlowDeviceOnlySlowsDown) {
  faults_->delay_micros.store(10'000);
  PutChains(0, 96);
  EXPECT_EQ(GetChains(0, 96), 96 * kChainBlocks);
  WaitCompleted(96 * kChainBlocks);
  ExpectAllCompleted(96);
}

// Fetch or recompute: blocks that a slow device would bring later than they are computed are left
// out, so that nobody waits for them; and come again when the device is well.
TEST_F(DeviceFaultsTest, WhatComesLaterThanItIsComputedIsLeftOut) {
  constexpr uint32_t kBlockMicros = 8'000;   // to compute one: 32 ms a chain
  constexpr uint32_t kDelayMicros = 60'000;  // of each of the device's requests
  PutChains(0, kChains);
  WaitCompleted(kChains * kChainBlocks);
  Restart();
  WaitRecovered(*client_);
  const auto found = [&](uint64_t chain, uint32_t recompute_us, int64_t hold_nanos = 0) {
    const auto result = client_->Lookup(ns_, Chain(chain), hold_nanos, recompute_us);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : LookupResult();
  };
  const auto first_on_device = [&](uint64_t from) {
    while (found(from, 0).host_blocks > 0) from = (from + 1) % kChains;
    return from;
  };
  faults_->delay_micros.store(kDelayMicros);
  uint64_t slow = first_on_device(0);
  while (found(slow, kBlockMicros).hit_blocks > 0) {  // until it was seen to be slow
    EXPECT_EQ(Get(*client_, ns_, Chain(slow), kBytes), kChainBlocks);
    slow = first_on_device(slow);
  }
  EXPECT_EQ(found(slow, 0).hit_blocks, kChainBlocks);  // no cost was told
  EXPECT_EQ(found(slow, kBlockMicros).hit_blocks, 0u);
  EXPECT_EQ(found(slow, kBlockMicros, 1'000'000'000).hit_blocks, 0u);
  EXPECT_EQ(found(slow, 100 * kBlockMicros).hit_blocks, kChainBlocks);
  Heal();
  for (uint64_t chain = slow; found(chain, kBlockMicros).hit_blocks != kChainBlocks ||
                              found(chain, kBlockMicros).host_blocks > 0;) {
    chain = first_on_device(chain);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Time to the first token of an engine that loads what a lookup finds and computes the rest, in
// shares of computing all of it, over devices from fast to hopeless. One that is slow from the
// start is known to be so before the first prompt. Of one that becomes slow it is the first prompts
// that tell; they wait as long as computing takes, and no longer.
class FirstTokensTest : public DeviceFaultsTest {
 protected:
  static constexpr uint32_t kBlockMicros = 4'000;
  static constexpr size_t kPromptBlocks = 16;  // 4 MiB, 64 ms
  static constexpr size_t kLearning = 4;
  const uint64_t prompts_ = testing::IsLong() ? 40 : 10;

  static std::vector<BlockKey> Prompt(uint64_t n) { return KeyChain(1000 + n, kPromptBlocks); }
  void PutPrompts() {
    for (uint64_t n = 0; n < prompts_; ++n) ASSERT_TRUE(Put(*client_, ns_, Prompt(n), kBytes));
    WaitCompleted(prompts_ * kPromptBlocks);
  }
  double Share(uint64_t n) {
    const std::vector<BlockKey> keys = Prompt(n);
    const int64_t begin = SystemClock::Get()->NowNanos();
    const auto found = client_->Lookup(ns_, keys, 1'000'000'000, kBlockMicros);
    EXPECT_TRUE(found.ok()) << found.status();
    const size_t hit = found.ok() ? found->hit_blocks : 0;
    const size_t got = hit > 0 ? Get(*client_, ns_, std::span(keys).first(hit), kBytes) : 0;
    if (found.ok() && found->hold != 0) client_->Release(found->hold);
    const int64_t micros = (SystemClock::Get()->NowNanos() - begin) / 1000;
    const int64_t computed = static_cast<int64_t>(keys.size() - got) * kBlockMicros;
    return static_cast<double>(micros + computed) / (kPromptBlocks * kBlockMicros);
  }
  void Run(bool slow_from_the_start) {
    PutPrompts();
    std::printf("%s\n  delay   first %zu: mean   worst   later: median   worst\n",
                slow_from_the_start ? "slow from the start" : "slow after the start", kLearning);
    for (const uint32_t delay_micros : {0u, 5'000u, 20'000u, 100'000u, 400'000u}) {
      Heal();
      if (slow_from_the_start) faults_->delay_micros.store(delay_micros);
      Restart();
      WaitRecovered(*client_);
      faults_->delay_micros.store(delay_micros);
      std::vector<double> first, later;
      for (uint64_t n = 0; n < prompts_; ++n) (n < kLearning ? first : later).push_back(Share(n));
      std::sort(later.begin(), later.end());
      const double median = later[later.size() / 2];
      const double worst = *std::max_element(first.begin(), first.end());
      std::printf("%4u ms   %.2f            %.2f    %.2f            %.2f\n", delay_micros / 1000,
                  std::accumulate(first.begin(), first.end(), 0.0) / kLearning, worst, median,
                  later.back());
      // Measured times, so only where the machine is not shared with other tests.
      if (!testing::IsLong()) continue;
      EXPECT_LE(median, 1.1) << delay_micros;
      EXPECT_LE(worst, slow_from_the_start ? 1.1 : 2.2) << delay_micros;
    }
  }
};

TEST_F(FirstTokensTest, OverADeviceThatIsSlowComeAsSoonAsWithoutIt) { Run(true); }
TEST_F(FirstTokensTest, OverADeviceThatBecomesSlowComeSoon) { Run(false); }

// No measured time: it would bring all of them, a minute later.
TEST_F(FirstTokensTest, NobodyWaitsLongerThanComputingTakes) {
  // A second a prompt: not so little that a busy machine takes longer over it.
  constexpr uint32_t kDearMicros = 1'000'000 / kPromptBlocks;
  PutPrompts();
  Restart();
  WaitRecovered(*client_);
  faults_->delay_micros.store(60'000'000);
  const std::vector<BlockKey> keys = Prompt(0);
  const auto found = client_->Lookup(ns_, keys, 1'000'000'000, kDearMicros);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->hit_blocks, kPromptBlocks);  // it was fast
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_LT(Get(*client_, ns_, keys, kBytes), kPromptBlocks);
  // The read under way tells the next one, as soon as it is older than computing takes; long before
  // it ends.
  while (client_->Lookup(ns_, Prompt(1), 0, kDearMicros)->hit_blocks == kPromptBlocks) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Heal();
  EXPECT_EQ(Get(*client_, ns_, Prompt(2), kBytes), kPromptBlocks);  // who tells no cost waits
}

TEST_F(FirstTokensTest, ASlowDeviceIsKnownAtTheStart) {
  PutPrompts();
  faults_->delay_micros.store(200'000);
  Restart();
  WaitRecovered(*client_);
  EXPECT_EQ(client_->Lookup(ns_, Prompt(0), 0, kBlockMicros)->hit_blocks, 0u);
  EXPECT_EQ(client_->Lookup(ns_, Prompt(0), 0, 100 * kBlockMicros)->hit_blocks, kPromptBlocks);
}

// Everything at once, from several clients, with a SIGKILL at the end of each round.
TEST_F(DeviceFaultsTest, UnderAnyFaultsAndKillsNoByteIsWrong) {
  testing::SeededRandom random(31);
  const int rounds = testing::IsLong() ? 40 : 5;
  std::atomic<uint64_t> chains{0};
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    faults_->read_error.store(EIO);
    faults_->sync_error.store(EIO);
    faults_->write_error.store(random.OneIn(3) ? 0 : random.OneIn(2) ? ENOSPC : EIO);
    if (random.OneIn(2)) faults_->read_one_in.store(5 + random.Below(50));
    if (random.OneIn(2)) faults_->write_one_in.store(5 + random.Below(50));
    if (random.OneIn(3)) faults_->sync_one_in.store(3 + random.Below(5));
    if (random.OneIn(2)) faults_->flip_one_in.store(3 + random.Below(20));
    if (random.OneIn(4)) faults_->delay_micros.store(random.Below(3000));
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, seed = random.Next()] {
        const auto client = Connect();
        const ClientNamespace ns = Open(*client, kBytes);
        uint64_t state = seed;
        for (int i = 0; i < 40; ++i) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          const uint64_t known = chains.load();
          if (known > 0 && state >> 62 != 0) {
            Get(*client, ns, Chain((state >> 20) % known), kBytes);
          } else {
            Put(*client, ns, Chain(chains.fetch_add(1)), kBytes);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (random.OneIn(3)) std::filesystem::remove_all(folder_ + "/catalogue");
    ExpectAllCompleted(chains.load());
  }
}

}  // namespace
}  // namespace kvarve
