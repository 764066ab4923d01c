// Which memory devices know: a naive model of it fed the same random comings and goings; and that
// the cache tells them, and reads into it.
#include "storage/cache/device_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <vector>

#include "storage/cache/cache.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

// Takes `most` pieces; notes what it was told.
class NotingDevice final : public Device {
 public:
  explicit NotingDevice(size_t most) : most_(most) {}
  const DeviceInfo& info() const override { return info_; }
  void Submit(IoRequest request) override { request.done({}); }
  IoStats Stats() const override { return {}; }
  absl::Status RegisterMemory(void* base, size_t) override {
    ++asked;
    if (known.size() == most_) return absl::ResourceExhaustedError("no more");
    EXPECT_TRUE(known.insert(base).second);
    return absl::OkStatus();
  }
  void UnregisterMemory(void* base) override { known.erase(base); }

  std::set<void*> known;
  int asked = 0;

 private:
  const size_t most_;
  const DeviceInfo info_;
};

TEST(DeviceMemoryTest, DevicesKnowWhatIsThere) {
  constexpr size_t kPiece = 64, kChunk = 8 * kPiece, kChunks = 6;
  std::vector<std::byte> memory(kChunks * kChunk);
  testing::SeededRandom random(3);
  DeviceMemory pages;
  NotingDevice first(SIZE_MAX), later(SIZE_MAX);
  pages.Add(&first);
  std::set<void*> model;
  for (int step = 0; step < 2000; ++step) {
    if (step == 1000) pages.Add(&later);
    std::byte* const chunk = memory.data() + random.Below(kChunks) * kChunk;
    if (random.OneIn(5)) {
      pages.Gone(chunk, kChunk);
      for (size_t at = 0; at < kChunk; at += kPiece) model.erase(chunk + at);
    } else {
      std::byte* const piece = chunk + random.Below(8) * kPiece;
      if (!model.insert(piece).second) continue;
      pages.Present(piece, kPiece);
    }
    ASSERT_EQ(first.known, model);
    if (step >= 1000) {
      ASSERT_EQ(later.known, model);
    }
  }
  pages.Remove(&first);
  const std::set<void*> before = first.known;
  pages.Gone(memory.data(), memory.size());
  EXPECT_EQ(first.known, before);
  EXPECT_TRUE(later.known.empty());
}

TEST(DeviceMemoryTest, OneThatTakesNoMoreIsNotAskedAgain) {
  std::vector<std::byte> memory(4);
  DeviceMemory pages;
  NotingDevice device(2);
  pages.Add(&device);
  for (std::byte& piece : memory) pages.Present(&piece, 1);
  EXPECT_EQ(device.known, (std::set<void*>{&memory[0], &memory[1]}));
  EXPECT_EQ(device.asked, 3);
  pages.Gone(&memory[1], 1);
  EXPECT_EQ(device.known, (std::set<void*>{&memory[0]}));
}

// Blocks of many chunks come and go; what is read into registered memory is right.
TEST(DeviceMemoryTest, TheCacheReadsIntoIt) {
  constexpr uint64_t kBlock = 1 << 20;
  constexpr size_t kChains = 10, kChain = 16;
  const std::string path = ::testing::TempDir() + "device_memory_" + std::to_string(::getpid());
  ASSERT_TRUE(FormatDevice(path, {.bytes = 2ull << 30, .force = true}).ok());
  CacheOptions options;
  options.arena.capacity_bytes = 64 << 20;
  options.arena.chunk_bytes = 32 << 20;
  options.arena.huge_pages = false;
  options.devices.drive_writes_per_day = 0;
  auto cache = *Cache::Create(options);
  auto device = OpenDevice(path, {});
  ASSERT_TRUE(device.ok()) << device.status();
  const bool is_uring = (*device)->info().backend == IoBackend::kUring;
  ASSERT_TRUE(cache->AddDevice(*std::move(device)).ok());
  NamespaceDescriptor descriptor = OpaqueNamespace("model", kBlock);
  descriptor.tenant = "default";
  const NamespaceInfo ns = *cache->OpenNamespace(descriptor);
  for (size_t c = 0; c < kChains; ++c) {
    const std::vector<BlockKey> keys = testing::KeyChain(c, kChain);
    for (size_t i = 0; i < kChain; ++i) {
      const std::vector<std::byte> block = testing::MakeBlock(7, keys[i], kBlock);
      const std::byte* source = block.data();
      PutRequest put;
      put.ns = ns.handle;
      if (i > 0) put.parent = keys[i - 1];
      put.first_depth = static_cast<uint32_t>(i);
      put.keys = std::span(keys).subspan(i, 1);
      put.sources = {&source, 1};
      PutResult result = PutResult::kShed;
      while (result == PutResult::kShed) ASSERT_TRUE(cache->Put(put, {&result, 1}).ok());
      ASSERT_EQ(result, PutResult::kStored);
    }
    ASSERT_TRUE(cache->WaitDevices(60'000'000'000));
  }
  for (int round = 0; round < 3; ++round) {
    for (size_t c = 0; c < kChains; ++c) {
      const std::vector<BlockKey> piece = testing::KeyChain(c, kChain);
      ASSERT_EQ(cache->LoadNow(ns.handle, piece, IoClass::kDemand), piece.size());
      LeaseAccount account;
      const AcquireResult acquired = cache->Acquire(ns.handle, piece, &account, 0);
      ASSERT_EQ(acquired.grants.size(), piece.size());
      for (size_t i = 0; i < piece.size(); ++i) {
        const std::byte* const data = cache->Data(acquired.grants[i].slot);
        ASSERT_TRUE(testing::IsBlock(7, piece[i], {data, kBlock})) << c << " " << i;
      }
      cache->ReleaseAll(&account);
    }
    // Memory goes and comes: what devices knew of it must not be used for what comes there.
    ASSERT_TRUE(cache->Resize(round % 2 == 0 ? 32 << 20 : 64 << 20).ok());
  }
  const uint64_t fixed = cache->Stats().devices->devices.at(0).io.fixed_buffer_requests;
  std::printf("%llu reads into registered memory\n", static_cast<unsigned long long>(fixed));
  // Without the right to pin memory (RLIMIT_MEMLOCK), none; with it, most.
  if (!is_uring) {
    EXPECT_EQ(fixed, 0u);
  } else if (::geteuid() == 0) {
    EXPECT_GT(fixed, 0u);
  }
  cache.reset();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvarve
