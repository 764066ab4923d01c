// Goal: the published forms of traces are read as they are meant, and nothing else is.
#include "client/cli/trace_file.h"

#include <fstream>
#include <string>
#include <vector>

#include "client/cli/replay_report.h"
#include "gtest/gtest.h"
#include "storage/policy/access_log.h"

namespace kvarve::cli {
namespace {

TEST(TraceFile, ReadsMooncakeLines) {
  const Trace trace = ParseTraceFile(
                          "{\"timestamp\": 1000, \"input_length\": 1100, \"output_length\": 7, "
                          "\"hash_ids\": [5, 6, 9]}\r\n\n"
                          "{\"timestamp\": 3500, \"hash_ids\": [5, 9]}\n")
                          .value();
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 1100u);
  EXPECT_EQ(trace.requests[0].response_tokens, 7u);
  EXPECT_EQ(trace.requests[1].response_tokens, UINT32_MAX);
  EXPECT_DOUBLE_EQ(trace.requests[1].seconds, 2.5);
  EXPECT_EQ(trace.references, 5u);
  EXPECT_EQ(trace.unique_ids, 3u);
  EXPECT_EQ(trace.parents.size(), 4u);  // the second 9 has another parent
}

TEST(TraceFile, ReadsNanosecondsInTexts) {
  const Trace trace = ParseTraceFile(
                          "{\"timestamp\": \"1753694362340138614\", \"hash_ids\": [1]}\n"
                          "{\"timestamp\": \"1753694363840138614\", \"hash_ids\": [1]}")
                          .value();
  EXPECT_NEAR(trace.requests[1].seconds, 1.5, 1e-6);
}

TEST(TraceFile, ReadsCsv) {
  EXPECT_EQ(ParseTraceFile("timestamp,in,out,ids\n1,2,3,4-6\n").value().references, 3u);
}

TEST(TraceFile, ReadsWhatADaemonRecorded) {
  const std::string path = ::testing::TempDir() + "kvarve_recorded";
  const auto write = [&](const std::vector<Access>& accesses) {
    std::string log = AccessLogHeader();
    for (const Access& access : accesses) AppendAccess(access, &log);
    std::ofstream(path, std::ios::binary) << log;
  };
  write({{.request = 1, .ids = {5, 6}}, {.micros = 500'000, .request = 2, .ids = {5}}});
  const auto trace = ReadTraceFile(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->references, 3u);
  EXPECT_DOUBLE_EQ(trace->requests[1].seconds, 0.5);
  write({{.request = 0, .ids = {5, 6}}});
  EXPECT_EQ(ReadTraceFile(path).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(path, std::ios::binary) << kAccessLogMagic << "x";
  EXPECT_EQ(ReadTraceFile(path).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TraceFile, RefusesWhatIsNoTrace) {
  for (const char* text : {"{", "{}", "{\"hash_ids\": 1}", "{\"hash_ids\": [\"a\"]}",
                           "{\"hash_ids\": [1.5]}", "{\"hash_ids\": [1], \"timestamp\": \"x\"}",
                           "{\"hash_ids\": [1], \"timestamp\": []}", "{\"hash_ids\": [1]}\n7\n"}) {
    EXPECT_EQ(ParseTraceFile(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ReadTraceFile("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST(ReplayPage, IsOneStaticPage) {
  ReplayReport report{.trace = "a<b>.jsonl", .policy = "hazard", .unique_blocks = 100};
  for (const double share : {0.01, 0.1})
    report.rows.push_back({.share = share, .hit_ratio = share * 2, .belady = share * 4});
  const std::string page = ReplayPage(report);
  EXPECT_NE(page.find("a&#60;b&#62;.jsonl"), std::string::npos);
  EXPECT_EQ(page.find("a<b>"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);
  // The larger share's value is the half of the highest, which stands at 16; the axis ends at 260.
  EXPECT_NE(page.find("530.0,138.0"), std::string::npos) << page;
  EXPECT_NE(page.find("530.0,16.0"), std::string::npos);
  EXPECT_EQ(page.find("Drive writes a day</h2>"), std::string::npos);  // nothing was written
}

}  // namespace
}  // namespace kvarve::cli
