#include "services/auth/bearer_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef-token";

class BearerTokenTest : public ::testing::Test {
 protected:
  BearerTokenTest() {
    char name[] = "/tmp/kvarve_token_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/token";
  }
  ~BearerTokenTest() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  absl::StatusOr<BearerToken> Read(const std::string& content, mode_t mode = 0600) {
    std::ofstream(path_, std::ios::binary) << content;
    ::chmod(path_.c_str(), mode);
    return BearerToken::FromFile(path_);
  }

  std::string folder_;
  std::string path_;
};

TEST_F(BearerTokenTest, MatchesOnlyItself) {
  const auto token = Read(std::string(kToken) + "\nsecond line\n");
  ASSERT_TRUE(token.ok()) << token.status();
  const std::string right = std::string("Bearer ") + kToken;
  EXPECT_TRUE(token->Matches(right));
  EXPECT_TRUE(token->Matches(std::string("bearer ") + kToken));
  for (size_t i = 7; i < right.size(); ++i) {
    std::string wrong = right;
    wrong[i] ^= 1;
    EXPECT_FALSE(token->Matches(wrong)) << i;
  }
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string(kToken),
        right + " ", right + "x", right.substr(0, right.size() - 1), std::string("Basic ") + kToken,
        "Bearer  " + std::string(kToken), "Bearer " + std::string(1 << 20, 'x')}) {
    EXPECT_FALSE(token->Matches(wrong)) << wrong.substr(0, 64);
  }
}

TEST_F(BearerTokenTest, LineEnds) {
  EXPECT_TRUE(Read(kToken)->Matches(std::string("Bearer ") + kToken));
  EXPECT_TRUE(Read(std::string(kToken) + "\r\n")->Matches(std::string("Bearer ") + kToken));
}

TEST_F(BearerTokenTest, ModesThatLetOthersIn) {
  for (const mode_t mode : {0640, 0604, 0660, 0644, 0610, 0601}) {
    const auto token = Read(kToken, mode);
    EXPECT_EQ(token.status().code(), absl::StatusCode::kFailedPrecondition) << mode;
    EXPECT_THAT(std::string(token.status().message()), HasSubstr("chmod 600 " + path_));
  }
  EXPECT_TRUE(Read(kToken, 0400).ok() || ::geteuid() != 0);
}

TEST_F(BearerTokenTest, WrongFiles) {
  EXPECT_EQ(BearerToken::FromFile(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(BearerToken::FromFile(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(BearerToken::FromFile("/dev/null").status().code(),
            absl::StatusCode::kFailedPrecondition);
  for (const std::string& content :
       {std::string(), std::string("short\n"), "\n" + std::string(kToken),
        std::string(kToken) + " with spaces", std::string(kToken) + "\xff",
        std::string(kToken) + std::string(1, '\0'), std::string(kMaxTokenBytes + 1, 'a')}) {
    EXPECT_EQ(Read(content).status().code(), absl::StatusCode::kInvalidArgument)
        << content.substr(0, 40);
  }
  EXPECT_TRUE(Read(std::string(kMaxTokenBytes, 'a') + "\n").ok());
  EXPECT_TRUE(Read(std::string(kMinTokenBytes, 'a')).ok());
}

}  // namespace
}  // namespace kvarve
