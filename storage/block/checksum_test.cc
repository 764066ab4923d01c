#include "storage/block/checksum.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "storage/block/golden_testing.h"

namespace kvarve {
namespace {

std::vector<CopyPath> Paths() {
  std::vector<CopyPath> paths = {CopyPath::kPortable};
  for (const CopyPath path : {CopyPath::kAvx2, CopyPath::kAvx512}) {
    if (CopyPathSupported(path)) paths.push_back(path);
  }
  return paths;
}

TEST(Crc64Test, PublishedCheckValue) {
  EXPECT_EQ(Crc64(0, "123456789", 9), 0x995dc9bbdf1939faull);
  EXPECT_EQ(Crc64Portable(0, "123456789", 9), 0x995dc9bbdf1939faull);
}

TEST(Crc64Test, GoldenVectors) {
  const nlohmann::json golden = ReadGolden("checksum.json");
  ASSERT_EQ(golden["crcs"].size(), 24u);
  for (const auto& entry : golden["crcs"]) {
    const std::string data = Unhex(entry["data"]);
    EXPECT_EQ(Crc64(UnhexWord(entry["initial"]), data.data(), data.size()),
              UnhexWord(entry["crc"]));
    EXPECT_EQ(Crc64Portable(UnhexWord(entry["initial"]), data.data(), data.size()),
              UnhexWord(entry["crc"]));
  }
  ASSERT_EQ(golden["blocks"].size(), 4u);
  for (const auto& entry : golden["blocks"]) {
    const std::string data = Unhex(entry["data"]);
    const uint64_t seed = ChecksumSeed({UnhexArray<16>(entry["ns_id"])},
                                       {UnhexArray<32>(entry["key"])}, entry["length"]);
    EXPECT_EQ(seed, UnhexWord(entry["seed"]));
    EXPECT_EQ(BlockChecksum(seed, data.data(), data.size()), UnhexWord(entry["checksum"]));
  }
}

TEST(Crc64Test, TwinsAgreeInPiecesAtAnyAlignment) {
  const uint64_t seed = 21;
  std::mt19937_64 random(seed);
  std::vector<uint8_t> data(60000);  // of which those from 16 KiB on are folded where that can be
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (int round = 0; round < 500; ++round) {
    const size_t begin = random() % 100, size = random() % (data.size() - begin);
    const size_t cut = size == 0 ? 0 : random() % size;
    const uint64_t initial = random();
    const uint64_t whole = Crc64(initial, &data[begin], size);
    ASSERT_EQ(Crc64Portable(initial, &data[begin], size), whole)
        << "seed " << seed << " round " << round;
    ASSERT_EQ(Crc64(Crc64(initial, &data[begin], cut), &data[begin + cut], size - cut), whole);
  }
}

TEST(CopyAndChecksumTest, IsMemcpyAndCrc) {
  const uint64_t seed = 22;
  std::mt19937_64 random(seed);
  std::vector<uint8_t> source(70000), buffer(70000 + 256);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  for (const CopyPath path : Paths()) {
    for (int round = 0; round < 600; ++round) {
      const size_t begin = random() % 200;
      const size_t size = random() % (round % 2 == 0 ? 300 : 60000);
      uint8_t* dst = &buffer[64 - reinterpret_cast<uintptr_t>(buffer.data()) % 64];
      std::memset(buffer.data(), 0xEE, buffer.size());
      const uint64_t initial = random();
      ASSERT_EQ(CopyAndChecksum(dst, &source[begin], size, initial, path),
                Crc64Portable(initial, &source[begin], size))
          << "seed " << seed << " round " << round;
      ASSERT_EQ(std::memcmp(dst, &source[begin], size), 0);
      for (const uint8_t* around : {dst - 1, dst + size, dst + size + 63}) ASSERT_EQ(*around, 0xEE);
    }
  }
}

TEST(StreamCopyTest, IsMemcpyAtAnyAlignment) {
  const uint64_t seed = 23;
  std::mt19937_64 random(seed);
  std::vector<uint8_t> source(9000), buffer(9000 + 256);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  for (const CopyPath path : Paths()) {
    for (int round = 0; round < 3000; ++round) {
      const size_t begin = random() % 128, to = 1 + random() % 128;
      const size_t size = random() % (round % 2 == 0 ? 200 : 8000);
      std::memset(buffer.data(), 0xEE, buffer.size());
      StreamCopy(&buffer[to], &source[begin], size, path);
      ASSERT_EQ(std::memcmp(&buffer[to], &source[begin], size), 0)
          << "seed " << seed << " round " << round;
      ASSERT_EQ(buffer[to - 1], 0xEE);
      ASSERT_EQ(buffer[to + size], 0xEE);
    }
  }
}

// Another process writes the source all the while, as a client may with its staging memory: what is
// stored must still be what the checksum was made of. The control that reads the source twice must
// fail now and then, or the scribbling proves nothing.
TEST(CopyAndChecksumTest, ScribblingClientCannotMakeAWrongChecksum) {
  constexpr size_t kBytes = 256 * 1024;
  void* shared = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto* words = static_cast<volatile uint64_t*>(shared);
    for (uint64_t value = 1; ::getppid() != 1; ++value) {
      for (size_t i = 0; i < kBytes / 8; i += 3) words[i] = value * i;
    }
    ::_exit(0);
  }
  while (static_cast<volatile uint64_t*>(shared)[3] == 0) {
  }
  void* stored = std::aligned_alloc(64, kBytes);
  int control_mismatches = 0;
  for (int round = 0; round < 100; ++round) {
    for (const CopyPath path : Paths()) {
      const uint64_t crc = CopyAndChecksum(stored, shared, kBytes, 1, path);
      ASSERT_EQ(crc, Crc64(1, stored, kBytes)) << round;
    }
  }
  for (int round = 0; round < 20000 && control_mismatches == 0; ++round) {
    std::memcpy(stored, shared, kBytes);
    control_mismatches += Crc64(1, shared, kBytes) != Crc64(1, stored, kBytes);
  }
  EXPECT_GT(control_mismatches, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::free(stored);
  ::munmap(shared, kBytes);
}

}  // namespace
}  // namespace kvarve
