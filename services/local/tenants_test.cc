// Tenants by rule, and salts that are secret, random, and the same after a restart.
#include "services/local/tenants.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvarve {
namespace {

using ::testing::HasSubstr;

class TenantsTest : public ::testing::Test {
 protected:
  TenantsTest() {
    std::string pattern = "/tmp/kvarve-tenants-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_.state_dir = folder_ + "/state";
    options_.tenants = {{1, 2, "both"}, {1, std::nullopt, "uid"}, {std::nullopt, 3, "gid"}};
  }
  ~TenantsTest() override { std::filesystem::remove_all(folder_); }

  std::string SaltFile() const { return options_.state_dir + "/tenant_salts"; }
  std::string Read() const {
    std::ifstream in(SaltFile());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void Write(const std::string& text, mode_t mode = 0600) {
    std::filesystem::create_directories(options_.state_dir);
    std::ofstream(SaltFile()) << text;
    ASSERT_EQ(::chmod(SaltFile().c_str(), mode), 0);
  }
  static NamespaceDescriptor Descriptor() {
    NamespaceDescriptor d;
    d.model = "m";
    d.model_digest = "digest";
    d.element_type = ElementType::kOpaque;
    d.layer_count = d.layer_total = d.kv_head_count = d.kv_head_total = 1;
    d.block_tokens = 16;
    d.block_bytes = 4096;
    d.hash_version = "kvarve-chain-1";
    return d;
  }
  std::string SaltOf(Tenants& tenants, const std::string& tenant) {
    const auto complete = tenants.Complete(tenant, Descriptor(), DigestOf(Descriptor()));
    EXPECT_TRUE(complete.ok()) << complete.status();
    EXPECT_EQ(complete->tenant, tenant);
    return complete->tenant_salt;
  }

  std::string folder_;
  LocalServerOptions options_;
};

TEST_F(TenantsTest, TheFirstRuleThatMatches) {
  const auto tenants = Tenants::Create(options_);
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ((*tenants)->TenantOf(1, 2, {}), "both");
  EXPECT_EQ((*tenants)->TenantOf(1, 9, {7, 2}), "both");
  EXPECT_EQ((*tenants)->TenantOf(1, 3, {}), "uid");
  EXPECT_EQ((*tenants)->TenantOf(5, 3, {}), "gid");
  EXPECT_EQ((*tenants)->TenantOf(5, 4, {3}), "gid");
  EXPECT_EQ((*tenants)->TenantOf(5, 4, {4}), "default");
}

TEST_F(TenantsTest, SaltsAreKeptSecretAndSeparate) {
  std::map<std::string, std::string> salts;
  {
    const auto tenants = Tenants::Create(options_);
    ASSERT_TRUE(tenants.ok()) << tenants.status();
    for (const char* name : {"both", "uid", "gid", "default"})
      salts[name] = SaltOf(**tenants, name);
  }
  std::set<std::string> distinct;
  for (const auto& [name, salt] : salts) {
    EXPECT_EQ(salt.size(), kTenantSaltBytes);
    distinct.insert(salt);
  }
  EXPECT_EQ(distinct.size(), 4u);
  struct stat st;
  ASSERT_EQ(::stat(SaltFile().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);

  options_.tenants.pop_back();
  options_.tenants.push_back({7, std::nullopt, "new one"});
  {
    const auto again = Tenants::Create(options_);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(SaltOf(**again, "both"), salts["both"]);
    EXPECT_EQ(SaltOf(**again, "default"), salts["default"]);
    EXPECT_FALSE(distinct.contains(SaltOf(**again, "new one")));
  }
  // A tenant that comes back finds its salt.
  options_.tenants = {{std::nullopt, 3, "gid"}};
  const auto back = Tenants::Create(options_);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(SaltOf(**back, "gid"), salts["gid"]);
}

// Tenants that only remote callers have get salts too, and who is not known gets none.
TEST_F(TenantsTest, TenantsOfOtherPlanes) {
  options_.more_tenants = {"remote"};
  const auto tenants = Tenants::Create(options_);
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ(SaltOf(**tenants, "remote").size(), kTenantSaltBytes);
  EXPECT_EQ((*tenants)->Complete("stranger", Descriptor(), DigestOf(Descriptor())).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TenantsTest, AnUnsafeOrDamagedFileIsRefusedAndKept) {
  ASSERT_TRUE(Tenants::Create(options_).ok());
  const std::string good = Read();
  Write(good, 0640);
  EXPECT_EQ(Tenants::Create(options_).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& damaged :
       {std::string("hello\n"), good.substr(0, good.size() - 1), good + good.substr(22),
        good + "zz\n", good + std::string(64, 'g') + " name\n"}) {
    Write(damaged);
    const auto tenants = Tenants::Create(options_);
    EXPECT_EQ(tenants.status().code(), absl::StatusCode::kFailedPrecondition) << damaged;
    EXPECT_THAT(std::string(tenants.status().message()), HasSubstr(SaltFile()));
    EXPECT_EQ(Read(), damaged);
  }
  Write(good);
  EXPECT_TRUE(Tenants::Create(options_).ok());
  std::filesystem::remove(SaltFile());
  std::filesystem::create_symlink("/dev/null", SaltFile());
  EXPECT_FALSE(Tenants::Create(options_).ok());
}

TEST_F(TenantsTest, NamesAreText) {
  for (const std::string& name :
       {std::string(), std::string(200, 'x'), std::string("a\nb"), std::string("\xff")}) {
    LocalServerOptions options = options_;
    options.default_tenant = name;
    EXPECT_EQ(Tenants::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvarve
