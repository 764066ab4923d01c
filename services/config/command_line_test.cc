#include "services/config/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/config/settings.h"

namespace kvarve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "kvarved");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

std::string Error(std::vector<const char*> arguments) {
  return std::string(Parse(std::move(arguments)).status().message());
}

TEST(CommandLineTest, FlagsOfSettings) {
  const auto line =
      Parse({"--config", "/x.yaml", "--arena.capacity_bytes", "50%", "--log.level=debug"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->action, CommandLine::Action::kRun);
  EXPECT_EQ(line->config_file, "/x.yaml");
  EXPECT_THAT(line->flags,
              ElementsAre(Pair("arena.capacity_bytes", "50%"), Pair("log.level", "debug")));
}

TEST(CommandLineTest, TheLastOfAFlagWinsAndEmptyIsAValue) {
  const auto line = Parse({"--log.level=debug", "--log.level=info", "--tenant.state_dir", ""});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->flags, ElementsAre(Pair("tenant.state_dir", ""), Pair("log.level", "info")));
}

// One that is lost without a word may be a ceiling.
TEST(CommandLineTest, EachFlagOfAListAdds) {
  const auto line = Parse({"--tenant.names=a,b", "--tenant.names", "c"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->flags, ElementsAre(Pair("tenant.names", "a,b,c")));
}

TEST(CommandLineTest, Actions) {
  EXPECT_EQ(Parse({"--check"})->action, CommandLine::Action::kCheck);
  EXPECT_EQ(Parse({"--print-config"})->action, CommandLine::Action::kPrintConfig);
  EXPECT_EQ(Parse({"--version"})->action, CommandLine::Action::kVersion);
  EXPECT_THAT(Error({"--check", "--version"}), HasSubstr("only one"));
}

TEST(CommandLineTest, HelpShowsEverySetting) {
  const auto line = Parse({"--help"});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->action, CommandLine::Action::kHelp);
  for (const Setting& setting : Settings())
    EXPECT_THAT(line->help, HasSubstr("--" + std::string(setting.name)));
  EXPECT_THAT(line->help, HasSubstr("Exit codes"));
}

TEST(CommandLineTest, UnknownFlags) {
  EXPECT_THAT(Error({"--arena.capacity", "1GiB"}),
              HasSubstr("--arena.capacity: no such flag; did you mean --arena.capacity_bytes?"));
  EXPECT_THAT(Error({"--log.levle=info"}), HasSubstr("did you mean --log.level?"));
  EXPECT_THAT(Error({"--frobnicate"}), HasSubstr("kvarved --help lists all"));
  EXPECT_THAT(Error({"stray"}), HasSubstr("stray"));
  EXPECT_FALSE(Parse({"--log.level"}).ok());
}

}  // namespace
}  // namespace kvarve
