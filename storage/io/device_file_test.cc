#include "storage/io/device_file.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/abseil.h"
#include "storage/io/io_request.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class DeviceFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "device_file_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Make(const std::string& name, size_t bytes) const {
    std::ofstream(Path(name)) << std::string(bytes, 'x');
    return Path(name);
  }
  static std::string Refusal(const std::string& path) {
    const auto file = OpenDeviceFile(path, {.lock_wait_nanos = 0});
    EXPECT_FALSE(file.ok());
    return file.ok() ? "" : std::string(ToStd(file.status().message()));
  }

  std::string folder_;
};

TEST_F(DeviceFileTest, AFileHasItsWholeUnits) {
  const auto file = OpenDeviceFile(Make("a", 3 * 4096 + 5), {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes, 3 * 4096u);
  EXPECT_FALSE(file->block_device);
}

TEST_F(DeviceFileTest, RefusesWhatIsNoDeviceAndSaysWhatToDo) {
  EXPECT_THAT(Refusal(Path("none")), HasSubstr("kvarve device format"));
  Make("a", 4096);
  fs::create_symlink(Path("a"), Path("link"));
  EXPECT_THAT(Refusal(Path("link")), HasSubstr("symbolic link"));
  fs::create_directory(Path("dir"));
  EXPECT_THAT(Refusal(Path("dir")), HasSubstr("directory"));
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Refusal(Path("pipe")), HasSubstr("neither a regular file nor a block device"));
  EXPECT_THAT(Refusal("/dev/null"), HasSubstr("neither a regular file nor a block device"));
}

TEST_F(DeviceFileTest, OneProcessHasIt) {
  const std::string path = Make("a", 4096);
  {
    const auto file = OpenDeviceFile(path, {});
    ASSERT_TRUE(file.ok());
    EXPECT_THAT(Refusal(path), HasSubstr("in use by another process"));
  }
  EXPECT_TRUE(OpenDeviceFile(path, {}).ok());
}

TEST_F(DeviceFileTest, CreatesAndAllocates) {
  auto file = OpenDeviceFile(Path("new"), {.create = true});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes, 0u);
  ASSERT_TRUE(AllocateFile(&*file, 1 << 20).ok());
  struct stat facts;
  ASSERT_EQ(::stat(Path("new").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_size, 1 << 20);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_GE(facts.st_blocks * 512, 1 << 20);
  ASSERT_TRUE(AllocateFile(&*file, 1 << 16).ok());
  EXPECT_EQ(fs::file_size(Path("new")), 1u << 16);
}

TEST_F(DeviceFileTest, NoSpaceIsResourceExhaustedAndTakesNone) {
  auto file = OpenDeviceFile(Path("new"), {.create = true});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(AllocateFile(&*file, 1 << 20).ok());
  struct statvfs space;
  ASSERT_EQ(::statvfs(folder_.c_str(), &space), 0);
  const uint64_t all = static_cast<uint64_t>(space.f_blocks) * space.f_frsize;
  for (const uint64_t bytes : {uint64_t{1} << 60, all + (16 << 20)}) {
    const absl::Status status = AllocateFile(&*file, bytes / kIoUnit * kIoUnit);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(ToStd(status.message())), HasSubstr("free"));
    struct stat facts;
    ASSERT_EQ(::stat(Path("new").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_size, 1 << 20);
    EXPECT_LE(facts.st_blocks * 512, 2 << 20);
  }
}

// What the check of the space does not see: the file is as it was.
TEST_F(DeviceFileTest, AnAllocationThatIsRefusedLeavesTheFileAsItWas) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    auto file = OpenDeviceFile(Path("a"), {.create = true});
    if (!file.ok() || !AllocateFile(&*file, 1 << 20).ok()) ::_exit(2);
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(3);
    limit.rlim_cur = 8 << 20;  // less is always allowed
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(3);
    const bool refused = absl::IsResourceExhausted(AllocateFile(&*file, 16 << 20));
    ::_exit(refused && fs::file_size(Path("a")) == 1 << 20 && file->bytes == 1 << 20 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(DeviceFileTest, AFolderThatIsMissingIsNamed) {
  const auto file = OpenDeviceFile(Path("no/such"), {.create = true});
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ToStd(file.status().message())),
              HasSubstr("there is no folder " + Path("no")));
}

// ramfs has no direct I/O. In a mount namespace of a child, so that nothing stays.
TEST_F(DeviceFileTest, WithoutDirectIoItIsBuffered) {
  constexpr int kNotAllowed = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("kvarve", folder_.c_str(), "ramfs", 0, nullptr) != 0)
      ::_exit(kNotAllowed);
    Make("a", 4096);
    const auto file = OpenDeviceFile(Path("a"), {});
    const bool good =
        file.ok() && !file->direct && file->fallback_reason.find("O_DIRECT") != std::string::npos;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) GTEST_SKIP() << "no right to mount a ramfs here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvarve
