// A replaced file has all of the new bytes or all of the old ones, and is its owner's alone.
#include "storage/base/write_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace kvarve {
namespace {

class ReplaceFileTest : public ::testing::Test {
 protected:
  ReplaceFileTest() {
    char name[] = "/tmp/kvarve_write_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  ~ReplaceFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Read(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  std::string folder_;
};

TEST_F(ReplaceFileTest, TheNewOneStandsWhereTheOldOneStood) {
  const std::string path = folder_ + "/file";
  ASSERT_EQ(ReplaceFile(path, std::string(100'000, 'a')), absl::OkStatus());
  std::ofstream(path + ".next") << "left by a crash";
  ASSERT_EQ(ReplaceFile(path, "b"), absl::OkStatus());
  EXPECT_EQ(Read("file"), "b");
  struct stat st;
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(path + ".next"));
}

TEST_F(ReplaceFileTest, WhereItCannotTheOldOneStays) {
  ASSERT_EQ(ReplaceFile(folder_ + "/file", "old"), absl::OkStatus());
  std::filesystem::create_directory(folder_ + "/file.next");  // in the way
  EXPECT_EQ(ReplaceFile(folder_ + "/file", "new").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Read("file"), "old");
  EXPECT_EQ(ReplaceFile(folder_ + "/none/file", "new").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvarve
