// Goal: shared memory comes in huge pages where the kernel can, with what was written there before.
// Method: what the kernel itself says of the mapping (/proc/self/smaps), and the bytes.
#include "storage/base/huge_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "storage/base/unique_fd.h"

// Newer than the headers of the oldest supported C library.
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace kvarve {
namespace {

UniqueFd Memory(uint64_t bytes) {
  UniqueFd fd(::memfd_create("huge-pages-test", MFD_CLOEXEC));
  EXPECT_EQ(0, ::ftruncate(fd.get(), static_cast<off_t>(bytes)));
  return fd;
}

// In bytes; of the mapping that begins at `at`.
uint64_t InSmaps(const void* at, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(at) << '-';
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(begin.str())) inside = true;
    if (inside && line.starts_with(field + ":")) {
      return std::stoull(line.substr(field.size() + 1)) * 1024;
    }
  }
  return 0;
}

// Linux 6.1 with huge pages, which nobody has denied to shared memory.
bool CanCollapse() {
  utsname name;
  int major = 0, minor = 0;
  if (::uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &major, &minor) != 2) return false;
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), setting);
  return (major > 6 || (major == 6 && minor >= 1)) && !setting.empty() &&
         setting.find("[deny]") == std::string::npos;
}

// Address space of this process.
uint64_t MappedPages() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(HugePagesTest, LongMappingsBeginAtAHugePageAndLeaveNothingAround) {
  for (const uint64_t bytes :
       {kHugePageBytes, kHugePageBytes + 4096, 3 * kHugePageBytes, 5 * kHugePageBytes + 5}) {
    const UniqueFd fd = Memory(bytes);
    ASSERT_EQ(5, ::pwrite(fd.get(), "there", 5, static_cast<off_t>(bytes - 5)));
    const uint64_t before = MappedPages();
    auto* const at = static_cast<std::byte*>(MapShared(fd.get(), bytes, PROT_READ | PROT_WRITE));
    ASSERT_NE(at, MAP_FAILED);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % kHugePageBytes, 0u);
    EXPECT_EQ(0, std::memcmp(at + bytes - 5, "there", 5));
    EXPECT_EQ(MappedPages() - before, (bytes + 4095) / 4096);  // without the room to align it
    EXPECT_EQ(0, ::munmap(at, bytes));
  }
}

TEST(HugePagesTest, ShortMappingsAndErrorsAreThoseOfMmap) {
  const UniqueFd fd = Memory(8192);
  void* const at = MapShared(fd.get(), 8192, PROT_READ);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_EQ(0, ::munmap(at, 8192));
  for (const uint64_t bytes : {uint64_t{4096}, kHugePageBytes}) {
    errno = 0;
    EXPECT_EQ(MapShared(-1, bytes, PROT_READ), MAP_FAILED);
    EXPECT_EQ(errno, EBADF);
  }
}

// What a mapping that fails had set aside is not unmapped under another thread that has it
// meanwhile.
TEST(HugePagesTest, AFailedMappingTakesNothingFromOtherThreads) {
  constexpr uint64_t kBytes = 1ull << 40;  // of reserved huge pages: more than any host has
  const UniqueFd fd(::memfd_create("huge-pages-test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!fd.valid()) GTEST_SKIP() << "no reserved huge pages here";
  ASSERT_EQ(0, ::ftruncate(fd.get(), static_cast<off_t>(kBytes)));
  std::atomic<bool> stop{false};
  uint64_t lost = 0;
  std::thread other([&] {
    constexpr uint64_t kOther = 1ull << 30;  // goes where the other one had its place
    while (!stop.load(std::memory_order_relaxed)) {
      void* const at =
          ::mmap(nullptr, kOther, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      ASSERT_NE(at, MAP_FAILED);
      std::this_thread::yield();
      lost += ::msync(at, kOther, MS_ASYNC) != 0 ? 1 : 0;  // ENOMEM: not mapped
      ::munmap(at, kOther);
    }
  });
  for (int i = 0; i < 20000; ++i) {
    errno = 0;
    EXPECT_EQ(MapShared(fd.get(), kBytes, PROT_READ | PROT_WRITE), MAP_FAILED);
    EXPECT_EQ(errno, ENOMEM);
  }
  stop = true;
  other.join();
  EXPECT_EQ(lost, 0u);
}

TEST(HugePagesTest, APageBecomesHugeAndKeepsItsBytes) {
  if (!CanCollapse()) GTEST_SKIP() << "no MADV_COLLAPSE of shared memory here";
  constexpr uint64_t kBytes = 8 * kHugePageBytes;
  const UniqueFd fd = Memory(kBytes);
  auto* const at = static_cast<std::byte*>(MapShared(fd.get(), kBytes, PROT_READ | PROT_WRITE));
  ASSERT_NE(at, MAP_FAILED);
  uint64_t huge = 0;
  for (uint64_t offset = 0; offset < kBytes; offset += 2 * kHugePageBytes) {
    at[offset + 12345] = std::byte{42};
    huge += PopulateHugePage(at + offset) ? kHugePageBytes : 0;
    EXPECT_EQ(at[offset + 12345], std::byte{42});
    EXPECT_EQ(at[offset + kHugePageBytes - 1], std::byte{0});
  }
  ASSERT_GT(huge, 0u) << "not one huge page in this host's memory";
  EXPECT_EQ(InSmaps(at, "ShmemPmdMapped"), huge);
  // Another mapping sees the same bytes, in huge pages, too.
  auto* const other = static_cast<std::byte*>(MapShared(fd.get(), kBytes, PROT_READ));
  ASSERT_NE(other, MAP_FAILED);
  for (uint64_t offset = 0; offset < kBytes; offset += 2 * kHugePageBytes) {
    EXPECT_EQ(other[offset + 12345], std::byte{42});
  }
  EXPECT_EQ(InSmaps(other, "ShmemPmdMapped"), huge);
  EXPECT_EQ(0, ::munmap(other, kBytes));
  EXPECT_EQ(0, ::munmap(at, kBytes));
}

// Pages become huge under writers, readers of another mapping and reads of a file into them, as a
// daemon's do: no byte is ever another one than was written.
TEST(HugePagesTest, WhatIsWrittenAndReadMeanwhileIsRight) {
  if (!CanCollapse()) GTEST_SKIP() << "no MADV_COLLAPSE of shared memory here";
  constexpr uint64_t kBytes = 16 * kHugePageBytes, kPiece = 64 << 10;
  constexpr uint64_t kPieces = kBytes / kPiece;
  const std::string path = ::testing::TempDir() + "huge-pages-test-" + std::to_string(::getpid());
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (!file.valid()) file.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  ::unlink(path.c_str());
  alignas(4096) static std::array<uint64_t, kPiece / 8> there;
  there.fill(~uint64_t{0});
  ASSERT_EQ(::pwrite(file.get(), there.data(), kPiece, 0), static_cast<ssize_t>(kPiece));

  uint64_t huge = 0, wrong = 0;
  for (int round = 0; round < 4; ++round) {
    const UniqueFd fd = Memory(kBytes);
    auto* const at = static_cast<std::byte*>(MapShared(fd.get(), kBytes, PROT_READ | PROT_WRITE));
    auto* const other = static_cast<std::byte*>(MapShared(fd.get(), kBytes, PROT_READ));
    ASSERT_TRUE(at != MAP_FAILED && other != MAP_FAILED);
    std::atomic<uint64_t> next{0}, bad{0};
    const auto of = [&](std::byte* base, uint64_t piece) {
      return reinterpret_cast<uint64_t*>(base + piece * kPiece);
    };
    // Each piece is written once, by hand or from the file, and read at once through the other
    // mapping.
    const auto put = [&] {
      while (true) {
        const uint64_t n = next.fetch_add(1), piece = n * 37 % kPieces;
        if (n >= kPieces) return;
        uint64_t* const words = of(at, piece);
        const uint64_t value = piece % 2 == 0 ? piece + 1 : ~uint64_t{0};
        if (piece % 2 == 0) {
          std::fill_n(words, kPiece / 8, value);
        } else if (::pread(file.get(), words, kPiece, 0) != static_cast<ssize_t>(kPiece)) {
          bad.fetch_add(1);
        }
        const uint64_t* const seen = of(other, piece);
        bad.fetch_add(std::count(seen, seen + kPiece / 8, value) != kPiece / 8 ? 1 : 0);
      }
    };
    std::thread one(put), two(put);
    for (uint64_t offset = 0; offset < kBytes; offset += kHugePageBytes) {
      huge += PopulateHugePage(at + offset) ? 1 : 0;
    }
    one.join();
    two.join();
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      const uint64_t* const seen = of(other, piece);
      const uint64_t value = piece % 2 == 0 ? piece + 1 : ~uint64_t{0};
      wrong += std::count(seen, seen + kPiece / 8, value) != kPiece / 8 ? 1 : 0;
    }
    wrong += bad.load();
    EXPECT_EQ(0, ::munmap(other, kBytes));
    EXPECT_EQ(0, ::munmap(at, kBytes));
  }
  std::printf("%llu huge pages of %llu\n", static_cast<unsigned long long>(huge),
              static_cast<unsigned long long>(4 * kBytes / kHugePageBytes));
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(huge, 0u);
}

}  // namespace
}  // namespace kvarve
