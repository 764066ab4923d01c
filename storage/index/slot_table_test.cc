// Goal: the table finds what is in it and nothing else, at any load, and removals leave no trace.
// Method: a std::map as oracle under churn at constant size, with hashes that crowd one bucket on
// purpose; the table's shape after long churn equals that of a table filled afresh, so nothing
// decays.
#include "storage/index/slot_table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "storage/index/key_hash.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::SeededRandom;

class TableWithOracle {
 public:
  void Insert(uint64_t hash) {
    const auto id = static_cast<uint32_t>(hashes.size());
    hashes.push_back(hash);
    live.emplace(hash, id);
    live_ids.push_back(id);
    table.Insert(
        hash, id, [&](uint32_t other) { return hashes[other]; }, [](uint32_t) {});
  }
  void EraseOneOf(SeededRandom* random) {
    const size_t at = random->Below(live_ids.size());
    const uint32_t id = live_ids[at];
    live_ids[at] = live_ids.back();
    live_ids.pop_back();
    table.Erase(hashes[id], id);
    const auto [begin, end] = live.equal_range(hashes[id]);
    live.erase(std::find_if(begin, end, [&](const auto& it) { return it.second == id; }));
  }
  void Check(uint64_t hash) const {
    size_t visited = 0;
    const auto [begin, end] = live.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      ASSERT_EQ(table.Find(hash, [&](uint32_t id) { return id == it->second; }), it->second);
      ++visited;
    }
    if (visited == 0) {
      ASSERT_EQ(
          table.Find(hash, [&](uint32_t id) { return live.count(hash) > 0 && hashes[id] == hash; }),
          SlotTable::kNone);
    }
  }

  SlotTable table;
  std::vector<uint64_t> hashes;  // by id
  std::vector<uint32_t> live_ids;
  std::multimap<uint64_t, uint32_t> live;
};

TEST(SlotTable, ChurnAgainstOracle) {
  SeededRandom random(5);
  TableWithOracle t;
  for (int step = 0; step < 100'000; ++step) {
    // A third of all hashes lie in four sub-tables' few buckets, so that buckets overflow and wrap
    // around.
    const uint64_t hash = random.OneIn(3)
                              ? (random.Below(4) << 56 | 0x00ffffff'ff000000u | random.Below(256))
                              : random.Next();
    if (random.Below(t.live.size() + 1) < 3000) {
      t.Insert(hash);
    } else {
      t.EraseOneOf(&random);
    }
    t.Check(hash);
    if (step % 5000 == 0) {
      for (const auto& it : t.live) t.Check(it.first);
    }
  }
  EXPECT_EQ(t.table.Measure().used, t.live.size());
  while (!t.live.empty()) t.EraseOneOf(&random);
  EXPECT_EQ(t.table.Measure().used, 0u);
  EXPECT_EQ(t.table.Measure().overflowed_buckets, 0u);
}

TEST(SlotTable, ChurnDoesNotDecay) {
  SeededRandom random(6);
  TableWithOracle t;
  while (t.live.size() < 100'000) t.Insert(random.Next());
  const auto churn = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      t.EraseOneOf(&random);
      t.Insert(random.Next());
    }
    return t.table.Measure();
  };
  // Everything has been replaced twice by then: what overflows in the steady state does so. Six
  // times more change nothing.
  const SlotTable::Shape early = churn(200'000), late = churn(600'000);
  EXPECT_EQ(early.used, late.used);
  EXPECT_LE(late.overflowed_buckets, early.overflowed_buckets * 5 / 4);
  EXPECT_LE(late.longest_probe, early.longest_probe + 4);
}

TEST(SlotTable, GrowsInSmallSteps) {
  SeededRandom random(7);
  TableWithOracle t;
  uint64_t before = t.table.MemoryBytes();
  for (int n = 0; n < 300'000; ++n) {
    t.Insert(random.Next());
    const uint64_t bytes = t.table.MemoryBytes();
    ASSERT_LE(bytes - before, 64 * 1024u);
    before = bytes;
  }
  const SlotTable::Shape shape = t.table.Measure();
  EXPECT_LE(shape.used, shape.slots * 3 / 4 + 256);
  EXPECT_LE(shape.longest_probe, 16u);
}

// Whatever structure keys have, their hashes spread like random ones: the fullest of 4,096 cells by
// the top 12 bits (sub-table and place in it) stays where chance puts it.
TEST(KeyHash, SpreadsStructuredKeys) {
  SeededRandom random(8);
  const KeyHash hash(random.Next());
  constexpr int kKeys = 400'000;
  for (int pattern = 0; pattern < 6; ++pattern) {
    std::vector<int> cells(4096);
    for (uint64_t n = 0; n < kKeys; ++n) {
      BlockKey key;
      uint64_t words[4] = {0, 0, 0, 0};
      if (pattern < 4) words[pattern] = n;  // a counter in one word
      if (pattern == 4) words[0] = words[1] = words[2] = words[3] = n;
      if (pattern == 5) words[0] = n << 44, words[3] = ~(n << 44);  // high bits only
      std::memcpy(key.bytes.data(), words, 32);
      ++cells[hash(0, key) >> 52];
    }
    // Mean 98, deviation 10: seven deviations.
    for (int cell : cells) ASSERT_LT(cell, 98 + 70) << "pattern " << pattern;
  }
}

TEST(KeyHash, SeedAndNamespaceChangeTheHash) {
  const KeyHash a(1), b(2);
  int equal = 0;
  for (uint64_t n = 0; n < 1000; ++n) {
    const BlockKey key = testing::KeyOf(n);
    equal += a(0, key) == b(0, key);
    equal += a(0, key) == a(1, key);
    EXPECT_EQ(a(5, key), KeyHash(1)(5, key));
  }
  EXPECT_EQ(equal, 0);
}

}  // namespace
}  // namespace kvarve
