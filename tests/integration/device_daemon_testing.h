// A real daemon over a device in a file, with a hook that tells each block that is complete on it
// (hooked_daemon.cc), and clients whose every wrong byte fails the test: a block's bytes follow
// from its key. THREADS: one owner; Get, Put and what they use: any, with a client of their own.
#ifndef KVARVE_TESTS_INTEGRATION_DEVICE_DAEMON_TESTING_H_
#define KVARVE_TESTS_INTEGRATION_DEVICE_DAEMON_TESTING_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "client/cpp/client.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/segment/device_format.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve::testing {

inline constexpr uint64_t kMiBytes = 1 << 20;
inline constexpr int64_t kPatience = 60'000'000'000;
inline constexpr uint64_t kSeed = 11;  // of block bytes

inline bool IsLong() { return std::getenv("KVARVE_TEST_LONG") != nullptr; }

class DeviceDaemonTest : public ::testing::Test {
 protected:
  DeviceDaemonTest() {
    std::string pattern = ::testing::TempDir() + "kvarve-devices-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    completed_ =
        UniqueFd(::open((folder_ + "/completed").c_str(), O_CREAT | O_RDWR | O_APPEND, 0600));
  }
  ~DeviceDaemonTest() override {
    End(SIGKILL);
    std::filesystem::remove_all(folder_);
  }

  void Make(uint64_t host_bytes, uint64_t device_bytes, uint64_t segment_bytes) {
    FormatOptions format;
    format.bytes = device_bytes;
    format.segment_bytes = segment_bytes;
    format.overwrite = false;
    ASSERT_TRUE(FormatDevice(folder_ + "/nvme0", format).ok());
    Configure(host_bytes, folder_ + "/nvme0");
  }
  void Configure(uint64_t host_bytes, const std::string& device) {
    std::ofstream(folder_ + "/kvarved.yaml")
        << "socket: {path: " << folder_ << "/kvarved.sock}\n"
        << "arena: {capacity_bytes: " << host_bytes
        << ", prefault: " << (prefault_ ? "true" : "false") << "}\n"
        << "metrics: {listen: \"off\"}\nlog: {level: error}\n"
        << "tenant: {state_dir: " << folder_ << "}\n"
        << "nvme: {devices: [" << device << "], drive_writes_per_day: \"0\"}\n";
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
  // Keys that the hook told, each with its place in the order in which blocks became complete (the
  // last one, where a block was written again).
  std::map<std::array<uint8_t, 32>, size_t> Completed() const {
    std::ifstream in(folder_ + "/completed", std::ios::binary);
    std::map<std::array<uint8_t, 32>, size_t> places;
    char line[40];
    for (size_t place = 0; in.read(line, sizeof(line)); ++place) {
      std::array<uint8_t, 32> key;
      std::memcpy(key.data(), line, key.size());
      places[key] = place;
    }
    return places;
  }
  // Until lookups find all that they will: the daemon recovers in the background.
  static void WaitRecovered(Client& client) {
    for (;;) {
      const auto status = client.Admin(R"({"op":"status"})");
      ASSERT_TRUE(status.ok()) << status.status();
      if (status->find("\"recovered\":true") != std::string::npos) return;
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
      EXPECT_TRUE(IsBlock(kSeed, keys[i], blocks[i])) << "wrong bytes";
    }
    return *got;
  }
  bool Put(Client& client, ClientNamespace ns, std::span<const BlockKey> keys, uint64_t bytes) {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> from;
    for (const BlockKey& key : keys) blocks.push_back(MakeBlock(kSeed, key, bytes));
    for (const auto& block : blocks) from.push_back(block.data());
    const auto put = client.Put(ns, {.keys = keys}, from);
    return put.ok() && (put->back() == PutOutcome::kStored || put->back() == PutOutcome::kExists);
  }
  ClientNamespace Open(Client& client, uint64_t bytes) {
    return client.OpenNamespace(OpaqueNamespace("model", bytes)).value();
  }

  bool prefault_ = false;  // as by default, in huge pages; takes time at each start
  std::string folder_;
  UniqueFd completed_;
  pid_t pid_ = -1;
};

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_DEVICE_DAEMON_TESTING_H_
