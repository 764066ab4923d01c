// Goal: no sequence of calls breaks the arena. Method: random allocations, frees, retirements and
// resizes over several pools and sizes, after each a comparison with a naive model that knows only
// what was handed out. The seed is printed; ARENA_SEED=N repeats one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "storage/arena/arena.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

struct ModelSlot {
  SlotRef ref;
  PoolId pool = 0;
  uint64_t chunk_id = 0;
  uint64_t bytes = 0;  // rounded
  uint32_t owner = kNoOwner;
  uint64_t tag = 0;  // written to both ends of the slot
};

// What was handed out, chunk by chunk, in the order of offsets.
using ModelChunk = std::map<uint64_t, ModelSlot>;

class ArenaModel : public testing::TestWithParam<int> {
 protected:
  void Start(uint64_t seed) {
    random_.seed(seed);
    options_.capacity_bytes = kCapacity;
    options_.chunk_bytes = kExtentBytes * (1 + random_() % 4);
    options_.huge_pages = false;
    options_.prefault = random_() % 2 == 0;
    options_.hold_dropped = random_() % 2 == 0;
    auto arena = Arena::Create(options_);
    ASSERT_TRUE(arena.ok()) << arena.status();
    arena_ = *std::move(arena);
    for (int i = 0; i < kPools; ++i) pools_.push_back(arena_->AddPool("p"));
  }

  std::map<uint64_t, ChunkInfo> AllChunks() const {
    std::map<uint64_t, ChunkInfo> all;
    for (PoolId pool : pools_) {
      for (const ChunkInfo& info : arena_->Chunks(pool)) all[info.id] = info;
    }
    return all;
  }

  // Size of the slots of an extent by what lies in it, 0 if nothing does.
  uint64_t ExtentSlotBytes(uint64_t chunk_id, uint64_t extent) const {
    auto chunk = slots_.find(chunk_id);
    if (chunk == slots_.end()) return 0;
    auto at = chunk->second.lower_bound(extent * kExtentBytes);
    if (at == chunk->second.end() || at->first >= (extent + 1) * kExtentBytes) return 0;
    return at->second.bytes;
  }
  uint64_t UsedInExtent(uint64_t chunk_id, uint64_t extent) const {
    uint64_t used = 0;
    for (const auto& [offset, slot] : slots_.at(chunk_id)) used += offset / kExtentBytes == extent;
    return used;
  }

  struct Room {
    bool fresh_extent = false;  // in a chunk of the pool, or in one that may be made
    uint64_t slots = 0;         // free, in chunks that exist
    uint64_t new_bytes = 0;     // of chunks that may be made
  };
  // What the pool could still give for slots of this size.
  Room RoomFor(PoolId pool, uint64_t slot_bytes) const {
    Room room;
    for (const ChunkInfo& info : arena_->Chunks(pool)) {
      if (info.state != ChunkState::kActive) continue;
      for (uint64_t extent = 0; extent < info.bytes / kExtentBytes; ++extent) {
        const uint64_t size = ExtentSlotBytes(info.id, extent);
        const uint64_t per_extent = kExtentBytes / slot_bytes;
        if (size == 0) room.fresh_extent = true, room.slots += per_extent;
        if (size == slot_bytes) room.slots += per_extent - UsedInExtent(info.id, extent);
      }
    }
    const ArenaStats stats = arena_->Stats();
    if (stats.capacity_bytes > stats.chunk_bytes) {
      room.new_bytes = (stats.capacity_bytes - stats.chunk_bytes) / kExtentBytes * kExtentBytes;
    }
    if (room.new_bytes > 0) room.fresh_extent = true;
    return room;
  }

  void CheckNewSlot(const SlotRef& ref, PoolId pool, uint64_t slot_bytes) {
    ASSERT_TRUE(ref.valid());
    ASSERT_EQ(pool, arena_->Pool(ref));
    const uint64_t chunk_id = arena_->ChunkId(ref);
    const auto chunks = AllChunks();
    ASSERT_TRUE(chunks.count(chunk_id));
    const ChunkInfo& info = chunks.at(chunk_id);
    ASSERT_EQ(info.index, ref.chunk_index());
    ASSERT_EQ(info.pool, pool);
    ASSERT_EQ(info.state, ChunkState::kActive);
    ASSERT_LE(ref.offset() + slot_bytes, info.bytes);
    const uint64_t extent = ref.offset() / kExtentBytes;
    ASSERT_EQ(extent, (ref.offset() + slot_bytes - 1) / kExtentBytes) << "crosses an extent";
    ASSERT_EQ(0u, ref.offset() % kExtentBytes % slot_bytes);
    const uint64_t other = ExtentSlotBytes(chunk_id, extent);
    ASSERT_TRUE(other == 0 || other == slot_bytes) << "two sizes in one extent";
    ModelChunk& chunk = slots_[chunk_id];
    auto after = chunk.lower_bound(ref.offset());
    ASSERT_TRUE(after == chunk.end() || after->first >= ref.offset() + slot_bytes) << "overlap";
    ASSERT_TRUE(after == chunk.begin() ||
                std::prev(after)->first + std::prev(after)->second.bytes <= ref.offset());
    ASSERT_EQ(kNoOwner, arena_->Owner(ref));
  }

  void Allocate() {
    const PoolId pool = pools_[random_() % pools_.size()];
    const uint64_t bytes = kSizes[random_() % std::size(kSizes)];
    const uint64_t slot_bytes = RoundUp(bytes, kSlotUnitBytes);
    const uint64_t per_extent = kExtentBytes / slot_bytes;
    const size_t count = 1 + random_() % std::min<uint64_t>(96, per_extent * 3);
    const Room room = RoomFor(pool, slot_bytes);
    const uint64_t idle_before = arena_->Stats().chunks;
    std::vector<SlotRef> refs = {SlotRef::Of(7, 4096)};  // what is there must stay
    const size_t got = arena_->Allocate(pool, bytes, count, &refs);
    ASSERT_EQ(got + 1, refs.size());
    ASSERT_EQ(SlotRef::Of(7, 4096), refs[0]);
    ASSERT_LE(got, count);
    for (size_t i = 1; i <= got; ++i) {
      CheckNewSlot(refs[i], pool, slot_bytes);
      if (HasFatalFailure()) return;
      Remember(refs[i], pool, slot_bytes);
    }
    // Never refuses what it has.
    const uint64_t could = room.slots + room.new_bytes / kExtentBytes * per_extent;
    ASSERT_GE(got, std::min<uint64_t>(count, could));
    // One run when an extent is free for it.
    if (room.fresh_extent && count <= per_extent && arena_->Stats().chunks >= idle_before) {
      for (size_t i = 2; i <= got; ++i) {
        ASSERT_EQ(refs[i - 1].packed + slot_bytes / kSlotUnitBytes, refs[i].packed);
      }
    }
  }

  void Remember(const SlotRef& ref, PoolId pool, uint64_t slot_bytes) {
    ModelSlot slot{ref, pool, arena_->ChunkId(ref), slot_bytes, kNoOwner, random_()};
    if (random_() % 4 != 0) {
      slot.owner = static_cast<uint32_t>(random_() % kNoOwner);
      arena_->SetOwner(ref, slot.owner);
    }
    std::memcpy(arena_->Data(ref), &slot.tag, 8);
    std::memcpy(arena_->Data(ref) + slot_bytes - 8, &slot.tag, 8);
    slots_[slot.chunk_id].emplace(ref.offset(), slot);
    ++slot_count_;
  }

  void FreeOne() {
    if (slot_count_ == 0) return;
    auto chunk = slots_.begin();
    std::advance(chunk, random_() % slots_.size());
    auto at = chunk->second.begin();
    std::advance(at, random_() % chunk->second.size());
    const ModelSlot slot = at->second;
    uint64_t first, last;
    std::memcpy(&first, arena_->Data(slot.ref), 8);
    std::memcpy(&last, arena_->Data(slot.ref) + slot.bytes - 8, 8);
    ASSERT_EQ(slot.tag, first);
    ASSERT_EQ(slot.tag, last);
    ASSERT_EQ(slot.owner, arena_->Owner(slot.ref));
    const auto before = AllChunks();
    const bool retiring = before.at(slot.chunk_id).state == ChunkState::kRetiring;
    arena_->Free(slot.ref);
    chunk->second.erase(at);
    --slot_count_;
    if (chunk->second.empty()) slots_.erase(chunk);
    const bool gone = AllChunks().count(slot.chunk_id) == 0;
    ASSERT_EQ(retiring && slots_.count(slot.chunk_id) == 0, gone);
  }

  void Retire() {
    const auto chunks = AllChunks();
    if (chunks.empty()) return;
    auto at = chunks.begin();
    std::advance(at, random_() % chunks.size());
    const uint64_t epoch = arena_->chunk_epoch();
    arena_->RetireChunk(at->second.index);
    const bool gone = AllChunks().count(at->first) == 0;
    ASSERT_EQ(slots_.count(at->first) == 0, gone);
    ASSERT_EQ(epoch + gone, arena_->chunk_epoch());
  }

  void Resize() {
    const uint64_t capacity = kExtentBytes + random_() % (kCapacity * 3 / 2);
    const auto before = AllChunks();
    auto retired = arena_->SetCapacity(capacity);
    ASSERT_TRUE(retired.ok());
    uint64_t staying = 0, least_staying = UINT64_MAX, most_retired = 0;
    for (const auto& [id, info] : AllChunks()) {
      if (info.state != ChunkState::kActive) continue;
      staying += info.bytes;
      least_staying = std::min(least_staying, UsedIn(id));
    }
    ASSERT_LE(staying, capacity);
    for (uint32_t index : *retired) {
      auto chunk = std::find_if(before.begin(), before.end(),
                                [&](const auto& item) { return item.second.index == index; });
      ASSERT_NE(before.end(), chunk);
      ASSERT_EQ(ChunkState::kActive, chunk->second.state);
      most_retired = std::max(most_retired, UsedIn(chunk->first));
      std::vector<uint32_t> owners = arena_->OwnersInChunk(index), expected;
      for (const auto& [offset, slot] : slots_.at(chunk->first)) expected.push_back(slot.owner);
      std::sort(owners.begin(), owners.end());
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(expected, owners);
    }
    ASSERT_LE(most_retired, least_staying) << "not the emptiest";
  }

  uint64_t UsedIn(uint64_t chunk_id) const {
    uint64_t used = 0;
    auto chunk = slots_.find(chunk_id);
    if (chunk == slots_.end()) return 0;
    for (const auto& [offset, slot] : chunk->second) used += slot.bytes;
    return used;
  }

  void ForgetOne() {
    const std::vector<ChunkInfo> dropped = arena_->Dropped();
    if (dropped.empty()) return;
    arena_->ForgetDropped(dropped[random_() % dropped.size()].id);
    ASSERT_EQ(dropped.size() - 1, arena_->Dropped().size());
  }

  void CheckOwnersOfSomeExtent() {
    if (slot_count_ == 0) return;
    const auto& [id, chunk] = *slots_.begin();
    const ModelSlot& any = std::prev(chunk.end())->second;
    std::vector<uint32_t> expected;
    for (const auto& [offset, slot] : chunk) {
      if (offset / kExtentBytes == any.ref.offset() / kExtentBytes) expected.push_back(slot.owner);
    }
    std::vector<uint32_t> owners = arena_->OwnersInExtent(any.ref);
    std::sort(owners.begin(), owners.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(expected, owners);
  }

  void CheckSums() {
    const ArenaStats stats = arena_->Stats();
    uint64_t chunk_bytes = 0, used = 0, wasted = 0, draining = 0;
    const auto chunks = AllChunks();
    std::map<PoolId, PoolUsage> usage;
    for (const auto& [id, info] : chunks) {
      chunk_bytes += info.bytes;
      usage[info.pool].chunk_bytes += info.bytes;
      usage[info.pool].used_bytes += UsedIn(id);
      used += UsedIn(id);
      for (uint64_t extent = 0; extent < info.bytes / kExtentBytes; ++extent) {
        const uint64_t size = ExtentSlotBytes(id, extent);
        if (size != 0) wasted += kExtentBytes % size;
      }
      ASSERT_TRUE(info.state == ChunkState::kActive || slots_.count(id)) << "empty yet retiring";
    }
    for (const ChunkInfo& info : arena_->Dropped()) draining += info.bytes;
    if (!options_.hold_dropped) {
      ASSERT_EQ(0u, draining);
    }
    ASSERT_EQ(chunk_bytes + draining, stats.chunk_bytes);
    ASSERT_EQ(draining, stats.draining_bytes);
    ASSERT_EQ(used, stats.used_bytes);
    ASSERT_EQ(wasted, stats.wasted_bytes);
    ASSERT_EQ(chunks.size(), stats.chunks);
    ASSERT_EQ(pools_.size(), stats.pools);
    for (PoolId pool : pools_) {
      ASSERT_EQ(usage[pool].chunk_bytes, arena_->Usage(pool).chunk_bytes);
      ASSERT_EQ(usage[pool].used_bytes, arena_->Usage(pool).used_bytes);
    }
    // Above the capacity only what leaves already.
    if (stats.chunk_bytes > stats.capacity_bytes) {
      uint64_t active = 0;
      for (const auto& [id, info] : chunks)
        active += info.state == ChunkState::kActive ? info.bytes : 0;
      ASSERT_LE(active, stats.capacity_bytes);
    }
  }

  static constexpr uint64_t kCapacity = 384 * kMiB + 5 * kKiB;
  static constexpr int kPools = 3;
  static constexpr uint64_t kSizes[] = {1, 40 * kKiB, 576 * kKiB, kMiB, 3 * kMiB + 1, 16 * kMiB};

  std::mt19937_64 random_;
  ArenaOptions options_;
  std::unique_ptr<Arena> arena_;
  std::vector<PoolId> pools_;
  std::map<uint64_t, ModelChunk> slots_;  // by chunk id; no empty ones
  size_t slot_count_ = 0;
};

TEST_P(ArenaModel, RandomOperations) {
  const char* given = std::getenv("ARENA_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : GetParam();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Start(seed);
  if (HasFatalFailure()) return;
  for (int step = 0; step < 3000; ++step) {
    SCOPED_TRACE(step);
    // Phases of growing, of turning over and of shrinking.
    const int phase = step / 300 % 3;
    const uint64_t dice = random_() % 100;
    const uint64_t allocates = phase == 0 ? 60 : phase == 1 ? 6 : 2;
    if (dice < allocates) {
      Allocate();
    } else if (dice < 95) {
      FreeOne();
    } else if (dice < 96) {
      Retire();
    } else if (dice < 97) {
      Resize();
    } else {
      ForgetOne();
      if (!HasFatalFailure()) CheckOwnersOfSomeExtent();
    }
    if (!HasFatalFailure() && step % 8 == 0) CheckSums();
    if (HasFatalFailure()) return;
  }
  while (slot_count_ > 0) {
    FreeOne();
    if (HasFatalFailure()) return;
  }
  CheckSums();
  EXPECT_EQ(0u, arena_->Stats().used_bytes);
  EXPECT_EQ(0u, arena_->Stats().wasted_bytes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ArenaModel, testing::Range(1, 13));

}  // namespace
}  // namespace kvarve
