// One daemon a path; no more than 0660; nothing of others is removed.
#include "services/local/listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvarve {
namespace {

using ::testing::HasSubstr;

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() {
    std::string pattern = "/tmp/kvarve-listener-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/run/kvarved.sock";
  }
  ~ListenerTest() override { std::filesystem::remove_all(folder_); }
  static mode_t ModeOf(const std::string& path) {
    struct stat st;
    return ::stat(path.c_str(), &st) == 0 ? st.st_mode & 07777 : 0;
  }
  // A socket file as a daemon leaves it that was killed.
  static UniqueFd BindPlainly(const std::string& path, int type) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return socket;
  }

  std::string folder_, path_;
};

TEST_F(ListenerTest, ModesWhateverTheUmask) {
  for (const mode_t mask : {0u, 077u}) {
    const mode_t before = ::umask(mask);
    {
      const auto listener = Listener::Bind(path_, ::getgid());
      ASSERT_TRUE(listener.ok()) << listener.status();
      EXPECT_EQ(ModeOf(folder_ + "/run"), 0750u);
      EXPECT_EQ(ModeOf(path_), 0660u);
      EXPECT_EQ(ModeOf(path_ + ".lock"), 0600u);
      EXPECT_EQ(::umask(mask), mask);
    }
    EXPECT_FALSE(std::filesystem::exists(path_));
    std::filesystem::remove_all(folder_ + "/run");
    ::umask(before);
  }
}

TEST_F(ListenerTest, TheSecondIsToldOfTheFirst) {
  auto first = Listener::Bind(path_, std::nullopt);
  ASSERT_TRUE(first.ok());
  const auto second = Listener::Bind(path_, std::nullopt);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("pid " + std::to_string(::getpid())));
  EXPECT_TRUE(std::filesystem::exists(path_));
  first->reset();
  EXPECT_TRUE(Listener::Bind(path_, std::nullopt).ok());
}

TEST_F(ListenerTest, AStaleSocketIsReplacedAndNothingElse) {
  std::filesystem::create_directories(folder_ + "/run");
  BindPlainly(path_, SOCK_SEQPACKET).reset();
  EXPECT_TRUE(Listener::Bind(path_, std::nullopt).ok());

  std::ofstream(path_) << "a file";
  EXPECT_EQ(Listener::Bind(path_, std::nullopt).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(path_));
  std::filesystem::remove(path_);

  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {  // somebody who takes no lock
    const UniqueFd other = BindPlainly(path_, type);
    ASSERT_EQ(::listen(other.get(), 1), 0);
    EXPECT_EQ(Listener::Bind(path_, std::nullopt).status().code(),
              absl::StatusCode::kAlreadyExists);
    std::filesystem::remove(path_);
  }
}

TEST_F(ListenerTest, TheSocketOfASuccessorStays) {
  auto listener = Listener::Bind(path_, std::nullopt);
  ASSERT_TRUE(listener.ok());
  std::filesystem::remove(path_);
  const UniqueFd other = BindPlainly(path_, SOCK_SEQPACKET);
  listener->reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(ListenerTest, UnsafeFoldersAndPaths) {
  std::filesystem::create_directories(folder_ + "/run");
  ASSERT_EQ(::chmod((folder_ + "/run").c_str(), 0777), 0);
  EXPECT_EQ(Listener::Bind(path_, std::nullopt).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(::chmod((folder_ + "/run").c_str(), 01777), 0);  // as /tmp
  EXPECT_TRUE(Listener::Bind(path_, std::nullopt).ok());
  EXPECT_EQ(Listener::Bind("relative.sock", std::nullopt).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Listener::Bind("/" + std::string(200, 'x'), std::nullopt).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Listener::Bind(folder_ + "/no/such/x.sock", std::nullopt).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvarve
