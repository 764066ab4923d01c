// A filesystem whose files are those of another folder, and whose requests fail, lie or wait as
// fault_fs.h's record in that folder says. Ends with SIGTERM.
//   fault_fs FOLDER MOUNTPOINT
#define FUSE_USE_VERSION 312
#include "tests/integration/fault_fs.h"

#include <fcntl.h>
#include <fuse3/fuse.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

namespace {

std::string folder;
kvarve::testing::FsFaults* faults = nullptr;

uint32_t Random() {
  thread_local std::minstd_rand random{std::random_device{}()};
  return static_cast<uint32_t>(random());
}

bool Happens(const std::atomic<uint32_t>& one_in) {
  const uint32_t n = one_in.load();
  if (n == 0 || Random() % n != 0) return false;
  ++faults->faults;
  return true;
}

// A delay ends when the filesystem is healed.
void Wait() {
  using std::chrono::microseconds;
  constexpr microseconds kStep{20'000};
  microseconds left{faults->delay_micros.load()};
  for (; left.count() > 0 && faults->delay_micros.load() > 0; left -= kStep) {
    std::this_thread::sleep_for(std::min(left, kStep));
  }
}

int Answer(int64_t result) { return result < 0 ? -errno : static_cast<int>(result); }
int FileOf(const fuse_file_info* info) { return static_cast<int>(info->fh); }

void* Init(fuse_conn_info*, fuse_config* config) {
  config->kernel_cache = 0;
  config->direct_io = 1;
  return nullptr;
}
int GetAttr(const char* path, struct stat* facts, fuse_file_info*) {
  return Answer(::lstat((folder + path).c_str(), facts));
}
int OpenFile(const char* path, fuse_file_info* info) {
  const int flags = info->flags & ~(O_DIRECT | O_NOFOLLOW | O_NONBLOCK);
  const int fd = ::open((folder + path).c_str(), flags | O_CLOEXEC);
  if (fd < 0) return -errno;
  info->fh = static_cast<uint64_t>(fd);
  info->direct_io = 1;
  return 0;
}
int Release(const char*, fuse_file_info* info) { return Answer(::close(FileOf(info))); }
int Read(const char*, char* to, size_t size, off_t at, fuse_file_info* info) {
  Wait();
  ++faults->reads;
  if (Happens(faults->read_one_in)) return -faults->read_error.load();
  const ssize_t got = ::pread(FileOf(info), to, size, at);
  if (got > 0 && Happens(faults->flip_one_in)) {
    to[Random() % static_cast<size_t>(got)] ^= static_cast<char>(1u << Random() % 8);
  }
  return Answer(got);
}
int Write(const char*, const char* from, size_t size, off_t at, fuse_file_info* info) {
  Wait();
  ++faults->writes;
  if (Happens(faults->write_one_in)) {
    if (const int error = faults->write_error.load(); error != 0) return -error;
    size /= 2;  // what was written of a short one is there
  }
  return Answer(::pwrite(FileOf(info), from, size, at));
}
int Sync(const char*, int, fuse_file_info* info) {
  Wait();
  ++faults->syncs;
  if (Happens(faults->sync_one_in)) return -faults->sync_error.load();
  return Answer(::fdatasync(FileOf(info)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  folder = argv[1];
  const std::string control = folder + "/" + kvarve::testing::kFaultsFile;
  const int fd = ::open(control.c_str(), O_RDWR | O_CLOEXEC);
  void* const map = ::mmap(nullptr, sizeof(*faults), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || map == MAP_FAILED) {
    std::perror(control.c_str());
    return 2;
  }
  faults = static_cast<kvarve::testing::FsFaults*>(map);
  fuse_operations operations{};
  operations.init = Init;
  operations.getattr = GetAttr;
  operations.open = OpenFile;
  operations.release = Release;
  operations.read = Read;
  operations.write = Write;
  operations.fsync = Sync;
  char foreground[] = "-f";
  char option[] = "-o", threads[] = "max_threads=16";
  char* arguments[] = {argv[0], foreground, option, threads, argv[2], nullptr};
  return fuse_main(5, arguments, &operations, nullptr);
}
