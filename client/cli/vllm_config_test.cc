#include "client/cli/vllm_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>

namespace kvarve::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VllmConfigTest, TheDefaultConfiguration) {
  const auto config = KvTransferConfig(kDefaultEndpoint, {});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(
      config->dump(),
      R"({"kv_connector":"KvarveConnector","kv_connector_module_path":"kvarve.connectors.vllm.connector",)"
      R"("kv_role":"kv_both","kv_load_failure_policy":"recompute",)"
      R"("kv_connector_extra_config":{"endpoint":"unix:///run/kvarve/kvarved.sock"}})");
  EXPECT_THAT(VllmEnvironment(*config), ElementsAre("KVARVE=1"));
}

TEST(VllmConfigTest, SettingsKeepTheirTypes) {
  const std::vector<std::string> settings = {"block_tokens=256", "strict=true", "model_digest=a=b",
                                             "digest=1e"};
  const auto config = KvTransferConfig("unix:///tmp/k.sock", settings);
  ASSERT_TRUE(config.ok());
  const Json& extra = (*config)["kv_connector_extra_config"];
  EXPECT_EQ(extra["block_tokens"], 256);
  EXPECT_EQ(extra["strict"], true);
  EXPECT_EQ(extra["model_digest"], "a=b");
  EXPECT_EQ(extra["digest"], "1e");
  EXPECT_THAT(
      VllmEnvironment(*config),
      ElementsAre("KVARVE=1", "KVARVE_ENDPOINT=unix:///tmp/k.sock", "KVARVE_BLOCK_TOKENS=256",
                  "KVARVE_STRICT=true", "KVARVE_MODEL_DIGEST=a=b", "KVARVE_DIGEST=1e"));
  for (const char* wrong : {"", "=", "=5", "block_tokens"}) {
    const std::vector<std::string> one = {wrong};
    EXPECT_FALSE(KvTransferConfig("e", one).ok()) << wrong;
  }
}

// The shell itself says what it reads.
std::string Echoed(const std::string& word) {
  const std::string command = "printf %s " + ShellQuoted(word);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             &::pclose);
  std::array<char, 256> text{};
  return {text.data(), std::fread(text.data(), 1, text.size(), pipe.get())};
}

TEST(VllmConfigTest, QuotingSurvivesTheShell) {
  for (const char* word :
       {"plain", "it's", "two words", "$HOME `x` \\", "\"q\"", "a;b|c&d", "*?[x]", "'", "''"}) {
    EXPECT_EQ(Echoed(word), word);
  }
  EXPECT_EQ(ShellQuoted(""), "''");
}

TEST(VllmConfigTest, TextShowsBothWays) {
  const auto config = KvTransferConfig("unix:///tmp/k.sock", {});
  const std::string text = VllmText(*config, VllmEnvironment(*config));
  EXPECT_THAT(text, HasSubstr("--kv-transfer-config '{\"kv_connector\":\"KvarveConnector\""));
  EXPECT_THAT(text, HasSubstr("KVARVE=1 KVARVE_ENDPOINT=unix:///tmp/k.sock vllm serve MODEL\n"));
}

}  // namespace
}  // namespace kvarve::cli
