// Goal: endpoints parse or are refused with what to write instead.
#include "client/cpp/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/abseil.h"

namespace kvarve::client {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, UnixPath) {
  EXPECT_EQ(ParseEndpoint("unix:///run/kvarve/kvarved.sock")->path, "/run/kvarve/kvarved.sock");
  EXPECT_EQ(ParseEndpoint("unix:///" + std::string(106, 'x'))->path.size(), 107u);
}

TEST(Endpoint, OtherHosts) {
  EXPECT_FALSE(ParseEndpoint("unix:///x")->is_remote());
  for (const std::string address :
       {"host:7410", "a-b.example.org:1", "127.0.0.1:65535", "[::1]:7410", "[fe80::1%25]:7410"}) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint("kvarve://" + address);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_TRUE(endpoint->is_remote());
    EXPECT_EQ(endpoint->address, address);
    EXPECT_FALSE(endpoint->tls);
    const absl::StatusOr<Endpoint> secure = ParseEndpoint("kvarves://" + address);
    ASSERT_TRUE(secure.ok()) << secure.status();
    EXPECT_EQ(secure->address, address);
    EXPECT_TRUE(secure->tls && secure->is_remote());
  }
}

TEST(Endpoint, RefusalsSayWhatToWrite) {
  const std::string cases[] = {"",
                               "/run/x.sock",
                               "unix:/x",
                               "unix://relative",
                               "tcp://host:1",
                               "kvarve://",
                               "kvarve://host",
                               "kvarves://",
                               "kvarves://host",
                               "kvarves://host:0",
                               "kvarve://host:0",
                               "kvarve://host:65536",
                               "kvarve://host:1x",
                               "kvarve://:7410",
                               "kvarve://ho st:1",
                               "kvarve://::1:7410",
                               "kvarve://[host]:1",
                               "kvarve://host:1/path",
                               "unix:///" + std::string(107, 'x'),
                               std::string("unix:///a\0b", 11)};
  for (const std::string& text : cases) {
    const absl::Status status = ParseEndpoint(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(ToStd(status.message())), HasSubstr("unix:///run/kvarve/kvarved.sock"));
  }
}

}  // namespace
}  // namespace kvarve::client
