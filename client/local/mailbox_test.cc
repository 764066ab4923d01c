#include "client/local/mailbox.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/local/sealed_memory.h"
#include "storage/base/clock.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::local {
namespace {

constexpr int64_t kMillis = 1'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

class MailboxTest : public ::testing::Test {
 protected:
  MailboxTest() {
    daemon_ = *Mailbox::Create(&fd_);
    client_ = *Mailbox::Map(fd_.get());
  }
  // The call that the daemon takes; empty: none.
  std::string TakeCall() {
    if (!daemon_->ClaimCall()) return "";
    const absl::StatusOr<size_t> size = daemon_->ReadCall(buffer_);
    EXPECT_TRUE(size.ok()) << size.status();
    return std::string(reinterpret_cast<char*>(buffer_.data()), *size);
  }
  std::string TakeAnswer() {
    const absl::StatusOr<size_t> size = client_->TakeAnswer(buffer_);
    EXPECT_TRUE(size.ok()) << size.status();
    return std::string(reinterpret_cast<char*>(buffer_.data()), *size);
  }

  UniqueFd fd_;
  std::unique_ptr<Mailbox> daemon_, client_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(Mailbox::kMaxMessageBytes);
};

TEST_F(MailboxTest, ACallAndItsAnswer) {
  EXPECT_TRUE(client_->is_free());
  EXPECT_FALSE(daemon_->has_call());
  EXPECT_EQ(TakeCall(), "");
  client_->Post("what is it?");
  EXPECT_FALSE(client_->is_free());
  EXPECT_TRUE(daemon_->has_call());
  EXPECT_EQ(TakeCall(), "what is it?");
  EXPECT_EQ(TakeCall(), "");  // once
  EXPECT_FALSE(client_->has_answer());
  EXPECT_TRUE(daemon_->Answer("it is this", 7));
  ASSERT_TRUE(client_->has_answer());
  EXPECT_TRUE(client_->has_answer_here());
  EXPECT_FALSE(client_->is_free());
  EXPECT_EQ(client_->packets_before_answer(), 7u);
  EXPECT_EQ(TakeAnswer(), "it is this");
  EXPECT_TRUE(client_->is_free());
}

TEST_F(MailboxTest, AnAnswerByTheSocketHasNoBytesHere) {
  client_->Post("x");
  EXPECT_EQ(TakeCall(), "x");
  EXPECT_FALSE(daemon_->Answer(std::string(Mailbox::kMaxMessageBytes + 1, 'a'), 0));
  EXPECT_FALSE(client_->has_answer());
  daemon_->AnswerOnSocket();
  ASSERT_TRUE(client_->has_answer());
  EXPECT_FALSE(client_->has_answer_here());
  EXPECT_EQ(TakeAnswer(), "");
  EXPECT_TRUE(client_->is_free());
}

TEST_F(MailboxTest, TheLongestMessagesFit) {
  const std::string call(Mailbox::kMaxMessageBytes, 'c'), answer(Mailbox::kMaxMessageBytes, 'a');
  client_->Post(call);
  EXPECT_EQ(TakeCall(), call);
  EXPECT_TRUE(daemon_->Answer(answer, 0));
  EXPECT_EQ(TakeAnswer(), answer);
}

TEST_F(MailboxTest, ACallIsTakenBackOnlyBeforeTheDaemonHasIt) {
  client_->Post("one");
  EXPECT_TRUE(client_->Withdraw());
  EXPECT_TRUE(client_->is_free());
  EXPECT_EQ(TakeCall(), "");
  client_->Post("two");
  EXPECT_EQ(TakeCall(), "two");
  EXPECT_FALSE(client_->Withdraw());
  EXPECT_FALSE(client_->is_free());
  EXPECT_TRUE(daemon_->Answer("late", 0));
  EXPECT_EQ(TakeAnswer(), "late");
}

TEST_F(MailboxTest, WaitingEndsWithARingOrInTime) {
  int64_t begin = Now();
  EXPECT_FALSE(daemon_->AwaitCall(20 * kMillis));
  EXPECT_GE(Now() - begin, 19 * kMillis);
  begin = Now();
  client_->AwaitAnswer(20 * kMillis);
  EXPECT_GE(Now() - begin, 19 * kMillis);
  // What rang before is not missed.
  client_->Post("x");
  EXPECT_TRUE(daemon_->AwaitCall(3'600'000 * kMillis));
  const uint32_t rings = daemon_->rings_for_socket();
  client_->RingForSocket();
  EXPECT_TRUE(daemon_->AwaitCall(3'600'000 * kMillis));
  EXPECT_EQ(daemon_->rings_for_socket(), rings + 1);
  EXPECT_EQ(TakeCall(), "x");
  daemon_->Answer("y", 0);
  client_->AwaitAnswer(3'600'000 * kMillis);
  EXPECT_EQ(TakeAnswer(), "y");
  daemon_->RingClient();
  client_->AwaitAnswer(3'600'000 * kMillis);
}

// Whatever a client leaves there: a length out of bounds is refused, and no state hangs the daemon.
TEST_F(MailboxTest, HostileMemory) {
  auto* const words = static_cast<std::atomic<uint32_t>*>(*MapSealedMemory(fd_.get(), 4096));
  client_->Post("x");
  for (const uint32_t length : {0u, uint32_t{Mailbox::kMaxMessageBytes} + 1, ~0u}) {
    words[0] = 1;  // posted
    words[1] = length;
    EXPECT_TRUE(daemon_->ClaimCall());
    EXPECT_EQ(daemon_->ReadCall(buffer_).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(daemon_->ClaimCall());  // gone
  }
  testing::SeededRandom random(1);
  for (int i = 0; i < 10'000; ++i) {
    words[random.Below(48)] = static_cast<uint32_t>(random.Below(i % 2 == 0 ? 8 : 1ull << 32));
    daemon_->ClaimCall();
    if (const auto size = daemon_->ReadCall(buffer_); size.ok()) {
      EXPECT_LE(*size, Mailbox::kMaxMessageBytes);
    }
    daemon_->Answer("y", 0);
    daemon_->AwaitCall(1000);
  }
  ::munmap(words, 4096);
}

TEST_F(MailboxTest, OnlySealedMemoryOfItsSizeIsMapped) {
  UniqueFd small, open(::memfd_create("open", MFD_CLOEXEC));
  ASSERT_TRUE(MakeSealedMemory("small", Mailbox::kBytes - 4096, &small).ok());
  ASSERT_EQ(::ftruncate(open.get(), Mailbox::kBytes), 0);
  EXPECT_EQ(Mailbox::Map(small.get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Mailbox::Map(open.get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(::ftruncate(fd_.get(), 4096), -1);
}

// Two threads as the two sides, each sleeping when it has nothing to do, a client that withdraws
// some calls: every answer is that of its call, no ring is lost (a lost one would take an hour),
// and what was withdrawn was not done.
TEST_F(MailboxTest, NothingIsLostBetweenTwoThreads) {
  constexpr int kCalls = 20'000;
  std::atomic<bool> stop{false};
  std::vector<int> done;
  std::thread daemon([&] {
    std::vector<uint8_t> buffer(Mailbox::kMaxMessageBytes);
    while (!stop) {
      if (!daemon_->ClaimCall()) {
        daemon_->AwaitCall(3'600'000 * kMillis);
        continue;
      }
      const size_t size = daemon_->ReadCall(buffer).value();
      const std::string call(reinterpret_cast<char*>(buffer.data()), size);
      done.push_back(std::stoi(call));
      if (done.back() % 5 == 0) {
        daemon_->AnswerOnSocket();
      } else {
        daemon_->Answer("to " + call, 0);
      }
    }
  });
  testing::SeededRandom random(2);
  std::vector<int> expected;
  for (int i = 0; i < kCalls; ++i) {
    client_->Post(std::to_string(i));
    if (random.Below(4) == 0) {
      for (uint64_t spin = random.Below(2000); spin > 0; --spin) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      if (client_->Withdraw()) continue;
    }
    expected.push_back(i);
    while (!client_->has_answer()) client_->AwaitAnswer(3'600'000 * kMillis);
    ASSERT_EQ(TakeAnswer(), i % 5 == 0 ? "" : "to " + std::to_string(i));
  }
  stop = true;
  client_->RingForSocket();
  daemon.join();
  EXPECT_EQ(done, expected);
  EXPECT_LT(expected.size(), size_t{kCalls});  // some were withdrawn
  EXPECT_GT(expected.size(), size_t{kCalls} / 2);
}

}  // namespace
}  // namespace kvarve::local
