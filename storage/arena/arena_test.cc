// Goal: the arena's promises one by one: exact sizes, contiguous runs, whole chunks given and
// taken, what is dropped and when. The random model test beside it (arena_model_test) covers their
// combinations.
#include "storage/arena/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace kvarve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr uint64_t kMiB = 1ull << 20;

ArenaOptions Options(uint64_t capacity, uint64_t chunk) {
  ArenaOptions options;
  options.capacity_bytes = capacity;
  options.chunk_bytes = chunk;
  options.huge_pages = false;
  options.prefault = false;
  return options;
}

std::unique_ptr<Arena> Make(const ArenaOptions& options) {
  auto arena = Arena::Create(options);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

std::vector<SlotRef> Take(Arena* arena, PoolId pool, uint64_t bytes, size_t count) {
  std::vector<SlotRef> slots;
  const size_t got = arena->Allocate(pool, bytes, count, &slots);
  EXPECT_EQ(got, slots.size());
  return slots;
}

bool Contiguous(const std::vector<SlotRef>& slots, uint64_t slot_bytes) {
  for (size_t i = 1; i < slots.size(); ++i) {
    if (slots[i].chunk_index() != slots[0].chunk_index() ||
        slots[i].offset() != slots[i - 1].offset() + slot_bytes) {
      return false;
    }
  }
  return true;
}

TEST(SlotRefTest, PacksChunkAndOffset) {
  const SlotRef slot = SlotRef::Of(0xfffff, (1ull << 40) - 8192);
  EXPECT_EQ(0xfffffu, slot.chunk_index());
  EXPECT_EQ((1ull << 40) - 8192, slot.offset());
  EXPECT_TRUE(slot.valid());
  EXPECT_LT(slot.packed, 1ull << 48);
  EXPECT_FALSE(SlotRef().valid());
}

TEST(ArenaTest, RefusesBadOptions) {
  EXPECT_EQ(absl::StatusCode::kInvalidArgument,
            Arena::Create(Options(31 * kMiB, 32 * kMiB)).status().code());
  EXPECT_EQ(absl::StatusCode::kInvalidArgument,
            Arena::Create(Options(256 * kMiB, 48 * kMiB)).status().code());
  EXPECT_EQ(absl::StatusCode::kInvalidArgument,
            Arena::Create(Options(256 * kMiB, 0)).status().code());
  EXPECT_EQ(absl::StatusCode::kInvalidArgument,
            Arena::Create(Options(1ull << 50, 1ull << 41)).status().code());
}

TEST(ArenaTest, SlotSizesAreExact) {
  auto arena = Make(Options(256 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  // 5 MiB and one byte: six slots an extent, where powers of two would give four.
  const uint64_t slot = 5 * kMiB + 4096;
  const auto slots = Take(arena.get(), pool, 5 * kMiB + 1, 12);
  ASSERT_THAT(slots, SizeIs(12));
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ((i / 6) * kExtentBytes + (i % 6) * slot, slots[i].offset());
    EXPECT_EQ(slots[0].chunk_index(), slots[i].chunk_index());
  }
  EXPECT_EQ(12 * slot, arena->Stats().used_bytes);
  EXPECT_EQ(2 * (kExtentBytes - 6 * slot), arena->Stats().wasted_bytes);
  EXPECT_EQ(64 * kMiB, arena->Stats().chunk_bytes);
}

TEST(ArenaTest, RunsAreContiguousAcrossExtents) {
  auto arena = Make(Options(512 * kMiB, 256 * kMiB));
  const PoolId pool = arena->AddPool("a");
  EXPECT_TRUE(Contiguous(Take(arena.get(), pool, kMiB, 64), kMiB));
  EXPECT_TRUE(Contiguous(Take(arena.get(), pool, kMiB, 100), kMiB));
  EXPECT_TRUE(Contiguous(Take(arena.get(), pool, 2 * kMiB, 17), 2 * kMiB));
}

TEST(ArenaTest, SmallAllocationsFillTheSameExtentInOrder) {
  auto arena = Make(Options(256 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  std::vector<SlotRef> all;
  for (int i = 0; i < 32; ++i) all.push_back(Take(arena.get(), pool, kMiB, 1)[0]);
  EXPECT_TRUE(Contiguous(all, kMiB));
}

TEST(ArenaTest, LongRunTakesAFreshExtentRatherThanHoles) {
  auto arena = Make(Options(256 * kMiB, 256 * kMiB));
  const PoolId pool = arena->AddPool("a");
  auto slots = Take(arena.get(), pool, kMiB, 32);
  for (size_t i = 0; i < 32; i += 4) arena->Free(slots[i]);
  EXPECT_TRUE(Contiguous(Take(arena.get(), pool, kMiB, 8), kMiB));
  // A single slot goes into the hole.
  EXPECT_EQ(0u, Take(arena.get(), pool, kMiB, 1)[0].offset() / kExtentBytes);
}

TEST(ArenaTest, ScatteredHolesAreUsedWhenNothingElseIsLeft) {
  auto arena = Make(Options(64 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  auto slots = Take(arena.get(), pool, kMiB, 65);
  ASSERT_THAT(slots, SizeIs(64));
  for (size_t i = 0; i < 64; i += 3) arena->Free(slots[i]);
  EXPECT_THAT(Take(arena.get(), pool, kMiB, 64), SizeIs(22));
  EXPECT_THAT(Take(arena.get(), pool, kMiB, 1), IsEmpty());
  EXPECT_EQ(64 * kMiB, arena->Stats().used_bytes);
}

TEST(ArenaTest, EmptiedExtentServesAnotherSize) {
  auto arena = Make(Options(32 * kMiB, 32 * kMiB));
  const PoolId pool = arena->AddPool("a");
  auto small = Take(arena.get(), pool, 4096, 8192);
  ASSERT_THAT(small, SizeIs(8192));
  EXPECT_THAT(Take(arena.get(), pool, 16 * kMiB, 1), IsEmpty());
  for (SlotRef slot : small) arena->Free(slot);
  EXPECT_EQ(0u, arena->Stats().used_bytes);
  EXPECT_THAT(Take(arena.get(), pool, 16 * kMiB, 3), SizeIs(2));
}

TEST(ArenaTest, OwnersByExtentAndChunk) {
  auto arena = Make(Options(128 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  const auto slots = Take(arena.get(), pool, 16 * kMiB, 4);
  for (size_t i = 0; i < 4; ++i) arena->SetOwner(slots[i], 100 + i);
  EXPECT_EQ(102u, arena->Owner(slots[2]));
  EXPECT_THAT(arena->OwnersInExtent(slots[0]), UnorderedElementsAre(100, 101));
  EXPECT_THAT(arena->OwnersInChunk(slots[0].chunk_index()),
              UnorderedElementsAre(100, 101, 102, 103));
  arena->Free(slots[1]);
  EXPECT_THAT(arena->OwnersInExtent(slots[0]), UnorderedElementsAre(100));
  const auto again = Take(arena.get(), pool, 16 * kMiB, 1);
  EXPECT_EQ(slots[1], again[0]);
  EXPECT_EQ(kNoOwner, arena->Owner(again[0]));
  EXPECT_THAT(arena->OwnersInChunk(77), IsEmpty());
}

TEST(ArenaTest, PoolsDoNotShareChunks) {
  auto arena = Make(Options(128 * kMiB, 64 * kMiB));
  const PoolId a = arena->AddPool("a"), b = arena->AddPool("b");
  const auto in_a = Take(arena.get(), a, kMiB, 1), in_b = Take(arena.get(), b, kMiB, 1);
  EXPECT_NE(in_a[0].chunk_index(), in_b[0].chunk_index());
  EXPECT_EQ(a, arena->Pool(in_a[0]));
  EXPECT_EQ(b, arena->Pool(in_b[0]));
  EXPECT_THAT(arena->Chunks(a), SizeIs(1));
  EXPECT_EQ(arena->Chunks(b)[0].id, arena->ChunkId(in_b[0]));
  EXPECT_EQ(64 * kMiB, arena->Usage(a).chunk_bytes);
  EXPECT_EQ(kMiB, arena->Usage(a).used_bytes);
  EXPECT_THAT(Take(arena.get(), a, kMiB, 100), SizeIs(63));
}

TEST(ArenaTest, IdleChunkGoesToThePoolThatNeedsIt) {
  auto arena = Make(Options(128 * kMiB, 64 * kMiB));
  const PoolId a = arena->AddPool("a"), b = arena->AddPool("b");
  auto slots = Take(arena.get(), a, kMiB, 128);
  ASSERT_THAT(slots, SizeIs(128));
  EXPECT_THAT(Take(arena.get(), b, kMiB, 1), IsEmpty());
  for (size_t i = 64; i < 128; ++i) arena->Free(slots[i]);
  const uint64_t epoch = arena->chunk_epoch();
  EXPECT_THAT(Take(arena.get(), b, kMiB, 1), SizeIs(1));
  EXPECT_EQ(epoch + 2, arena->chunk_epoch());
  EXPECT_EQ(64 * kMiB, arena->Usage(a).chunk_bytes);
  EXPECT_EQ(64 * kMiB, arena->Usage(b).chunk_bytes);
}

TEST(ArenaTest, LastChunkIsCutToTheCapacity) {
  auto arena = Make(Options(100 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  EXPECT_THAT(Take(arena.get(), pool, kMiB, 200), SizeIs(96));
  EXPECT_EQ(96 * kMiB, arena->Stats().chunk_bytes);
  auto small = Make(Options(40 * kMiB, 64 * kMiB));
  EXPECT_THAT(Take(small.get(), small->AddPool("a"), kMiB, 64), SizeIs(32));
}

TEST(ArenaTest, RetiredChunkGoesWithItsLastSlot) {
  auto arena = Make(Options(128 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  const auto slots = Take(arena.get(), pool, 16 * kMiB, 2);
  const ChunkInfo before = arena->Chunks(pool)[0];
  EXPECT_EQ(ChunkState::kActive, before.state);
  arena->RetireChunk(before.index);
  EXPECT_EQ(ChunkState::kRetiring, arena->Chunks(pool)[0].state);
  // Its free half is not given out any more.
  EXPECT_NE(before.id, arena->ChunkId(Take(arena.get(), pool, 16 * kMiB, 1)[0]));
  arena->Free(slots[0]);
  EXPECT_THAT(arena->Chunks(pool), SizeIs(2));
  EXPECT_NE(nullptr, arena->Data(slots[1]));
  const uint64_t epoch = arena->chunk_epoch();
  arena->Free(slots[1]);
  EXPECT_THAT(arena->Chunks(pool), SizeIs(1));
  EXPECT_EQ(epoch + 1, arena->chunk_epoch());
  EXPECT_EQ(64 * kMiB, arena->Stats().chunk_bytes);
}

TEST(ArenaTest, ShrinkRetiresTheEmptiestChunks) {
  auto arena = Make(Options(192 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  auto slots = Take(arena.get(), pool, 16 * kMiB, 12);
  ASSERT_THAT(slots, SizeIs(12));
  // Chunks keep 4, 1 and 0 slots.
  std::vector<SlotRef> first(slots.begin(), slots.begin() + 4);
  for (size_t i = 5; i < 12; ++i) arena->Free(slots[i]);
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, arena->SetCapacity(kMiB).status().code());
  auto retired = arena->SetCapacity(64 * kMiB);
  ASSERT_TRUE(retired.ok());
  EXPECT_THAT(*retired, ElementsAre(slots[4].chunk_index()));
  EXPECT_EQ(128 * kMiB, arena->Stats().chunk_bytes);
  EXPECT_THAT(Take(arena.get(), pool, 16 * kMiB, 1), IsEmpty());
  arena->Free(slots[4]);
  EXPECT_EQ(64 * kMiB, arena->Stats().chunk_bytes);
  // And up again.
  ASSERT_THAT(*arena->SetCapacity(128 * kMiB), IsEmpty());
  EXPECT_THAT(Take(arena.get(), pool, 16 * kMiB, 5), SizeIs(4));
}

TEST(ArenaTest, DroppedChunksStayChargedWhileHeld) {
  ArenaOptions options = Options(64 * kMiB, 64 * kMiB);
  options.hold_dropped = true;
  auto arena = Make(options);
  const PoolId a = arena->AddPool("a"), b = arena->AddPool("b");
  const auto slots = Take(arena.get(), a, kMiB, 1);
  const uint64_t id = arena->ChunkId(slots[0]);
  arena->Free(slots[0]);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Take(arena.get(), b, kMiB, 1), IsEmpty());
  ASSERT_THAT(arena->Dropped(), SizeIs(1));
  EXPECT_EQ(id, arena->Dropped()[0].id);
  EXPECT_THAT(arena->Chunks(a), IsEmpty());
  EXPECT_EQ(64 * kMiB, arena->Stats().draining_bytes);
  EXPECT_EQ(64 * kMiB, arena->Stats().chunk_bytes);
  arena->ForgetDropped(id + 100);
  EXPECT_EQ(64 * kMiB, arena->Stats().draining_bytes);
  arena->ForgetDropped(id);
  EXPECT_EQ(0u, arena->Stats().draining_bytes);
  const auto in_b = Take(arena.get(), b, kMiB, 1);
  ASSERT_THAT(in_b, SizeIs(1));
  EXPECT_NE(id, arena->ChunkId(in_b[0]));  // the index comes again, the id does not
}

TEST(ArenaTest, HostIsAskedBeforeAChunkIsMade) {
  ArenaOptions options = Options(256 * kMiB, 64 * kMiB);
  uint64_t available = 63 * kMiB;
  options.available_bytes = [&] { return available; };
  auto arena = Make(options);
  const PoolId pool = arena->AddPool("a");
  EXPECT_THAT(Take(arena.get(), pool, kMiB, 1), IsEmpty());
  available = 64 * kMiB;
  EXPECT_THAT(Take(arena.get(), pool, kMiB, 1), SizeIs(1));
  // The other half of that chunk is promised already, though the host still counts it as available.
  const PoolId other = arena->AddPool("b");
  EXPECT_THAT(Take(arena.get(), other, kMiB, 1), IsEmpty());
  available = 96 * kMiB;
  EXPECT_THAT(Take(arena.get(), other, kMiB, 1), SizeIs(1));
}

TEST(ArenaTest, PrefaultTouchesWhatIsUsedAndWhatIsNext) {
  ArenaOptions options = Options(256 * kMiB, 256 * kMiB);
  options.prefault = true;
  auto arena = Make(options);
  const PoolId pool = arena->AddPool("a");
  Take(arena.get(), pool, kMiB, 1);
  arena->WaitPrefaulted();
  struct stat info;
  ASSERT_EQ(0, ::fstat(arena->Chunks(pool)[0].fd->get(), &info));
  if (info.st_blocks == 0) GTEST_SKIP() << "no MADV_POPULATE_WRITE here";
  EXPECT_EQ(2 * kExtentBytes, static_cast<uint64_t>(info.st_blocks) * 512);
}

TEST(ArenaTest, DataIsReadWithoutTheCallersLock) {
  auto arena = Make(Options(512 * kMiB, 32 * kMiB));
  const PoolId pool = arena->AddPool("a");
  const auto slots = Take(arena.get(), pool, kMiB, 4);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (SlotRef slot : slots) {
    readers.emplace_back([&, slot] {
      std::byte* const at = arena->Data(slot);
      uint64_t rounds = 0;
      do {
        ASSERT_EQ(at, arena->Data(slot));
        std::memset(at, static_cast<int>(rounds & 0xff), 64);
        ++rounds;
      } while (!stop.load());
    });
  }
  for (int i = 0; i < 50; ++i) {
    const auto more = Take(arena.get(), pool, 16 * kMiB, 20);
    for (SlotRef slot : more) arena->Free(slot);
    for (const ChunkInfo& chunk : arena->Chunks(pool)) {
      if (chunk.id != arena->ChunkId(slots[0])) arena->RetireChunk(chunk.index);
    }
  }
  stop.store(true);
  for (auto& reader : readers) reader.join();
}

TEST(ArenaDeathTest, FreeingTwiceIsAProgrammersError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto arena = Make(Options(64 * kMiB, 64 * kMiB));
  const PoolId pool = arena->AddPool("a");
  const auto slots = Take(arena.get(), pool, kMiB, 2);
  arena->Free(slots[0]);
  EXPECT_DEATH(arena->Free(slots[0]), "KV_CHECK");
  EXPECT_DEATH(arena->Free(SlotRef::Of(0, 4096)), "KV_CHECK");
  EXPECT_DEATH(arena->Free(SlotRef()), "KV_CHECK");
}

}  // namespace
}  // namespace kvarve
