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

TEST(Endpoint, RefusalsSayWhatToWrite) {
  const std::string cases[] = {"",
                               "/run/x.sock",
                               "unix:/x",
                               "unix://relative",
                               "tcp://host:1",
                               "kvarve://host:7400",
                               "unix:///" + std::string(107, 'x'),
                               std::string("unix:///a\0b", 11)};
  for (const std::string& text : cases) {
    const absl::Status status = ParseEndpoint(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(ToStd(status.message())), HasSubstr("unix:///run/kvarve/kvarved.sock"));
  }
  EXPECT_THAT(std::string(ToStd(ParseEndpoint("kvarve://h:1").status().message())),
              HasSubstr("own host"));
}

}  // namespace
}  // namespace kvarve::client
