// The polite stop, and what it leaves for the next start: what only the host tier had goes to the
// devices, and which blocks were in memory is noted, so that they come back to it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/units.h"
#include "storage/cache/device_log.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

constexpr EntryId kIdsPerHold = 16384;
constexpr size_t kBlocksPerHold = 256;
constexpr int64_t kProgressNanos = 2'000'000'000;
constexpr size_t kMostHot = 1 << 20;  // blocks noted of a namespace

int64_t Now() { return SystemClock::Get()->NowNanos(); }

// A block that was in memory, and the place of its parent in the same list: 4 + 32 bytes.
struct HotBlock {
  static constexpr uint32_t kRoot = UINT32_MAX;
  uint32_t parent = kRoot;
  BlockKey key;
};
constexpr size_t kHotBytes = sizeof(uint32_t) + BlockKey::kMaxBytes;

std::string HotName(const NamespaceId& id) {
  return "hot/" +
         absl::BytesToHexString({reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()});
}

void AddHot(const HotBlock& block, std::string* to) {
  to->append(reinterpret_cast<const char*>(&block.parent), sizeof(block.parent));
  to->append(reinterpret_cast<const char*>(block.key.bytes.data()), BlockKey::kMaxBytes);
}

// Whatever the bytes are: at most as many blocks as they hold, with parents that come before them.
std::vector<HotBlock> ParseHot(std::string_view bytes) {
  std::vector<HotBlock> blocks(std::min(bytes.size() / kHotBytes, kMostHot));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const char* const at = bytes.data() + i * kHotBytes;
    std::memcpy(&blocks[i].parent, at, sizeof(uint32_t));
    std::memcpy(blocks[i].key.bytes.data(), at + sizeof(uint32_t), BlockKey::kMaxBytes);
    if (blocks[i].parent >= i) blocks[i].parent = HotBlock::kRoot;
  }
  return blocks;
}

}  // namespace

std::vector<EntryId> DeviceTier::HostByHotness() {
  std::vector<std::pair<uint64_t, EntryId>> by_touch;
  for (EntryId begin = 0, end = 1; begin < end; begin += kIdsPerHold) {
    MutexLock lock(&cache_.mutex);
    end = cache_.index->capacity_ids();
    cache_.index->ForEachRange(begin, begin + kIdsPerHold, std::nullopt, [&](EntryId id) {
      by_touch.emplace_back(cache_.policy->LastTouch(id), id);
    });
  }
  std::sort(by_touch.rbegin(), by_touch.rend());
  std::vector<EntryId> ids, chain;
  ids.reserve(by_touch.size());
  absl::flat_hash_set<EntryId> has;
  for (size_t at = 0; at < by_touch.size();) {
    MutexLock lock(&cache_.mutex);
    const size_t end = std::min(by_touch.size(), at + kBlocksPerHold);
    for (; at < end; ++at) {
      // Blocks before it first: what is put in one call is touched the other way round.
      for (EntryId id = by_touch[at].second; id != kNoEntry && has.insert(id).second;
           id = cache_.index->LinkedParent(id)) {
        chain.push_back(id);
      }
      ids.insert(ids.end(), chain.rbegin(), chain.rend());
      chain.clear();
    }
  }
  return ids;
}

void DeviceTier::FlushHostOnly(int64_t deadline_nanos) {
  const std::vector<EntryId> ids = HostByHotness();
  int64_t told = Now();
  uint64_t handed = 0;
  for (size_t at = 0; at < ids.size();) {
    if (Now() >= deadline_nanos) break;
    {
      MutexLock lock(&cache_.mutex);
      const size_t end = std::min(ids.size(), at + kBlocksPerHold);
      for (; at < end && dirty_bytes_ < DirtyMax(); ++at)
        handed += OfferChain(ids[at], /*pinned=*/true);
      if (dirty_bytes_ >= DirtyMax()) {
        idle_.wait_for(cache_.mutex, std::chrono::milliseconds(5));
      }
    }
    if (Now() - told < kProgressNanos) continue;
    told = Now();
    KvLog(LogLevel::kInfo, "writes out what only memory has",
          {{"looked_at", absl::StrFormat("%d of %d", at, ids.size())},
           {"blocks", absl::StrFormat("%d", handed)}});
  }
  if (handed == 0) return;
  KvLog(LogLevel::kInfo, "wrote out what only memory had",
        {{"blocks", absl::StrFormat("%d", handed)}});
}

void DeviceTier::Flush(int64_t deadline_nanos) {
  FlushHostOnly(deadline_nanos);
  WaitIdle(deadline_nanos);
  SaveHot();
  std::vector<std::shared_ptr<DeviceLog>> devices;
  {
    MutexLock lock(&cache_.mutex);
    devices = Devices();
    for (const auto& device : devices) device->Close();
  }
  for (const auto& device : devices) {
    device->Seal();
    device->SaveBudget();
  }
}

void DeviceTier::SaveHot() {
  if (options_.catalogue == nullptr) return;
  struct Noted {
    std::string bytes;
    absl::flat_hash_map<EntryId, uint32_t> places;
  };
  std::map<NamespaceId, Noted> noted;
  const std::vector<EntryId> ids = HostByHotness();
  for (size_t at = 0; at < ids.size();) {
    MutexLock lock(&cache_.mutex);
    const size_t end = std::min(ids.size(), at + kBlocksPerHold);
    for (; at < end; ++at) {
      const IndexEntry& entry = cache_.index->Get(ids[at]);
      if (!entry.used || !entry.live) continue;
      const NamespaceHandle handle = cache_.handle_of_index[entry.ns];
      if (handle == Cache::Rep::kNoHandle) continue;
      const NamespaceRecord& ns = cache_.Record(handle);
      Noted& of = noted[ns.info.id];
      if (of.places.size() >= kMostHot || Find(ns, entry.key) == kNoEntry) continue;
      HotBlock block;
      block.key = entry.key;
      const auto parent = of.places.find(cache_.index->LinkedParent(ids[at]));
      if (parent != of.places.end()) block.parent = parent->second;
      // Without its parent it would not be found from the front.
      if (entry.depth > 0 && block.parent == HotBlock::kRoot) continue;
      of.places.emplace(ids[at], static_cast<uint32_t>(of.places.size()));
      AddHot(block, &of.bytes);
    }
  }
  for (const auto& [id, of] : noted) {
    options_.catalogue->PutMeta(HotName(id), of.bytes).IgnoreError();  // counted there
  }
}

// ---- The next start

void DeviceTier::Preload() {
  for (;;) {
    NamespaceInfo ns;
    {
      MutexLock lock(&cache_.mutex);
      const auto ready = [this] {
        return is_closing_ ||
               (!to_preload_.empty() && std::ranges::all_of(Devices(), &DeviceLog::recovered));
      };
      while (!ready()) idle_.wait(cache_.mutex);
      if (is_closing_) return;
      ns = std::move(to_preload_.back());
      to_preload_.pop_back();
    }
    const auto bytes = options_.catalogue->GetMeta(HotName(ns.id));
    if (bytes.has_value()) PreloadChains(ns.handle, *bytes);
  }
}

void DeviceTier::PreloadChains(NamespaceHandle handle, std::string_view bytes) {
  const std::vector<HotBlock> blocks = ParseHot(bytes);
  std::vector<bool> has_child(blocks.size(), false);
  for (const HotBlock& block : blocks) {
    if (block.parent != HotBlock::kRoot) has_child[block.parent] = true;
  }
  size_t chains = 0, loaded = 0;
  for (size_t leaf = 0; leaf < blocks.size(); ++leaf) {
    if (has_child[leaf]) continue;
    std::vector<BlockKey> chain;
    for (uint32_t i = static_cast<uint32_t>(leaf); i != HotBlock::kRoot; i = blocks[i].parent) {
      chain.push_back(blocks[i].key);
    }
    std::reverse(chain.begin(), chain.end());
    if (chain.size() > kMaxKeysPerCall) chain.resize(kMaxKeysPerCall);
    if (!HasRoomFor(handle, chain.size())) break;  // nothing is put out for what may be wanted
    // One at a time: demand comes first.
    loaded += cache_.LoadNow(handle, chain, IoClass::kPrefetch);
    ++chains;
  }
  if (chains == 0) return;
  KvLog(LogLevel::kInfo, "what was hot is in memory again",
        {{"chains", absl::StrFormat("%d", chains)}, {"blocks", absl::StrFormat("%d", loaded)}});
}

bool DeviceTier::HasRoomFor(NamespaceHandle handle, size_t blocks) {
  MutexLock lock(&cache_.mutex);
  if (is_closing_) return false;
  const uint64_t bytes = blocks * cache_.SlotBytes(cache_.Record(handle));
  return cache_.arena->Stats().used_bytes + bytes <= cache_.capacity_bytes / 10 * 9;
}

}  // namespace kvarve
