// Goal: packets, their descriptors and every way a peer can be full, gone or rude. Method: socket
// pairs.
#include "client/local/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <string>

namespace kvarve::local {
namespace {

struct Pair {
  UniqueFd a, b;
  Pair() {
    int fds[2];
    Make(fds);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  static void Make(int* fds) {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) std::abort();
  }
};

TEST(Socket, OnePacketAtATime) {
  Pair pair;
  std::array<uint8_t, 64> buffer;
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 0u);
  ASSERT_TRUE(Send(pair.a.get(), "first").ok());
  ASSERT_TRUE(Send(pair.a.get(), "second one").ok());
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 5u);
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 10u);
  EXPECT_EQ(std::string(buffer.begin(), buffer.begin() + 10), "second one");
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 0u);
}

TEST(Socket, LongPacketIsRefusedAndGone) {
  Pair pair;
  std::array<uint8_t, 8> buffer;
  ASSERT_TRUE(Send(pair.a.get(), "longer than eight").ok());
  ASSERT_TRUE(Send(pair.a.get(), "next").ok());
  EXPECT_EQ(Receive(pair.b.get(), buffer).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 4u);
}

TEST(Socket, AFullSocketIsNotADeadOne) {
  Pair pair;
  const std::string message(10'000, 'x');
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) status = Send(pair.a.get(), message);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  pair.b.reset();
  EXPECT_EQ(Send(pair.a.get(), message).code(), absl::StatusCode::kUnavailable);
}

TEST(Socket, EndOfConnectionIsUnavailable) {
  Pair pair;
  std::array<uint8_t, 8> buffer;
  ASSERT_TRUE(Send(pair.a.get(), "last").ok());
  pair.a.reset();
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 4u);
  EXPECT_EQ(Receive(pair.b.get(), buffer).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Send(pair.b.get(), "x").code(), absl::StatusCode::kUnavailable);
}

TEST(Socket, DescriptorsTravelAndCloseOnExec) {
  Pair pair;
  UniqueFd memory(::memfd_create("socket_test", 0));
  ASSERT_EQ(::ftruncate(memory.get(), 12345), 0);
  const int sent[] = {memory.get(), pair.a.get()};
  ASSERT_TRUE(Send(pair.a.get(), "two", sent).ok());
  std::array<uint8_t, 8> buffer;
  std::vector<UniqueFd> fds;
  EXPECT_EQ(*Receive(pair.b.get(), buffer, &fds), 3u);
  ASSERT_EQ(fds.size(), 2u);
  EXPECT_EQ(::lseek(fds[0].get(), 0, SEEK_END), 12345);
  for (const UniqueFd& fd : fds) EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

int LowestFreeFd() { return UniqueFd(::dup(0)).get(); }

TEST(Socket, AReceiverThatTakesNoDescriptorsGetsNone) {
  Pair pair;
  UniqueFd memory(::memfd_create("socket_test", 0));
  const int before = LowestFreeFd();
  const int sent[] = {memory.get(), memory.get(), memory.get(), memory.get()};
  ASSERT_TRUE(Send(pair.a.get(), "four", sent).ok());
  std::array<uint8_t, 8> buffer;
  EXPECT_EQ(*Receive(pair.b.get(), buffer), 4u);
  EXPECT_EQ(LowestFreeFd(), before);
}

TEST(Socket, DescriptorsOfARefusedPacketAreTheCallers) {
  Pair pair;
  const int before = LowestFreeFd();
  const int sent[] = {0};
  ASSERT_TRUE(Send(pair.a.get(), "longer than eight", sent).ok());
  std::array<uint8_t, 8> buffer;
  std::vector<UniqueFd> fds;
  EXPECT_FALSE(Receive(pair.b.get(), buffer, &fds).ok());
  fds.clear();
  EXPECT_EQ(LowestFreeFd(), before);
}

TEST(Socket, ALongMessageNeedsARaisedSendBuffer) {
  Pair pair;
  const std::string message(262'240, 'k');  // a lookup of 8,192 keys
  RaiseSendBuffer(pair.a.get(),
                  64 << 10);  // lowers it: the system's default is its administrator's
  EXPECT_EQ(Send(pair.a.get(), message).code(), absl::StatusCode::kInvalidArgument);
  const size_t got = RaiseSendBuffer(pair.a.get(), 1 << 20);
  EXPECT_GT(got, 0u);
  if (got < 2 * message.size()) GTEST_SKIP() << "the system allows only " << got << " bytes";
  EXPECT_TRUE(Send(pair.a.get(), message).ok());
  std::vector<uint8_t> buffer(message.size());
  EXPECT_EQ(*Receive(pair.b.get(), buffer), message.size());
}

}  // namespace
}  // namespace kvarve::local
