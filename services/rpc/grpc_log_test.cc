// What gRPC logs of callers that speak no TLS, or nothing at all, is part of our log, and bounded.
#include "services/rpc/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>

#include <chrono>

#include "absl/strings/str_split.h"
#include "services/rpc/rpc_fixture_testing.h"
#include "storage/base/log.h"

namespace kvarve {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::SizeIs;

class GrpcLogTest : public RpcFixture {
 protected:
  GrpcLogTest() { SetLogFormat(LogFormat::kJson); }
  ~GrpcLogTest() override { SetLogFormat(LogFormat::kText); }
  // Lines that `say` has written.
  template <typename Say>
  static std::vector<std::string> LinesOf(Say say) {
    ::testing::internal::CaptureStderr();
    say();
    return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }
};

TEST_F(GrpcLogTest, ALineIsAnEventOfOurs) {
  Start();
  const auto lines = LinesOf([] { gpr_log(GPR_ERROR, "Handshake \"failed\"\nof %d", 7); });
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines, Each(ContainsRegex(
                         R"(^\{"ts":"[0-9TZ:.-]+","level":"warning","event":"gRPC says",)"
                         R"("what":"Handshake ..failed...u000aof 7","left_out":"[0-9]+"\}$)")));
}

TEST_F(GrpcLogTest, AFloodIsCountedAndSomeOfItIsLogged) {
  Start();
  constexpr int kLines = 1000;
  const auto begin = std::chrono::steady_clock::now();
  const auto lines = LinesOf([] {
    for (int i = 0; i < kLines; ++i) gpr_log(GPR_ERROR, "Handshake failed");
  });
  const auto seconds =
      std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  EXPECT_LE(lines.size(), kGrpcLinesPerSecond * static_cast<uint64_t>(seconds.count() + 1));
  // A second later it says how many were not.
  uint64_t left_out = 0;
  EXPECT_TRUE(Eventually([&] {
    for (const std::string& line : LinesOf([] { gpr_log(GPR_ERROR, "later"); })) {
      const size_t at = line.find("\"left_out\":\"");
      if (at != line.npos) left_out += std::stoull(line.substr(at + 12));
    }
    return left_out + lines.size() >= kLines;
  }));
}

}  // namespace
}  // namespace kvarve
