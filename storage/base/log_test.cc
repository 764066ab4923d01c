#include "storage/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    SetLogLevel(LogLevel::kInfo);
    SetLogFormat(LogFormat::kText);
  }
  static std::string Logged(LogLevel level, std::string_view event,
                            std::initializer_list<LogField> fields = {}) {
    testing::internal::CaptureStderr();
    KvLog(level, event, fields);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, TextIsOneLineOfKeysAndValues) {
  EXPECT_THAT(
      Logged(LogLevel::kInfo, "session opened", {{"uid", "0"}, {"engine", "a b"}, {"empty", ""}}),
      MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{6}Z INFO session opened uid=0 "
                   "engine=\"a b\" empty=\"\"\n"));
}

TEST_F(LogTest, AHostileValueCannotForgeALine) {
  const std::string line = Logged(LogLevel::kError, "refused",
                                  {{"name", "x\n2026 INFO granted uid=\"0\"\x1b[2J\xff\x7f"}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_THAT(
      line,
      HasSubstr("name=\"x\\u000a2026 INFO granted uid=\\\"0\\\"\\u001b[2J\xEF\xBF\xBD\\u007f\"\n"));
}

TEST_F(LogTest, Json) {
  SetLogFormat(LogFormat::kJson);
  EXPECT_THAT(
      Logged(LogLevel::kWarning, "chunk \"1\"", {{"path", "C:\\\t\xC3\xA9"}}),
      MatchesRegex(
          "\\{\"ts\":\"[0-9T:.Z-]{27}\",\"level\":\"warning\",\"event\":\"chunk \\\\\"1\\\\\"\","
          "\"path\":\"C:\\\\\\\\\\\\u0009\xC3\xA9\"\\}\n"));
}

TEST_F(LogTest, LongValuesAreCutBetweenCharacters) {
  std::string value;
  while (value.size() < 5000) value += "\xE2\x82\xAC";  // three bytes: 1024 falls inside one
  const std::string line = Logged(LogLevel::kInfo, "long", {{"value", value}});
  EXPECT_THAT(line, HasSubstr("value=\"" + value.substr(0, 1023) + "...\"\n"));
}

TEST_F(LogTest, LevelsBelowTheLimitAreSilent) {
  EXPECT_EQ(Logged(LogLevel::kDebug, "quiet"), "");
  SetLogLevel(LogLevel::kDebug);
  EXPECT_THAT(Logged(LogLevel::kDebug, "loud"), HasSubstr(" DEBUG loud\n"));
  SetLogLevel(LogLevel::kError);
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  EXPECT_EQ(Logged(LogLevel::kWarning, "quiet"), "");
}

TEST_F(LogTest, LinesOfThreadsDoNotMix) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i)
        KvLog(LogLevel::kInfo, "mixed", {{"value", std::string(100, 'v')}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string all = testing::internal::GetCapturedStderr();
  const std::string tail = " INFO mixed value=" + std::string(100, 'v');
  size_t lines = 0;
  for (size_t begin = 0, end; (end = all.find('\n', begin)) != std::string::npos;
       begin = end + 1, ++lines) {
    ASSERT_EQ(all.substr(begin + 27, end - begin - 27), tail);
  }
  EXPECT_EQ(lines, 800u);
}

}  // namespace
}  // namespace kvarve
