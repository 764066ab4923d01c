// Suite "index": what the index costs by itself, without a daemon.
#include <cstring>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/base/status_macros.h"
#include "storage/index/index.h"
#include "storage/testing/block_generator.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/entry_memory.h"

namespace kvarve::perf {
namespace {

constexpr size_t kLookupKeys = 8192;
constexpr int kLookupsARound = 15;

// Numbers that repeat from run to run.
class Sequence {
 public:
  uint64_t Below(uint64_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint64_t>(static_cast<unsigned __int128>(state_) * bound >> 64);
  }

 private:
  uint64_t state_ = 1;
};

struct KeyBytesHash {
  size_t operator()(const BlockKey& key) const { return key.Word(0); }
};
// What the bare loop keeps: the same facts of a block in the map that one would take first.
struct BareEntry {
  uint64_t slot, checksum;
};
using BareMap = absl::flat_hash_map<BlockKey, BareEntry, KeyBytesHash>;

std::vector<BlockKey> RandomKeys(Sequence* sequence, uint64_t entries) {
  std::vector<BlockKey> keys(kLookupKeys);
  for (BlockKey& key : keys) key = testing::KeyOf(sequence->Below(entries));
  return keys;
}

void LookupRows(BenchTable* table, uint64_t entries, const std::string& label) {
  const std::string name = "index/lookup_8192/" + label;
  if (!table->Wants(name)) return;
  Index index(0x1234567, entries);
  BareMap bare;
  bare.reserve(entries);
  for (uint64_t n = 0; n < entries; ++n) {
    const BlockKey key = testing::KeyOf(n);
    KV_CHECK(index.Insert(0, key, nullptr, 0, n, n).ok());
    bare.emplace(key, BareEntry{n, n});
  }
  Sequence sequence;
  std::vector<EntryId> ids(kLookupKeys);
  Comparison row{.name = name, .unit = "ms", .better = Better::kLower};
  // Each set of keys is new, so that only the table's own locality helps.
  row.mine = [&] {
    std::vector<double> millis;
    for (int i = 0; i < kLookupsARound; ++i) {
      const std::vector<BlockKey> keys = RandomKeys(&sequence, entries);
      const double start = NowMicros();
      KV_CHECK(index.FindPrefix(0, keys, ids.data()) == keys.size());
      millis.push_back((NowMicros() - start) / 1000);
    }
    return Median(millis);
  };
  row.bare = [&] {
    std::vector<double> millis;
    for (int i = 0; i < kLookupsARound; ++i) {
      const std::vector<BlockKey> keys = RandomKeys(&sequence, entries);
      uint64_t sum = 0;
      const double start = NowMicros();
      for (const BlockKey& key : keys) sum += bare.find(key)->second.slot;
      millis.push_back((NowMicros() - start) / 1000);
      KV_CHECK(sum > 0);
    }
    return Median(millis);
  };
  row.value_gate = 0.5;
  table->Compare(row);
}

void MemoryRow(BenchTable* table) {
  const std::string name = "index/bytes_an_entry/worst_of_0.5M_to_2M";
  if (!table->Wants(name)) return;
  const auto memory = MeasureEntryMemory(500'000, 2'000'000, 5'000);
  if (!memory.ok()) {
    table->Fail(name, std::string(memory.status().message()));
    return;
  }
  table->Measure({.name = name,
                  .unit = "bytes",
                  .better = Better::kLower,
                  .gate = 96,
                  .measure = [&] { return memory->worst_bytes_an_entry; },
                  .rounds = 1});
}

void Run(BenchTable* table) {
  const PinnedTo one_processor(AllowedCpus().back());
  LookupRows(table, 1'000'000, "1M");
  LookupRows(table, 8'000'000, "8M");
  MemoryRow(table);
}

KVARVE_BENCH_SUITE(index, "lookups and bytes an entry, without a daemon", Run);

}  // namespace
}  // namespace kvarve::perf
