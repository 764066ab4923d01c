// Goal: a daemon that has written its device over several times is as small as before, and a
// restart costs no hits. Method: the real daemon, clients that put and get, and what the daemon,
// the filesystem and /proc say of it.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "storage/testing/seeded_random.h"
#include "tests/integration/device_daemon_testing.h"

namespace kvarve {
namespace {

using Json = nlohmann::json;
using testing::IsLong;
using testing::KeyChain;
using testing::kMiBytes;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // memory that was freed is kept for a while
#else
constexpr bool kSanitized = false;
#endif

class DeviceSoakTest : public testing::DeviceDaemonTest {
 protected:
  uint64_t DiskBytes() const {
    struct stat facts;
    EXPECT_EQ(::stat((folder_ + "/nvme0").c_str(), &facts), 0);
    return static_cast<uint64_t>(facts.st_blocks) * 512;
  }
  uint64_t ResidentBytes() const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; in >> word;) {
      uint64_t kib = 0;
      if (word == "VmRSS:" && in >> kib) return kib << 10;
    }
    ADD_FAILURE() << "no VmRSS";
    return 0;
  }
  static Json Stats(Client& client) {
    const auto answer = client.Admin(R"({"op":"stats"})");
    EXPECT_TRUE(answer.ok()) << answer.status();
    return Json::parse(answer.value_or("{}"))["nvme"];
  }
};

TEST_F(DeviceSoakTest, FiveTimesTheDeviceItStaysAsItIs) {
  constexpr uint64_t kBytes = 256 << 10;
  constexpr size_t kChainBlocks = 8;
  constexpr uint64_t kHotChains = 6;
  constexpr uint64_t kFileBytes = 64 << 10;  // what the filesystem needs to know where it lies
  const uint64_t device_bytes = (IsLong() ? 4096 : 320) * kMiBytes;
  Make(96 * kMiBytes, device_bytes, 16 * kMiBytes);
  Start();
  const auto client = Connect();
  const ClientNamespace ns = Open(*client, kBytes);
  const uint64_t chains_a_lap = device_bytes / (kBytes * kChainBlocks);
  std::vector<uint64_t> resident;
  uint64_t hot_blocks = 0, hot_asked = 0;
  for (uint64_t lap = 0; lap < 5 && !HasFailure(); ++lap) {
    for (uint64_t c = 0; c < chains_a_lap; ++c) {
      const uint64_t chain = lap * chains_a_lap + c;
      ASSERT_TRUE(Put(*client, ns, KeyChain(chain, kChainBlocks), kBytes)) << chain;
      if (c % 8 != 0) continue;
      // A few chains are read all the time, and go round with the ring.
      hot_asked += kChainBlocks;
      hot_blocks += Get(*client, ns, KeyChain(c / 8 % kHotChains, kChainBlocks), kBytes);
      ASSERT_LE(DiskBytes(), device_bytes + kFileBytes);
    }
    resident.push_back(ResidentBytes());
  }
  struct stat facts;
  ASSERT_EQ(::stat((folder_ + "/nvme0").c_str(), &facts), 0);
  EXPECT_EQ(static_cast<uint64_t>(facts.st_size), device_bytes);
  const Json stats = Stats(*client);
  const Json& device = stats["devices"][0];
  const double written = device["device_bytes_written"].get<double>();
  const double blocks = device["block_bytes_written"].get<double>();  // with those carried on
  const double carried = device["reinserted_bytes"].get<double>();
  const double amplification = written / (blocks - carried);
  std::printf("%.2f GB put, %.2f GB written, %.2f GB carried on: amplification %.3f\n",
              (blocks - carried) / 1e9, written / 1e9, carried / 1e9, amplification);
  std::printf("resident after each lap, MiB:");
  for (const uint64_t bytes : resident) std::printf(" %.1f", static_cast<double>(bytes) / kMiBytes);
  std::printf("; hot blocks found: %zu of %zu\n", hot_blocks, hot_asked);
  EXPECT_GT(blocks - carried, 4.5 * static_cast<double>(device_bytes));
  EXPECT_LE(amplification, 1.05 + carried / (blocks - carried));
  EXPECT_EQ(stats["given_up_blocks"], Json::object());
  EXPECT_EQ(stats["not_admitted_blocks"], Json::object());
  EXPECT_EQ(hot_blocks, hot_asked);
  // The second lap's memory is the last one's: what is left is RocksDB's.
  if (kSanitized) return;
  EXPECT_LE(resident.back(), resident[1] + 16 * kMiBytes);
}

// Requests for prompts of which a few are wanted often: the share of blocks that is found.
class HitRatioTest : public DeviceSoakTest {
 protected:
  static constexpr uint64_t kBytes = 64 << 10;
  static constexpr size_t kChainBlocks = 8;
  static constexpr uint64_t kChains = 600;  // five times what memory holds
  enum class Stop { kNone, kPolite, kKill };

  uint64_t NextChain() {  // Zipf, exponent 0.9
    static const std::vector<double> sums = [] {
      std::vector<double> weights;
      for (uint64_t c = 0; c < kChains; ++c) {
        weights.push_back(1 / std::pow(static_cast<double>(c + 1), 0.9));
      }
      std::partial_sum(weights.begin(), weights.end(), weights.begin());
      return weights;
    }();
    const double at = sums.back() * static_cast<double>(random_.Below(1u << 30)) / (1u << 30);
    return static_cast<uint64_t>(std::upper_bound(sums.begin(), sums.end(), at) - sums.begin());
  }
  double Requests(Client& client, ClientNamespace ns, int count) {
    uint64_t asked = 0, found = 0;
    for (int i = 0; i < count; ++i) {
      const std::vector<BlockKey> chain = KeyChain(NextChain(), kChainBlocks);
      const size_t got = Get(client, ns, chain, kBytes);
      asked += chain.size();
      found += got;
      if (got == chain.size()) continue;
      EXPECT_TRUE(Put(client, ns, chain, kBytes));
    }
    return static_cast<double>(found) / static_cast<double>(asked);
  }
  double RatioWith(Stop stop) {
    std::filesystem::remove_all(folder_ + "/catalogue");
    std::filesystem::remove(folder_ + "/nvme0");
    random_ = testing::SeededRandom(5);
    Make(64 * kMiBytes, 512 * kMiBytes, 16 * kMiBytes);
    Start();
    auto client = Connect();
    ClientNamespace ns = Open(*client, kBytes);
    Requests(*client, ns, 1000);
    if (stop != Stop::kNone) {
      client.reset();
      End(stop == Stop::kPolite ? SIGTERM : SIGKILL);
      Start();
      client = Connect();
      ns = Open(*client, kBytes);
    }
    const double ratio = Requests(*client, ns, 1000);
    client.reset();
    End(SIGKILL);
    return ratio;
  }

  testing::SeededRandom random_{5};
};

TEST_F(HitRatioTest, ARestartCostsNoHits) {
  const double without = RatioWith(Stop::kNone);
  const double polite = RatioWith(Stop::kPolite), killed = RatioWith(Stop::kKill);
  std::printf(
      "hit ratio over 1,000 requests: %.4f; after a polite restart %.4f, after SIGKILL %.4f\n",
      without, polite, killed);
  EXPECT_GT(without, 0.5);
  EXPECT_GE(polite, 0.95 * without);
  EXPECT_GE(killed, 0.95 * without);
}

}  // namespace
}  // namespace kvarve
