#include "client/cli/command_tree.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace kvarve::cli {
namespace {

TEST(CommandTreeTest, HasEveryCommandAndOptionButHiddenOnes) {
  CLI::App app("says what it is", "program");
  std::string text = "five";
  bool flag = false;
  app.add_option("-t,--text", text, "Some text")->envname("TEXT")->capture_default_str();
  app.add_flag("--hidden", flag, "Not shown")->group("");
  CLI::App* const below = app.add_subcommand("below", "Goes down");
  below->add_flag("--deep", flag, "Deeper");
  const Json tree = CommandTree(app);
  EXPECT_EQ(tree["name"], "program");
  const Json option = {{"names", {"-t", "--text"}},
                       {"help", "Some text"},
                       {"value", "TEXT"},
                       {"default", "five"},
                       {"environment", "TEXT"}};
  ASSERT_EQ(tree["options"].size(), 2u);  // --help is the first
  EXPECT_EQ(tree["options"][1], option);
  ASSERT_EQ(tree["commands"].size(), 1u);
  EXPECT_EQ(tree["commands"][0]["name"], "below");
  EXPECT_EQ(tree["commands"][0]["options"].back()["names"], Json({"--deep"}));
  EXPECT_EQ(tree["commands"][0]["options"].back()["value"], "");
}

TEST(MeantWordTest, IsTheNearestOfWhatIsKnownThere) {
  CLI::App app("x", "program");
  std::string text;
  bool flag = false;
  app.add_option("-t,--text", text);
  CLI::App* const below = app.add_subcommand("below");
  below->add_flag("--deeper", flag);
  app.add_subcommand("status");
  const auto meant = [&](std::vector<std::string> words) { return MeantWord(app, words); };
  EXPECT_EQ(meant({"statsu"}), "status");
  EXPECT_EQ(meant({"--txt", "a"}), "--text");
  EXPECT_EQ(meant({"--text", "belo", "below", "--deper"}), "--deeper");
  EXPECT_EQ(meant({"-t", "belo", "belov"}), "below");
  EXPECT_EQ(meant({"below", "--texd=1"}), "--text");  // options of all commands may stand behind
  EXPECT_EQ(meant({"below", "file"}), "");
  EXPECT_EQ(meant({"--", "statsu"}), "");
  EXPECT_EQ(meant({"frobnicate"}), "");
  EXPECT_EQ(meant({"-x"}), "");
}

}  // namespace
}  // namespace kvarve::cli
