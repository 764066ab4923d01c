// The cache against a naive model that keeps everything in ordered maps and decides by linear
// scans: which blocks are found, what a put answers, who is evicted, what a lease protects. Same
// seeded operations on both; after each the answers must be equal, and every granted block must
// carry the bytes that were put.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "storage/block/checksum.h"
#include "storage/cache/cache.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve {
namespace {

constexpr uint64_t kBlockBytes = 1ull << 20;
constexpr size_t kSlotsTotal = 64;  // two extents of 32

NamespaceDescriptor Descriptor(std::string tenant = "default", uint64_t block_bytes = kBlockBytes) {
  NamespaceDescriptor d = OpaqueNamespace("model", block_bytes);
  d.tenant = std::move(tenant);
  return d;
}

// A node of a random tree of prompts; its key names it.
BlockKey KeyOf(uint64_t node) {
  BlockKey key;
  for (int i = 0; i < 4; ++i) {
    const uint64_t word = (node + 1) * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull;
    std::memcpy(key.bytes.data() + 8 * i, &word, 8);
  }
  return key;
}

std::vector<std::byte> BytesOf(uint64_t node) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (uint64_t at = 0; at < kBlockBytes; at += 512) {
    const uint64_t word = node * 1000003 + at;
    std::memcpy(bytes.data() + at, &word, 8);
  }
  return bytes;
}

struct Model {
  struct Entry {
    uint64_t claim = 0;  // the parent's node + 1; 0: a root
    uint64_t touch = 0, leases = 0, serial = 0;
    uint32_t depth = 0;
  };
  using IsGone = std::function<bool(uint64_t node)>;
  std::map<uint64_t, Entry> live;                                         // node -> entry
  std::map<uint64_t, uint64_t> doomed;                                    // serial -> leases left
  std::map<uint64_t, std::vector<std::pair<uint64_t, uint64_t>>> leases;  // id -> (node, serial)
  std::set<uint64_t> coming;  // nodes that the put under way stores
  uint64_t now = 0, next_serial = 1;

  size_t Used() const { return live.size() + doomed.size(); }

  void Remove(uint64_t node) {
    const Entry entry = live.at(node);
    live.erase(node);
    if (entry.leases > 0) doomed[entry.serial] = entry.leases;
  }

  bool IsLeaf(uint64_t node) const {
    return std::ranges::none_of(live, [&](const auto& e) { return e.second.claim == node + 1; });
  }
  // The parent is nowhere: no lookup finds it. What stands behind it will be so when it has left.
  bool IsDead(const Entry& entry) const {
    return entry.claim != 0 && !live.contains(entry.claim - 1) && !coming.contains(entry.claim - 1);
  }
  bool MayLeave(uint64_t node) const {
    const Entry& entry = live.at(node);
    return entry.leases == 0 && (IsLeaf(node) || IsDead(entry));
  }

  // Which of several dead blocks leaves first is the cache's choice; that it is one of them is not.
  bool Evict(const IsGone& is_gone) {
    std::optional<uint64_t> oldest;
    bool has_dead = false;
    for (const auto& [node, entry] : live) {
      if (!MayLeave(node)) continue;
      if (IsDead(entry)) {
        has_dead = true;
        if (!is_gone(node)) continue;
        ++dead_evicted;
        Remove(node);
        return true;
      }
      if (!oldest.has_value() || entry.touch < live.at(*oldest).touch) oldest = node;
    }
    EXPECT_FALSE(has_dead) << "a dead block is kept while live ones are evicted";
    if (!oldest.has_value()) return false;
    Remove(*oldest);
    return true;
  }
  uint64_t dead_evicted = 0;

  // The rules of Cache::Put for one group.
  std::vector<PutResult> Put(const std::vector<uint64_t>& chain, uint32_t first_depth,
                             uint64_t claimed_parent, const IsGone& is_gone) {
    std::vector<PutResult> results(chain.size(), PutResult::kRejectedParent);
    uint64_t guard = 0;  // serial
    const auto move_guard = [&](uint64_t node_or_none, bool none) {
      const uint64_t old = guard;
      guard = 0;
      if (!none) guard = live.at(node_or_none).serial, ++live.at(node_or_none).leases;
      Unlease(old);
    };
    const bool orphan = claimed_parent != 0 && !live.count(claimed_parent - 1);
    if (claimed_parent != 0 && !orphan) move_guard(claimed_parent - 1, false);
    std::vector<bool> copy(chain.size(), true);
    size_t missing = 0;
    for (size_t i = 0; i < chain.size(); ++i) {
      auto it = live.find(chain[i]);
      if (it == live.end()) {
        ++missing;
        coming.insert(chain[i]);
        continue;
      }
      copy[i] = false;
      results[i] = PutResult::kExists;
      it->second.touch = ++now;
      move_guard(chain[i], false);
    }
    // What no lookup would find takes nobody's place.
    const bool can_evict = [&] {
      return std::ranges::any_of(live, [&](const auto& e) { return MayLeave(e.first); });
    }();
    while (!orphan && kSlotsTotal - Used() < missing && Evict(is_gone)) {
    }
    coming.clear();
    size_t room = kSlotsTotal - Used();
    for (size_t i = 0; i < chain.size(); ++i) {
      if (!copy[i]) continue;
      if (room-- == 0) {
        results[i] = orphan && can_evict ? PutResult::kRejectedParent : PutResult::kRejectedNoSpace;
        std::fill(results.begin() + i + 1, results.end(), PutResult::kRejectedParent);
        break;
      }
      Entry entry;
      entry.depth = first_depth + i;
      entry.touch = ++now;
      entry.serial = next_serial++;
      entry.claim = i > 0 ? chain[i - 1] + 1 : claimed_parent;
      live[chain[i]] = entry;
      results[i] = PutResult::kStored;
      move_guard(chain[i], false);
    }
    move_guard(0, true);
    return results;
  }

  void Unlease(uint64_t serial) {
    if (serial == 0) return;
    for (auto& [node, entry] : live) {
      if (entry.serial == serial) {
        --entry.leases;
        return;
      }
    }
    if (--doomed.at(serial) == 0) doomed.erase(serial);
  }
};

class CacheModel : public testing::TestWithParam<uint64_t> {};

TEST_P(CacheModel, AgreesOnEveryAnswer) {
  const uint64_t seed = GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  CacheOptions options;
  options.arena.capacity_bytes = 64ull << 20;
  options.arena.huge_pages = false;
  options.lease_bytes_max = 40 * kBlockBytes;
  auto cache = Cache::Create(options);
  ASSERT_TRUE(cache.ok()) << cache.status();
  auto ns = (*cache)->OpenNamespace(Descriptor());
  ASSERT_TRUE(ns.ok()) << ns.status();
  LeaseAccount account;
  Model model;
  // The tree: node n at depth d has children; a chain is a path from a root.
  const auto path = [&](size_t length) {
    std::vector<uint64_t> nodes;
    uint64_t at = rng() % 6;
    nodes.push_back(at);
    while (nodes.size() < length) nodes.push_back(at = (at + 1) * 7 + (rng() % 2));
    return nodes;
  };
  const auto keys_of = [](const std::vector<uint64_t>& nodes) {
    std::vector<BlockKey> keys;
    for (uint64_t node : nodes) keys.push_back(KeyOf(node));
    return keys;
  };
  for (int step = 0; step < 1500; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const std::vector<uint64_t> nodes = path(1 + rng() % 10);
    const std::vector<BlockKey> keys = keys_of(nodes);
    size_t hit = 0;
    while (hit < nodes.size() && model.live.count(nodes[hit])) ++hit;
    switch (rng() % 8) {
      case 0:
      case 1:
      case 2: {  // put the suffix of a path
        const size_t from = rng() % nodes.size();
        std::vector<uint64_t> suffix(nodes.begin() + from, nodes.end());
        PutRequest request;
        request.ns = ns->handle;
        request.first_depth = from;
        const std::vector<BlockKey> suffix_keys = keys_of(suffix);
        if (from > 0) request.parent = keys[from - 1];
        std::vector<std::vector<std::byte>> blocks;
        std::vector<const std::byte*> sources;
        for (uint64_t node : suffix) blocks.push_back(BytesOf(node));
        for (const auto& block : blocks) sources.push_back(block.data());
        request.keys = suffix_keys;
        request.sources = sources;
        std::vector<PutResult> results(suffix.size());
        ASSERT_TRUE((*cache)->Put(request, results).ok());
        const auto is_gone = [&](uint64_t node) {
          const BlockKey key = KeyOf(node);
          return (*cache)->Lookup(ns->handle, std::span(&key, 1)) == 0;
        };
        ASSERT_EQ(results, model.Put(suffix, from, from > 0 ? nodes[from - 1] + 1 : 0, is_gone));
        break;
      }
      case 3:
      case 4: {  // acquire
        const AcquireResult got = (*cache)->Acquire(ns->handle, keys, &account, 0);
        size_t leased = 0;
        for (const auto& [id, of] : model.leases) leased += of.size();
        const size_t granted = std::min(hit, 40 - leased);
        ASSERT_EQ(got.grants.size(), granted);
        ASSERT_EQ(got.over_lease_cap, granted < hit);
        for (size_t i = 0; i < granted; ++i) {
          ASSERT_EQ(std::memcmp((*cache)->Data(got.grants[i].slot), BytesOf(nodes[i]).data(),
                                kBlockBytes),
                    0);
          ASSERT_EQ(got.grants[i].checksum,
                    BlockChecksum(ChecksumSeed(ns->id, keys[i], kBlockBytes),
                                  BytesOf(nodes[i]).data(), kBlockBytes));
        }
        if (granted == 0) break;
        for (size_t i = 0; i < granted; ++i) {
          auto& entry = model.live.at(nodes[i]);
          ++entry.leases;
          model.leases[got.lease].emplace_back(nodes[i], entry.serial);
        }
        break;
      }
      case 5: {  // release
        if (model.leases.empty()) break;
        auto it = std::next(model.leases.begin(), rng() % model.leases.size());
        ASSERT_TRUE((*cache)->Release(it->first, &account));
        for (size_t i = it->second.size(); i-- > 0;) {  // what is still there was read last now
          const auto entry = model.live.find(it->second[i].first);
          if (entry == model.live.end() || entry->second.serial != it->second[i].second) continue;
          entry->second.touch = ++model.now;
        }
        for (const auto& [node, serial] : it->second) model.Unlease(serial);
        model.leases.erase(it);
        break;
      }
      case 6:
        ASSERT_EQ((*cache)->Lookup(ns->handle, keys), hit);
        break;
      case 7: {
        if (rng() % 40 == 0) {
          ASSERT_EQ((*cache)->Invalidate(ns->handle), model.live.size());
          while (!model.live.empty()) model.Remove(model.live.begin()->first);
        } else if (rng() % 3 == 0) {
          const size_t which = rng() % nodes.size();
          const bool there = model.live.count(nodes[which]) > 0;
          ASSERT_EQ((*cache)->InvalidateKeys(ns->handle, std::span(&keys[which], 1)),
                    there ? 1u : 0u);
          if (there) model.Remove(nodes[which]);
        }
        break;
      }
    }
    const CacheStats stats = (*cache)->Stats();
    ASSERT_EQ(stats.index.entries, model.live.size());
    ASSERT_EQ(stats.arena.used_bytes, model.Used() * kBlockBytes);
    ASSERT_LE(stats.arena.chunk_bytes, options.arena.capacity_bytes);
    if (step % 50 == 0) {
      ASSERT_EQ((*cache)->CheckInvariants(), absl::OkStatus());
    }
  }
  EXPECT_GT(model.dead_evicted, 20u);
  (*cache)->ReleaseAll(&account);
  for (const auto& [id, of] : model.leases) {
    for (const auto& [node, serial] : of) model.Unlease(serial);
  }
  EXPECT_EQ((*cache)->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ((*cache)->Stats().arena.used_bytes, model.live.size() * kBlockBytes);
  EXPECT_EQ((*cache)->Stats().leased_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheModel, testing::Range<uint64_t>(1, 7));

}  // namespace
}  // namespace kvarve
