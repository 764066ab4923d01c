// Sources and their order, every way a file can be wrong, printing, and the committed
// documentation.
#include "services/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "services/config/docs.h"
#include "services/config/yaml_file.h"

namespace kvarve {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    char name[] = "/tmp/kvarve_config_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/kvarved.yaml";
  }
  ~ConfigTest() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  void Write(std::string_view text) { std::ofstream(path_) << text; }
  absl::StatusOr<Config> LoadFile(std::string_view text) {
    Write(text);
    return Config::Load({.file = path_});
  }
  std::string FileError(std::string_view text) {
    const absl::StatusOr<Config> config = LoadFile(text);
    return config.ok() ? "loaded" : std::string(config.status().message());
  }

  std::string folder_;
  std::string path_;
};

TEST_F(ConfigTest, DefaultsComeFromTheTable) {
  const absl::StatusOr<Config> config = Config::Load({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->CapacityOf("arena.capacity_bytes").percent, 40);
  EXPECT_EQ(config->Bytes("arena.chunk_bytes"), 256u << 20);
  EXPECT_EQ(config->Text("socket.path"), "/run/kvarve/kvarved.sock");
  EXPECT_EQ(config->Address("metrics.listen").ToString(), "127.0.0.1:9410");
  EXPECT_TRUE(config->Address("rpc.listen").off());
  EXPECT_EQ(config->Origin("arena.capacity_bytes"), "default");
}

TEST_F(ConfigTest, LaterSourcesWin) {
  Write(
      "arena:\n  capacity_bytes: 1GiB\n  chunk_bytes: 64MiB\nlog.level: debug\nsocket:\n  "
      "allow_uids: [1, 2]\n");
  const absl::StatusOr<Config> config = Config::Load(
      {.file = path_,
       .environment = {"HOME=/x", "KVARVE_ARENA_CHUNK_BYTES=128MiB", "KVARVE_LOG_LEVEL=warning"},
       .flags = {{"log.level", "error"}}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->CapacityOf("arena.capacity_bytes").bytes, 1u << 30);
  EXPECT_EQ(config->Origin("arena.capacity_bytes"), "file " + path_ + " line 2");
  EXPECT_EQ(config->Bytes("arena.chunk_bytes"), 128u << 20);
  EXPECT_EQ(config->Origin("arena.chunk_bytes"), "environment KVARVE_ARENA_CHUNK_BYTES");
  EXPECT_EQ(config->Text("log.level"), "error");
  EXPECT_EQ(config->Origin("log.level"), "flag --log.level");
  EXPECT_EQ(config->List("socket.allow_uids"), (std::vector<std::string>{"1", "2"}));
}

TEST_F(ConfigTest, EveryMistakeIsNamedWithItsSource) {
  Write("arena.capacity: 3\nlog:\n  level: loud\n");
  const absl::StatusOr<Config> config =
      Config::Load({.file = path_,
                    .environment = {"KVARVE_ARENA_CAPACTY_BYTES=1"},
                    .flags = {{"arena.chunk_bytes", "1KiB"}}});
  ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string text(config.status().message());
  EXPECT_THAT(text, HasSubstr("arena.capacity (file " + path_ +
                              " line 1): no such setting; did you mean arena.capacity_bytes?"));
  EXPECT_THAT(
      text, HasSubstr("log.level (file " + path_ + " line 3): \"loud\" is not one of its choices"));
  EXPECT_THAT(text,
              HasSubstr("KVARVE_ARENA_CAPACTY_BYTES (environment): no such setting; did you mean "
                        "KVARVE_ARENA_CAPACITY_BYTES?"));
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("arena.chunk_bytes (flag --arena.chunk_bytes): \"1KiB\" is out of range"),
            HasSubstr("32.0 MiB to 1.00 GiB"), HasSubstr("for example 256MiB")));
}

TEST_F(ConfigTest, AWrongValueIsAnErrorThoughALaterSourceIsGood) {
  Write("log.level: loud\n");
  EXPECT_FALSE(Config::Load({.file = path_, .flags = {{"log.level", "info"}}}).ok());
}

TEST_F(ConfigTest, ForeignEnvironmentIsLeftAlone) {
  EXPECT_TRUE(
      Config::Load({.environment = {"KVARVE=1", "KVARVE_SERVICE_HOST=10.0.0.1", "KVARVE_ENDPOINT=x",
                                    "KVARVE_PORT_9410_TCP=tcp://10.0.0.1:9410"}})
          .ok());
  EXPECT_FALSE(Config::Load({.environment = {"KVARVE_SOCKETPATH=/x"}}).ok());
}

TEST_F(ConfigTest, ManyMistakesAreCut) {
  ConfigSources sources;
  for (int i = 0; i < 50; ++i)
    sources.flags.emplace_back("nothing.at.all" + std::to_string(i), "1");
  EXPECT_THAT(std::string(Config::Load(sources).status().message()), HasSubstr("and 30 more"));
}

TEST_F(ConfigTest, WrongFiles) {
  EXPECT_EQ(Config::Load({.file = folder_ + "/none.yaml"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(FileError("arena: [1\n"), HasSubstr(path_ + " line"));
  EXPECT_THAT(FileError("- a\n"), HasSubstr("not a map"));
  EXPECT_THAT(FileError("log.level: info\nlog:\n  level: debug\n"),
              HasSubstr("line 3: log.level is set twice"));
  EXPECT_THAT(FileError("log:\n  level:\n"), HasSubstr("line 2: log.level has no value"));
  EXPECT_THAT(FileError("socket.allow_uids: [[1]]\n"), HasSubstr("not plain text"));
  EXPECT_THAT(FileError("? [a]\n: 1\n"), HasSubstr("key that is not plain text"));
  EXPECT_THAT(FileError("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n"), HasSubstr("too deeply"));
  EXPECT_THAT(FileError(std::string(kMaxConfigFileBytes + 1, '#')), HasSubstr("larger than 1 MiB"));
  std::string many = "a: {";
  for (size_t i = 0; i <= kMaxYamlEntries; ++i) many += "k" + std::to_string(i) + ": 1, ";
  EXPECT_THAT(FileError(many + "}\n"), HasSubstr("one setting too many"));
  EXPECT_EQ(FileError(""), "loaded");
  EXPECT_EQ(FileError("# nothing\n"), "loaded");
}

// An alias bomb: each level names the one before nine times.
TEST_F(ConfigTest, AliasesAreBounded) {
  std::string bomb = "a0: &a0 {x: 1}\n";
  for (int i = 1; i < 7; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {";
    for (int j = 0; j < 9; ++j)
      bomb += "k" + std::to_string(j) + ": *a" + std::to_string(i - 1) + ", ";
    bomb += "}\n";
  }
  EXPECT_THAT(FileError(bomb), HasSubstr("one setting too many"));
}

TEST_F(ConfigTest, PrintLoadsToTheSame) {
  const absl::StatusOr<Config> config =
      Config::Load({.flags = {{"arena.capacity_bytes", "12.5%"},
                              {"socket.path", "/tmp/a \"quoted\" \\ # path"}}});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->Print(), HasSubstr("arena.capacity_bytes: \"12.5%\""));
  EXPECT_THAT(config->Print(), HasSubstr("# flag --arena.capacity_bytes"));
  const absl::StatusOr<Config> again = LoadFile(config->Print());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Text("socket.path"), "/tmp/a \"quoted\" \\ # path");
  EXPECT_EQ(again->CapacityOf("arena.capacity_bytes").percent, 12.5);
}

TEST(DocsTest, TheCommittedPageIsWhatTheTableSays) {
  std::ifstream file("docs/configuration.md");
  ASSERT_TRUE(file) << "run from the repository's root";
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), ConfigurationMarkdown())
      << "kvarved --print-docs > docs/configuration.md";
}

}  // namespace
}  // namespace kvarve
