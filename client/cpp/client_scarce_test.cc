// Goal: what a daemon had not left is had later, without any call failing for it. Method: the small
// daemon, whose staging is used up and comes back; another client passes the time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "client/cpp/faults_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

// A daemon that had no staging left at HELLO is asked again, but not while a view, a grant or a
// hold is out; the calls of meanwhile go on as ever.
TEST_F(FaultsTest, StagingThatWasUsedUpIsAskedForAgainWhenNothingIsOut) {
  StartDaemon();
  Connect();
  PutOne(0);
  client_ = nullptr;
  daemon_->SetMaxStaging(0);
  options_.engine_id = "us";
  Connect();
  const std::vector<std::byte> block = TestBlock(1);
  const std::byte* const source = block.data();
  const std::vector<BlockKey> keys = TestKeys(1, 1);
  const absl::Status none = client_->Put(ns_, {.keys = keys}, {&source, 1}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.message()), HasSubstr("limits.staging_total_bytes"));

  // Another client that lacks staging is the clock: its attempts pass the time.
  ClientOptions other = options_;
  other.engine_id = "clock";
  const auto clock = *Client::Create(other);
  const auto attempts_pass = [&](int count) {
    const int now = daemon_->seen().hellos["clock"];
    return daemon_->WaitFor([&](const auto& seen) {
      const auto it = seen.hellos.find("clock");
      return it != seen.hellos.end() && it->second >= now + count;
    });
  };
  const auto in_use = [&](auto value) {
    ASSERT_TRUE(value.ok()) << value.status();
    // One that was under way before may still end.
    ASSERT_TRUE(attempts_pass(1));
    const int before = daemon_->seen().hellos["us"];
    ASSERT_TRUE(attempts_pass(4));
    EXPECT_EQ(daemon_->seen().hellos["us"], before);
  };
  in_use(client_->Acquire(ns_, TestKeys(0, 1)));
  const GrantSet grants = *client_->AcquireGrants(ns_, TestKeys(0, 1), 0);
  in_use(absl::StatusOr<int>(0));
  client_->Release(grants.lease);
  in_use(client_->Lookup(ns_, TestKeys(0, 1), kLong));
}

TEST_F(FaultsTest, StagingThatWasUsedUpIsGivenLaterWithoutAnyCallFailing) {
  StartDaemon();
  Connect();
  PutOne(0);
  client_ = nullptr;
  daemon_->SetMaxStaging(0);
  options_.engine_id = "us";
  Connect();
  ASSERT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.hellos.at("us") >= 3; }));
  EXPECT_EQ(client_->State().reconnects, 0u) << "the connection is left only for a better one";
  daemon_->SetMaxStaging(1 << 20);
  while (client_->State().reconnects == 0) {
    ASSERT_EQ(client_->Lookup(ns_, TestKeys(0, 2))->hit_blocks, 1u);
  }
  PutOne(1);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 2))->hit_blocks, 2u);
  // Every connection was left with BYE, and one is there.
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.connections == 1; }));
  const FakeDaemon::Seen seen = daemon_->seen();
  EXPECT_EQ(seen.byes.size(), static_cast<size_t>(seen.hellos.at("us")));
  for (const auto& [session, token] : seen.byes) EXPECT_EQ(session, 0u);
}

// A page whose first reader waits until something was run. It runs in another thread: in a signal
// handler, which the reader is in then, next to nothing may be done.
class TrapPage {
 public:
  TrapPage(std::span<const std::byte> bytes, std::function<void()> at_first_read) {
    KV_CHECK(bytes.size() <= kBytes && trap_ == nullptr);
    KV_CHECK(::pipe2(asked_, O_CLOEXEC) == 0 && ::pipe2(done_, O_CLOEXEC) == 0);
    page_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(page_ != MAP_FAILED);
    std::memcpy(page_, bytes.data(), bytes.size());
    KV_CHECK(::mprotect(page_, kBytes, PROT_NONE) == 0);
    runs_ = std::thread([this, run = std::move(at_first_read)] {
      char byte = 0;
      if (::read(asked_[0], &byte, 1) != 1) return;  // never read
      run();
      KV_CHECK(::write(done_[1], &byte, 1) == 1);
    });
    trap_ = this;
    struct sigaction action = {};
    action.sa_handler = &OnFault;
    action.sa_flags = SA_RESETHAND | SA_NODEFER;  // a second fault ends the test
    KV_CHECK(::sigaction(SIGSEGV, &action, &before_) == 0);
  }
  ~TrapPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::close(asked_[1]);
    runs_.join();
    ::close(asked_[0]);
    ::close(done_[0]);
    ::close(done_[1]);
    ::munmap(page_, kBytes);
    trap_ = nullptr;
  }
  TrapPage(const TrapPage&) = delete;
  TrapPage& operator=(const TrapPage&) = delete;
  const std::byte* data() const { return static_cast<const std::byte*>(page_); }

 private:
  static constexpr size_t kBytes = 64 << 10;
  static void OnFault(int) {
    char byte = 0;
    const bool ran = ::mprotect(trap_->page_, kBytes, PROT_READ) == 0 &&
                     ::write(trap_->asked_[1], &byte, 1) == 1 &&
                     ::read(trap_->done_[0], &byte, 1) == 1;
    if (!ran) ::_exit(1);
  }
  static inline TrapPage* trap_ = nullptr;
  int asked_[2], done_[2];
  void* page_;
  std::thread runs_;
  struct sigaction before_;
};

TEST_F(FaultsTest, APutWhoseStagingIsExchangedMeanwhileIsStagedAgain) {
  StartDaemon();
  Connect();
  const std::vector<std::byte> block = TestBlock(0);
  std::atomic<int> reads = 0;
  const TrapPage source(block, [&] {
    ++reads;
    daemon_->HangUp();
    WaitReconnected(1);
  });
  const std::byte* const from = source.data();
  const auto put = client_->Put(ns_, {.keys = TestKeys(0, 1)}, {&from, 1});
  EXPECT_EQ(reads, 1);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(*put, std::vector<PutOutcome>{PutOutcome::kStored});
  std::vector<std::byte> got(kBlock);
  std::byte* const to = got.data();
  ASSERT_EQ(*client_->Get(ns_, TestKeys(0, 1), {&to, 1}), 1u);
  EXPECT_EQ(got, block);
}

}  // namespace
}  // namespace kvarve
