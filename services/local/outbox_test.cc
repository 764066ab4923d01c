// Answers leave in order, with their descriptors, and never make the sender wait.
#include "services/local/outbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

#include "client/local/socket.h"

namespace kvarve {
namespace {

class OutboxTest : public ::testing::Test {
 protected:
  OutboxTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours_.reset(ends[0]);
    theirs_.reset(ends[1]);
  }
  std::string Receive(std::vector<UniqueFd>* fds = nullptr) {
    std::vector<uint8_t> buffer(1 << 20);
    const auto size = local::Receive(theirs_.get(), buffer, fds);
    if (!size.ok()) return "end";
    return std::string(buffer.begin(), buffer.begin() + *size);
  }

  UniqueFd ours_, theirs_;
};

TEST_F(OutboxTest, QueuesInOrderAndFlushes) {
  Outbox outbox(ours_.get(), 64 << 20, 1000);
  const auto fd = std::make_shared<const UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto message = [](int i) { return std::to_string(i) + std::string(50'000, '.'); };
  constexpr int kMessages = 100;
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(outbox.Send(message(i), i % 2 == 1 ? Outbox::Fds{fd} : Outbox::Fds{}, 0).ok());
  }
  EXPECT_FALSE(outbox.empty());
  for (int i = 0; i < kMessages; ++i) {
    std::vector<UniqueFd> fds;
    EXPECT_EQ(Receive(&fds), message(i));
    EXPECT_EQ(fds.size(), i % 2 == 1 ? 1u : 0u);
    ASSERT_TRUE(outbox.Flush(0).ok());
  }
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.queued_bytes(), 0u);
}

TEST_F(OutboxTest, TooManyBytes) {
  Outbox outbox(ours_.get(), 100'000, 1000);
  absl::Status status;
  int sent = 0;
  while (status.ok() && sent < 10'000) {
    status = outbox.Send(std::string(10'000, 'x'), {}, 0);
    ++sent;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(outbox.queued_bytes(), 100'000u);
}

TEST_F(OutboxTest, StuckForTooLong) {
  Outbox outbox(ours_.get(), 1 << 30, 1000);
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(outbox.Send(std::string(50'000, 'x'), {}, 5).ok());
  }
  ASSERT_FALSE(outbox.empty());
  EXPECT_TRUE(outbox.Flush(1004).ok());
  for (int i = 0; i < 3; ++i) Receive();
  EXPECT_TRUE(outbox.Flush(1005).ok());  // progress starts the time again
  EXPECT_TRUE(outbox.Flush(2004).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(outbox.Flush(2005)));
}

TEST_F(OutboxTest, ThePeerIsGone) {
  Outbox outbox(ours_.get(), 1 << 20, 1000);
  theirs_.reset();
  EXPECT_TRUE(absl::IsUnavailable(outbox.Send("hello", {}, 0)));
}

}  // namespace
}  // namespace kvarve
