// Goal: a chunk's memory can be read by whoever gets its descriptor and changed by nobody but its
// maker. Method: every known way to write to, resize or punch the memory, through the descriptor
// that is handed out and through what can be made of it, is tried and must be refused.
#include "storage/arena/chunk.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "storage/arena/page_worker.h"

namespace kvarve {
namespace {

constexpr uint64_t kBytes = 32ull << 20;
using Present = ChunkMemory::Present;

std::shared_ptr<ChunkMemory> MakeChunk() {
  auto memory = ChunkMemory::Create("chunk-test", kBytes, /*huge_pages=*/false);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *memory;
}

uint64_t ResidentBytes(int fd) {
  struct stat info;
  EXPECT_EQ(0, ::fstat(fd, &info));
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

// Attempts that must fail on a descriptor, whatever it was opened for.
void ExpectNoWayToWrite(int fd) {
  errno = 0;
  EXPECT_EQ(MAP_FAILED, ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  EXPECT_TRUE(errno == EACCES || errno == EPERM) << errno;
  EXPECT_EQ(-1, ::pwrite(fd, "x", 1, 0));
  EXPECT_EQ(-1, ::ftruncate(fd, 0));
  EXPECT_EQ(-1, ::ftruncate(fd, kBytes * 2));
  EXPECT_EQ(-1, ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
  EXPECT_EQ(-1, ::fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 1 << 20));
  EXPECT_EQ(-1, ::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
  void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(MAP_FAILED, map);
  EXPECT_EQ(-1, ::mprotect(map, kBytes, PROT_READ | PROT_WRITE));
  EXPECT_EQ(-1, ::madvise(map, kBytes, MADV_REMOVE));
  // The kernel writing for us: a read() into the read-only map.
  UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(-1, ::read(zero.get(), map, 4096));
  EXPECT_EQ(EFAULT, errno);
  EXPECT_EQ(0, ::munmap(map, kBytes));
}

TEST(ChunkMemoryTest, ReaderSeesWhatTheMakerWrites) {
  auto memory = MakeChunk();
  EXPECT_EQ(kBytes, memory->bytes());
  EXPECT_EQ(4096u, memory->page_bytes());
  std::memset(memory->base() + kBytes - 4096, 0x5a, 4096);
  void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, memory->fd()->get(), 0);
  ASSERT_NE(MAP_FAILED, map);
  EXPECT_EQ(0x5a, static_cast<const unsigned char*>(map)[kBytes - 1]);
  memory->base()[kBytes - 1] = std::byte{0x77};  // sealed since, and still ours to write
  EXPECT_EQ(0x77, static_cast<const unsigned char*>(map)[kBytes - 1]);
  ::munmap(map, kBytes);
}

TEST(ChunkMemoryTest, HandedOutDescriptorIsReadOnlyAndSealed) {
  auto memory = MakeChunk();
  const int fd = memory->fd()->get();
  EXPECT_EQ(O_RDONLY, ::fcntl(fd, F_GETFL) & O_ACCMODE);
  EXPECT_EQ(FD_CLOEXEC, ::fcntl(fd, F_GETFD) & FD_CLOEXEC);
  const int seals = ::fcntl(fd, F_GET_SEALS);
  const int wanted = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(wanted, seals & wanted);
  ExpectNoWayToWrite(fd);
}

// arena.trust: writable. It can be mapped writable, and still neither shrinks nor takes new seals.
TEST(ChunkMemoryTest, AWritableChunkCanBeMappedWritableAndNotShrink) {
  auto memory =
      ChunkMemory::Create("chunk-test", kBytes, /*huge_pages=*/false, /*is_writable=*/true);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const int fd = (*memory)->fd()->get();
  void* const map = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(MAP_FAILED, map);
  static_cast<unsigned char*>(map)[5] = 0x55;
  EXPECT_EQ((*memory)->base()[5], std::byte{0x55});
  EXPECT_EQ(-1, ::ftruncate(fd, 0));
  EXPECT_EQ(-1, ::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
  EXPECT_EQ(F_SEAL_SHRINK, ::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
  EXPECT_EQ(0, ::munmap(map, kBytes));
}

TEST(ChunkMemoryTest, ReopeningForWritingGainsNothing) {
  auto memory = MakeChunk();
  const std::string path = absl::StrFormat("/proc/self/fd/%d", memory->fd()->get());
  UniqueFd writable(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (writable.valid()) ExpectNoWayToWrite(writable.get());
  memory->base()[0] = std::byte{1};
  UniqueFd truncating(::open(path.c_str(), O_RDWR | O_TRUNC | O_CLOEXEC));
  EXPECT_FALSE(truncating.valid());
  EXPECT_EQ(std::byte{1}, memory->base()[0]);
}

TEST(ChunkMemoryTest, MapIsNeitherDumpedNorForked) {
  auto memory = MakeChunk();
  memory->base()[0] = std::byte{1};
  std::ifstream smaps("/proc/self/smaps");
  const std::string start = absl::StrFormat("%x-", reinterpret_cast<uintptr_t>(memory->base()));
  std::string line, flags;
  bool inside = false;
  while (std::getline(smaps, line)) {
    if (line.rfind(start, 0) == 0) inside = true;
    if (inside && line.rfind("VmFlags:", 0) == 0) {
      flags = line;
      break;
    }
  }
  EXPECT_THAT(flags, testing::HasSubstr(" dc"));  // do not copy on fork
  EXPECT_THAT(flags, testing::HasSubstr(" dd"));  // do not include in core dump

  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char present;
    const int rc = ::mincore(memory->base(), 4096, &present);
    ::_exit(rc == -1 && errno == ENOMEM ? 0 : 1);  // ENOMEM: not mapped
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

TEST(ChunkMemoryTest, MissingHugePagesFallBack) {
  // Larger than any reservation: 1 TiB of address space, of which no page is touched.
  auto memory = ChunkMemory::Create("chunk-test", 1ull << 40, /*huge_pages=*/true);
  if (!memory.ok()) GTEST_SKIP() << "the host maps no 1 TiB: " << memory.status();
  EXPECT_EQ(4096u, (*memory)->page_bytes());
  EXPECT_EQ(0u, ResidentBytes((*memory)->fd()->get()));
}

TEST(ChunkMemoryTest, ReservedHugePagesAreUsedAndSealedAlike) {
  std::ifstream meminfo("/proc/meminfo");
  uint64_t free_pages = 0;
  for (std::string line; std::getline(meminfo, line);) {
    if (line.rfind("HugePages_Free:", 0) == 0) free_pages = std::stoull(line.substr(15));
  }
  if (free_pages < kBytes >> 21) GTEST_SKIP() << "no reserved huge pages (vm.nr_hugepages)";
  auto memory = ChunkMemory::Create("chunk-test", kBytes, /*huge_pages=*/true);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(2u << 20, (*memory)->page_bytes());
  ExpectNoWayToWrite((*memory)->fd()->get());
  (*memory)->base()[kBytes - 1] = std::byte{3};
  EXPECT_EQ((*memory)->Populate(0, kBytes), Present::kYes);
}

TEST(ChunkMemoryTest, PopulateTouchesTheRangeAndKeepsTheBytes) {
  auto memory = MakeChunk();
  EXPECT_EQ(0u, ResidentBytes(memory->fd()->get()));
  memory->base()[8 << 20] = std::byte{42};
  if (memory->Populate(8 << 20, 4 << 20) == Present::kNo)
    GTEST_SKIP() << "no MADV_POPULATE_WRITE here";
  EXPECT_EQ(4u << 20, ResidentBytes(memory->fd()->get()));
  EXPECT_EQ(std::byte{42}, memory->base()[8 << 20]);
}

// Whole huge pages of the range where the kernel gives them, small ones at its ends.
TEST(ChunkMemoryTest, PopulateGivesHugePagesOfTheRangeAndNoMore) {
  auto memory = ChunkMemory::Create("chunk-test", kBytes, /*huge_pages=*/true);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const bool is_reserved = (*memory)->page_bytes() == 2 << 20;
  (*memory)->base()[8 << 20] = std::byte{42};
  if ((*memory)->Populate(8 << 20, 5 << 20) == Present::kNo)
    GTEST_SKIP() << "no MADV_POPULATE_WRITE here";
  EXPECT_EQ(std::byte{42}, (*memory)->base()[8 << 20]);
  const uint64_t page_bytes = (*memory)->page_bytes();
  EXPECT_TRUE(page_bytes == 4096 || page_bytes == 2 << 20) << page_bytes;
  // Reserved pages are whole ones, and not counted here.
  if (!is_reserved) {
    EXPECT_EQ(5u << 20, ResidentBytes((*memory)->fd()->get()));
  }
}

// A page that a pipe holds cannot become part of a huge one; when the pipe is read, it can.
TEST(ChunkMemoryTest, PagesInHandAreToldAndBecomeHugeLater) {
  auto memory = ChunkMemory::Create("chunk-test", kBytes, /*huge_pages=*/true);
  ASSERT_TRUE(memory.ok()) << memory.status();
  if ((*memory)->page_bytes() == 2 << 20) GTEST_SKIP() << "reserved pages are huge already";
  (*memory)->Populate(0, 2 << 20);
  if ((*memory)->page_bytes() == 4096) GTEST_SKIP() << "no MADV_COLLAPSE of shared memory here";
  std::byte* const page = (*memory)->base() + (10 << 20) + 8192;
  *page = std::byte{42};
  int pipe[2];
  ASSERT_EQ(0, ::pipe2(pipe, O_CLOEXEC));
  const UniqueFd out(pipe[0]), in(pipe[1]);
  const iovec held{page, 4096};
  ASSERT_EQ(4096, ::vmsplice(in.get(), &held, 1, 0));
  EXPECT_EQ((*memory)->Populate(8 << 20, 4 << 20), Present::kBusy);
  EXPECT_EQ(6u << 20, ResidentBytes((*memory)->fd()->get()));
  char copy[4096];
  ASSERT_EQ(4096, ::read(out.get(), copy, sizeof(copy)));
  EXPECT_EQ(copy[0], 42);
  EXPECT_EQ((*memory)->Populate(8 << 20, 4 << 20), Present::kYes);
  EXPECT_EQ((*memory)->page_bytes(), 2u << 20);
  EXPECT_EQ(*page, std::byte{42});
}

TEST(PageWorkerTest, TouchesWhatIsAskedForAndNoMore) {
  auto memory = MakeChunk();
  PageWorker worker;
  ASSERT_TRUE(worker.Populate(memory, 0, 8 << 20, false));
  ASSERT_TRUE(worker.Populate(memory, 16 << 20, 1 << 20, true));
  worker.Drain();
  const uint64_t resident = ResidentBytes(memory->fd()->get());
  if (resident == 0) GTEST_SKIP() << "no MADV_POPULATE_WRITE here";
  EXPECT_EQ(9u << 20, resident);
}

TEST(PageWorkerTest, DroppedMemoryIsNotTouchedAndIsUnmapped) {
  auto memory = MakeChunk();
  auto fd = memory->fd();
  std::weak_ptr<ChunkMemory> watched = memory;
  memory->Cancel();
  PageWorker worker;
  ASSERT_TRUE(worker.Populate(memory, 0, kBytes, false));
  worker.Unmap(std::move(memory));
  worker.Drain();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(0u, ResidentBytes(fd->get()));
}

TEST(PageWorkerTest, QueueIsBoundedAndWritersAreNotDisturbed) {
  auto memory = MakeChunk();
  PageWorker worker;
  size_t queued = 0;
  for (size_t i = 0; i < PageWorker::kMaxQueued * 4; ++i) {
    queued += worker.Populate(memory, 0, kBytes, false);
  }
  EXPECT_GE(queued, PageWorker::kMaxQueued);
  std::thread writer([&] { std::memset(memory->base(), 0x33, kBytes); });
  writer.join();
  worker.Drain();
  for (uint64_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(std::byte{0x33}, memory->base()[at]);
}

}  // namespace
}  // namespace kvarve
