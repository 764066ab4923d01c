#include "services/rpc/request_log.h"

#include <gmock/gmock.h>

#include <sstream>

#include "services/rpc/rpc_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RequestLogTest : public RpcFixture {
 protected:
  // What the server logs of one call with a traceparent.
  std::vector<std::string> LinesOf(const std::function<void(grpc::ClientContext*)>& call) {
    ::testing::internal::CaptureStderr();
    grpc::ClientContext context;
    Prepare(&context);
    context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    call(&context);
    EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
    std::istringstream text(::testing::internal::GetCapturedStderr());
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) {
      if (line.find("slow call") != line.npos) lines.push_back(line);
    }
    return lines;
  }
};

TEST_F(RequestLogTest, ASlowCallSaysWhoseItIs) {
  options_.slow_call_nanos = 1;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  const std::string key(32, 'k');
  const auto touched = LinesOf([&](grpc::ClientContext* context) {
    v1::TouchRequest request;
    request.set_ns_id(ns.ns_id());
    request.mutable_keys()->set_key_bytes(32);
    request.mutable_keys()->set_packed(key);
    request.set_request_id(0xabc);
    v1::TouchReply reply;
    EXPECT_TRUE(stub_->Touch(context, request, &reply).ok());
  });
  ASSERT_EQ(touched.size(), 1u);
  EXPECT_THAT(touched[0],
              AllOf(HasSubstr("Touch"), HasSubstr("team"), HasSubstr("0000000000000abc"),
                    HasSubstr("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"),
                    Not(HasSubstr(kToken)), Not(HasSubstr(key))));
  const auto written = LinesOf([&](grpc::ClientContext* context) {
    v1::WriteRunReply reply;
    const auto writer = stub_->WriteRun(context, &reply);
    v1::WriteFrame frame;
    *frame.mutable_open() = OpenOf(ns, key);
    frame.mutable_open()->set_request_id(0xdef);
    writer->Write(frame);
    frame.Clear();
    frame.set_payload(std::string(4096, 'x'));
    writer->Write(frame);
    writer->WritesDone();
    EXPECT_TRUE(writer->Finish().ok());
  });
  ASSERT_EQ(written.size(), 1u);
  EXPECT_THAT(written[0], AllOf(HasSubstr("WriteRun"), HasSubstr("0000000000000def"),
                                HasSubstr("4096"), HasSubstr("4bf92f3577b34da6")));
  EXPECT_GE(server_->Stats().slow_calls, 3u);  // with the Hello
}

TEST_F(RequestLogTest, QuickOnesSayNothing) {
  options_.slow_call_nanos = 3600'000'000'000;
  Start();
  const auto none = LinesOf([&](grpc::ClientContext* context) {
    v1::StatsReply reply;
    EXPECT_TRUE(stub_->Stats(context, {}, &reply).ok());
  });
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(server_->Stats().slow_calls, 0u);
}

TEST_F(RequestLogTest, ManySlowOnesAreCountedAndSomeAreLogged) {
  options_.slow_call_nanos = 1;
  Start();
  constexpr uint64_t kCalls = 300;
  const auto begin = std::chrono::steady_clock::now();
  const auto lines = LinesOf([&](grpc::ClientContext*) {
    v1::StatsReply reply;
    for (uint64_t i = 0; i < kCalls; ++i) {
      EXPECT_TRUE(Call(&v1::KvCache::Stub::Stats, v1::StatsRequest(), &reply).ok());
    }
  });
  const auto seconds =
      std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  EXPECT_EQ(server_->Stats().slow_calls, kCalls);
  EXPECT_GE(lines.size(), RequestLog::kLinesPerSecond);
  EXPECT_LE(lines.size(), RequestLog::kLinesPerSecond * static_cast<uint64_t>(seconds.count() + 1));
}

}  // namespace
}  // namespace kvarve
