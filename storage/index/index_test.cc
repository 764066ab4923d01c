// Goal: the index does what a std::map of records would do. Method: a naive model takes the same
// random operations (hostile parents, leases, removals of inner blocks, id reuse) and is compared
// after each; links are modelled by serial numbers that are never used again, which is what (id,
// generation) has to amount to.
#include "storage/index/index.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::KeyChain;
using testing::KeyOf;
using testing::SeededRandom;

class Model {
 public:
  struct Record {
    uint64_t serial;
    EntryId id;
    uint64_t parent_serial;  // 0: none
    uint32_t depth;
    uint64_t slot, checksum;
    uint32_t leases;
  };
  using Name = std::pair<NamespaceIndex, std::array<uint8_t, 32>>;

  Record* Find(NamespaceIndex ns, const BlockKey& key) {
    auto it = live.find({ns, key.bytes});
    return it == live.end() ? nullptr : &it->second;
  }
  void Insert(NamespaceIndex ns, const BlockKey& key, const BlockKey* parent, uint32_t depth,
              uint64_t slot, uint64_t checksum, EntryId id) {
    const Record* claimed = parent == nullptr ? nullptr : Find(ns, *parent);
    const uint64_t link = claimed != nullptr && claimed->depth + 1 == depth ? claimed->serial : 0;
    live[{ns, key.bytes}] = {next_serial++, id, link, depth, slot, checksum, 0};
  }
  uint64_t Children(uint64_t serial) const {
    return std::count_if(live.begin(), live.end(),
                         [&](const auto& it) { return it.second.parent_serial == serial; });
  }
  // The id that Index::Remove has to return.
  EntryId Remove(std::map<Name, Record>::iterator it) {
    const Record record = it->second;
    live.erase(it);
    if (record.leases > 0) doomed[record.id] = record.leases;
    if (record.parent_serial == 0 || Children(record.parent_serial) > 0) return kNoEntry;
    for (const auto& [name, other] : live) {
      if (other.serial == record.parent_serial) return other.id;
    }
    return kNoEntry;
  }

  std::map<Name, Record> live;
  std::map<EntryId, uint32_t> doomed;
  uint64_t next_serial = 1;
};

class IndexModelTest : public ::testing::Test {
 protected:
  static constexpr int kNamespaces = 3;
  static constexpr uint64_t kKeys = 300;

  void Step() {
    switch (random_.Below(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Insert();
      case 4:
        return Lookup();
      case 5:
      case 6:
        return Remove();
      case 7:
        return Lease();
      default:
        return Unlease();
    }
  }

  void Insert() {
    const auto ns = static_cast<NamespaceIndex>(random_.Below(kNamespaces));
    const BlockKey key = KeyOf(random_.Below(kKeys));
    // Any key as parent: absent ones, its own, and with a depth that often does not fit.
    const BlockKey parent = random_.OneIn(20) ? key : KeyOf(random_.Below(kKeys));
    const bool root = random_.OneIn(4);
    const Model::Record* claimed = model_.Find(ns, parent);
    uint32_t depth = root ? 0 : static_cast<uint32_t>(random_.Below(4));
    if (claimed != nullptr && !random_.OneIn(3)) depth = claimed->depth + 1;
    const uint64_t slot = random_.Next() >> 16, checksum = random_.Next();
    const auto id = index_.Insert(ns, key, root ? nullptr : &parent, depth, slot, checksum);
    if (model_.Find(ns, key) != nullptr) {
      EXPECT_EQ(id.status().code(), absl::StatusCode::kAlreadyExists);
    } else if (model_.live.size() + model_.doomed.size() == kMaxEntries) {
      EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
    } else {
      ASSERT_TRUE(id.ok()) << id.status();
      EXPECT_EQ(model_.doomed.count(*id), 0u);
      for (const auto& it : model_.live) ASSERT_NE(it.second.id, *id);
      model_.Insert(ns, key, root ? nullptr : &parent, depth, slot, checksum, *id);
    }
  }

  void Lookup() {
    const auto ns = static_cast<NamespaceIndex>(random_.Below(kNamespaces));
    std::vector<BlockKey> keys;
    for (uint64_t n = random_.Below(100); n > 0; --n) {
      // Mostly keys that are there, so that prefixes get long.
      auto it = model_.live.lower_bound({ns, KeyOf(random_.Next()).bytes});
      const bool present = it != model_.live.end() && it->first.first == ns && !random_.OneIn(50);
      keys.push_back(present ? BlockKey{it->first.second} : KeyOf(random_.Below(kKeys)));
    }
    if (random_.OneIn(4)) keys = NeighboursAndOthers(ns);
    std::vector<EntryId> expected;
    for (const BlockKey& key : keys) {
      const Model::Record* record = model_.Find(ns, key);
      if (record == nullptr) break;
      expected.push_back(record->id);
    }
    std::vector<EntryId> found(keys.size(), kNoEntry);
    const size_t hits = index_.FindPrefix(ns, keys, found.data());
    EXPECT_EQ(index_.FindPrefix(ns, keys, nullptr), hits);
    found.resize(hits);
    ASSERT_EQ(found, expected);
    // A hint changes nothing, wherever it points.
    const auto before = static_cast<EntryId>(random_.Below(2 * kMaxEntries));
    std::fill(found.begin(), found.end(), kNoEntry);
    ASSERT_EQ(index_.FindPrefix(ns, keys, found.data(), before), hits);
    ASSERT_EQ(found, expected);
  }

  // Keys in the order of their cells, as a chain has them that was put at once; now and then one is
  // left out, or another comes in between.
  std::vector<BlockKey> NeighboursAndOthers(NamespaceIndex ns) {
    std::map<EntryId, BlockKey> by_id;
    for (const auto& [name, record] : model_.live) {
      if (name.first == ns) by_id[record.id] = BlockKey{name.second};
    }
    std::vector<BlockKey> keys;
    for (const auto& [id, key] : by_id) {
      if (random_.OneIn(40)) keys.push_back(KeyOf(random_.Below(kKeys)));
      if (!random_.OneIn(40)) keys.push_back(key);
    }
    return keys;
  }

  std::map<Model::Name, Model::Record>::iterator AnyLive() {
    return std::next(model_.live.begin(), random_.Below(model_.live.size()));
  }

  void Remove() {
    if (model_.live.empty()) return;
    const auto it = AnyLive();
    const EntryId id = it->second.id;
    const EntryId childless_parent = model_.Remove(it);
    ASSERT_EQ(index_.Remove(id), childless_parent);
  }

  void Lease() {
    if (model_.live.empty()) return;
    Model::Record& record = AnyLive()->second;
    ASSERT_TRUE(index_.Lease(record.id));
    ++record.leases;
  }

  void Unlease() {
    if (!model_.doomed.empty() && random_.OneIn(2)) {
      const auto it = std::next(model_.doomed.begin(), random_.Below(model_.doomed.size()));
      ASSERT_EQ(index_.Unlease(it->first), --it->second);
      if (it->second > 0) return;
      index_.Erase(it->first);
      model_.doomed.erase(it);
    } else if (!model_.live.empty()) {
      Model::Record& record = AnyLive()->second;
      if (record.leases == 0) return;
      ASSERT_EQ(index_.Unlease(record.id), --record.leases);
    }
  }

  void CompareAll() {
    const IndexStats stats = index_.Stats();
    ASSERT_EQ(stats.entries, model_.live.size());
    ASSERT_EQ(stats.doomed, model_.doomed.size());
    for (const auto& [name, record] : model_.live) {
      ASSERT_EQ(index_.Find(name.first, BlockKey{name.second}), record.id);
      const IndexEntry& entry = index_.Get(record.id);
      ASSERT_EQ(entry.slot, record.slot);
      ASSERT_EQ(entry.checksum, record.checksum);
      ASSERT_EQ(entry.depth, record.depth);
      ASSERT_EQ(entry.leases, record.leases);
      const uint64_t children = model_.Children(record.serial);
      ASSERT_EQ(entry.children, children);
      ASSERT_EQ(index_.IsLeaf(record.id), children == 0);
    }
    for (uint64_t n = 0; n < kKeys; ++n) {
      if (model_.Find(0, KeyOf(n)) != nullptr) continue;
      ASSERT_EQ(index_.Find(0, KeyOf(n)), kNoEntry);
    }
    std::set<EntryId> expected, seen;
    for (const auto& [name, record] : model_.live) {
      if (name.first == 1) expected.insert(record.id);
    }
    for (EntryId begin = 0; begin < index_.capacity_ids(); begin += 37) {
      index_.ForEachRange(begin, begin + 37, NamespaceIndex{1},
                          [&](EntryId id) { ASSERT_TRUE(seen.insert(id).second); });
    }
    ASSERT_EQ(seen, expected);
    size_t all = 0;
    index_.ForEach(std::nullopt, [&](EntryId) { ++all; });
    ASSERT_EQ(all, model_.live.size());
  }

  static constexpr uint64_t kMaxEntries = 500;
  SeededRandom random_{20260101};
  Index index_{random_.Next(), kMaxEntries};
  Model model_;
};

TEST_F(IndexModelTest, RandomOperations) {
  for (int step = 0; step < 60'000 && !HasFatalFailure(); ++step) {
    Step();
    if (step % 100 == 0) CompareAll();
  }
  CompareAll();
}

TEST(Index, RefusesWhatDoesNotFit) {
  Index index(1, 2);
  const BlockKey key = KeyOf(1);
  using absl::StatusCode;
  EXPECT_EQ(index.Insert(kMaxNamespaces, key, nullptr, 0, 0, 0).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(index.Insert(0, key, nullptr, kMaxDepth + 1, 0, 0).status().code(),
            StatusCode::kResourceExhausted);
  ASSERT_TRUE(index.Insert(kMaxNamespaces - 1, key, nullptr, kMaxDepth, 0, 0).ok());
  ASSERT_TRUE(index.Insert(0, key, nullptr, 0, 0, 0).ok());
  EXPECT_EQ(index.Insert(1, key, nullptr, 0, 0, 0).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(index.Find(1, key), kNoEntry);
  index.Remove(index.Find(0, key));
  EXPECT_TRUE(index.Insert(1, key, nullptr, 0, 0, 0).ok());
}

TEST(Index, LeasesEndAt65535) {
  Index index(1, 10);
  const EntryId id = index.Insert(0, KeyOf(1), nullptr, 0, 0, 0).value();
  for (int i = 0; i < 65'535; ++i) ASSERT_TRUE(index.Lease(id));
  EXPECT_FALSE(index.Lease(id));
  EXPECT_EQ(index.Unlease(id), 65'534u);
  EXPECT_TRUE(index.Lease(id));
}

// A child whose parent went long ago must never be taken for a child of what lives in the parent's
// cell now, not even after the cell's 16-bit generation has gone round.
TEST(Index, StaleLinkNeverHoldsAgain) {
  Index index(1, 10);
  const BlockKey orphan = KeyOf(1'000'001);
  const BlockKey first = KeyOf(0);
  const EntryId cell = index.Insert(0, first, nullptr, 0, 0, 0).value();
  const EntryId child = index.Insert(0, orphan, &first, 1, 0, 0).value();
  ASSERT_EQ(index.Get(cell).children, 1u);
  index.Remove(cell);
  for (uint64_t n = 1; n < 140'000; ++n) {
    const BlockKey parent = KeyOf(n), other = KeyOf(1'000'002);
    const EntryId id = index.Insert(0, parent, nullptr, 0, 0, 0).value();
    ASSERT_TRUE(index.Insert(0, other, &parent, 1, 0, 0).ok());
    const IndexEntry& entry = index.Get(id);
    const IndexEntry& stale = index.Get(child);
    ASSERT_FALSE(id == stale.parent && entry.generation == stale.parent_generation) << n;
    index.Remove(id);  // leaves a child behind, which uses up a generation
    ASSERT_EQ(index.Remove(index.Find(0, other)), kNoEntry);
  }
  EXPECT_GE(index.Stats().retired, 1u);
  EXPECT_EQ(index.Remove(child), kNoEntry);
  EXPECT_EQ(index.Stats().entries, 0u);
}

TEST(Index, HostileParentsNeverLink) {
  Index index(1, 100);
  const std::vector<BlockKey> keys = KeyChain(1, 4);
  const EntryId self = index.Insert(0, keys[0], &keys[0], 1, 0, 0).value();  // itself
  EXPECT_EQ(index.Get(self).parent, kNoEntry);
  const EntryId ahead = index.Insert(0, keys[1], &keys[2], 1, 0, 0).value();  // not there yet
  const EntryId back = index.Insert(0, keys[2], &keys[1], 2, 0, 0).value();   // closes the cycle
  EXPECT_EQ(index.Get(ahead).parent, kNoEntry);
  EXPECT_EQ(index.Get(back).parent, ahead);
  const EntryId foreign = index.Insert(1, keys[3], &keys[1], 2, 0, 0).value();
  EXPECT_EQ(index.Get(foreign).parent, kNoEntry);
  const EntryId wrong_depth = index.Insert(0, keys[3], &keys[1], 3, 0, 0).value();
  EXPECT_EQ(index.Get(wrong_depth).parent, kNoEntry);
  EXPECT_EQ(index.Get(ahead).children, 1u);
  // Leaf by leaf everything goes.
  EXPECT_EQ(index.Remove(back), ahead);
  for (EntryId id : {self, ahead, foreign, wrong_depth}) EXPECT_EQ(index.Remove(id), kNoEntry);
  EXPECT_EQ(index.Stats().entries, 0u);
}

// Keys that differ in one bit only, in every position, are told apart, and so are namespaces.
TEST(Index, EveryKeyByteCounts) {
  Index index(7, 1000);
  std::vector<BlockKey> keys;
  for (int bit = 0; bit < 256; ++bit) {
    BlockKey key;
    key.bytes[bit / 8] = static_cast<uint8_t>(1u << bit % 8);
    keys.push_back(key);
    ASSERT_TRUE(index.Insert(0, key, nullptr, 0, bit, 0).ok());
    ASSERT_TRUE(index.Insert(1, key, nullptr, 0, 1000 + bit, 0).ok());
  }
  std::vector<EntryId> ids(keys.size());
  for (NamespaceIndex ns : {0, 1}) {
    ASSERT_EQ(index.FindPrefix(ns, keys, ids.data()), keys.size());
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(index.Get(ids[i]).slot, ns * 1000u + i);
  }
}

TEST(Index, GrowsAndEmptiesAndKeepsItsMemoryBound) {
  constexpr size_t kEntries = 300'000;
  Index index(3, kEntries);
  std::vector<EntryId> ids;
  for (int round = 0; round < 2; ++round) {
    for (size_t n = 0; n < kEntries; ++n) {
      ids.push_back(index.Insert(0, KeyOf(n), nullptr, 0, n, ~n).value());
      if (round == 0 && n >= 200'000) {
        ASSERT_LE(index.Stats().memory_bytes, (n + 1) * 76) << n;  // leaves 20 to policy and owners
      }
    }
    for (size_t n = 0; n < kEntries; ++n) {
      ASSERT_EQ(index.Find(0, KeyOf(n)), ids[n]);
      ASSERT_EQ(index.Get(ids[n]).slot, n);
    }
    ASSERT_EQ(index.Find(0, KeyOf(kEntries)), kNoEntry);
    for (EntryId id : ids) index.Remove(id);
    for (size_t n = 0; n < kEntries; n += 7) ASSERT_EQ(index.Find(0, KeyOf(n)), kNoEntry);
    ids.clear();
  }
  EXPECT_EQ(index.Stats().entries, 0u);
  EXPECT_EQ(index.capacity_ids(), kEntries);  // cells were used again
}

}  // namespace
}  // namespace kvarve
