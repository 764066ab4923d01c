// Keys against the golden vectors of the chain hash, and every input that is none.
#include "client/cli/block_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Error(const BlockFlags& flags) { return std::string(KeysOf(flags).status().message()); }

TEST(BlockInputTest, KeysOfTokensAreTheChainHash) {
  std::ifstream file("storage/block/testdata/prefix_hash.json");
  ASSERT_TRUE(file) << "run from the repository's root";
  const nlohmann::json vectors = nlohmann::json::parse(file);
  int tried = 0;
  for (const nlohmann::json& vector : vectors) {
    if (vector["key_bytes"] != 32 || !vector["extras"].empty() || vector["keys"].empty()) continue;
    SCOPED_TRACE(vector["name"].get<std::string>());
    BlockFlags flags;
    flags.block_tokens = vector["block_tokens"];
    flags.tokens = vector["tokens"].dump();
    const auto keys = KeysOf(flags);
    ASSERT_TRUE(keys.ok()) << keys.status();
    ASSERT_EQ(keys->size(), vector["keys"].size());
    for (size_t i = 0; i < keys->size(); ++i) EXPECT_EQ(ToHex((*keys)[i].bytes), vector["keys"][i]);
    ++tried;
  }
  EXPECT_GE(tried, 2);
}

TEST(BlockInputTest, Tokens) {
  EXPECT_THAT(*ParseTokens("1,2 3\n[4]\t4294967295"), ElementsAre(1, 2, 3, 4, 4294967295u));
  EXPECT_TRUE(ParseTokens(" \n")->empty());
  for (const char* wrong : {"-1", "4294967296", "1.5", "x", "1;2", "0x10"}) {
    EXPECT_FALSE(ParseTokens(wrong).ok()) << wrong;
  }
}

TEST(BlockInputTest, ExactlyOneKindOfKeys) {
  BlockFlags flags;
  EXPECT_THAT(Error(flags), HasSubstr("exactly one"));
  flags.keys = {std::string(64, 'a'), std::string(64, 'b')};
  EXPECT_EQ(KeysOf(flags)->size(), 2u);
  EXPECT_EQ((*KeysOf(flags))[1].bytes[31], 0xbb);
  flags.tokens = "1,2";
  EXPECT_THAT(Error(flags), HasSubstr("exactly one"));
  flags.keys.clear();
  flags.block_tokens = 2;
  EXPECT_EQ(KeysOf(flags)->size(), 1u);
  flags.tokens_file = "/dev/null";
  EXPECT_THAT(Error(flags), HasSubstr("exactly one"));
  flags.tokens.clear();
  EXPECT_THAT(Error(flags), HasSubstr("do not fill one block"));
  flags.block_tokens = 0;
  EXPECT_FALSE(KeysOf(flags).ok());
  flags = BlockFlags();
  for (const std::string& wrong :
       {std::string(62, 'a'), std::string(66, 'a'), std::string(64, 'g'), std::string()}) {
    flags.keys = {wrong};
    EXPECT_THAT(Error(flags), HasSubstr("64 hexadecimal digits"));
  }
}

TEST(BlockInputTest, Descriptors) {
  BlockFlags flags;
  flags.block_bytes = "64KiB";
  const auto descriptor = DescriptorOf(flags);
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_EQ(descriptor->block_bytes, 65536u);
  EXPECT_EQ(DigestOf(*descriptor), DigestOf(*DescriptorOf(flags)));
  flags.salt = "mine";
  EXPECT_FALSE(DigestOf(*descriptor) == DigestOf(*DescriptorOf(flags)));
  flags.block_bytes = "17MiB";
  EXPECT_FALSE(DescriptorOf(flags).ok());
  flags.block_bytes = "many";
  EXPECT_FALSE(DescriptorOf(flags).ok());
}

TEST(BlockInputTest, Files) {
  char name[] = "/tmp/kvarve_input_XXXXXX";
  const int fd = ::mkstemp(name);
  ASSERT_GE(fd, 0);
  const std::string content = std::string(3 << 20, 'x') + "end";
  std::ofstream(name) << content;
  EXPECT_EQ(*ReadInput(name), content);
  ::close(fd);
  ::unlink(name);
  EXPECT_EQ(ReadInput(name).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadInput("/").ok());
}

}  // namespace
}  // namespace kvarve::cli
