// Hash table from a 64-bit hash to 32-bit ids. It holds no keys: a slot is an 8-bit tag of the hash
// and the id; the caller compares. Twelve slots make a bucket of one cache line, so that a lookup
// costs one miss here.
//
// 256 sub-tables grow on their own, by a quarter each time and out of step, so that memory follows
// the number of ids closely and no growth moves more than 1/256 of them. A full bucket overflows
// into the next; each bucket counts what passed over it, so that a miss stops early and a removal
// leaves no tombstone.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_INDEX_SLOT_TABLE_H_
#define KVARVE_STORAGE_INDEX_SLOT_TABLE_H_

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <bit>
#include <cstdint>

#include "storage/base/prefetch.h"

namespace kvarve {

class SlotTable {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  SlotTable();
  ~SlotTable();
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  void Prefetch(uint64_t hash) const { PrefetchForRead(HomeOf(hash)); }

  // Calls prefetch(id) for every id whose tag fits: nearly always the one that Find will return.
  template <typename PrefetchId>
  void PrefetchIds(uint64_t hash, PrefetchId prefetch) const {
    Visit(hash, [&](uint32_t id) {
      prefetch(id);
      return false;
    });
  }

  // The id for which is_key(id) holds, or kNone.
  template <typename IsKey>
  uint32_t Find(uint64_t hash, IsKey is_key) const {
    return Visit(hash, is_key);
  }

  // REQUIRES: `id` is not in the table. hash_of(id) gives the hash of any id in it; prefetch(id)
  // comes a little before it. Both are called only when a sub-table grows.
  template <typename HashOf, typename PrefetchId>
  void Insert(uint64_t hash, uint32_t id, HashOf hash_of, PrefetchId prefetch) {
    SubTable& table = tables_[TableOf(hash)];
    if (table.used >= table.buckets * kGrowSlotsPerBucket) Grow(TableOf(hash), hash_of, prefetch);
    Place(&table, hash, id);
    ++table.used;
  }

  // REQUIRES: `id` was inserted with this hash.
  void Erase(uint64_t hash, uint32_t id);

  uint64_t MemoryBytes() const;

  // Slots in use and buckets that were passed over; for tests and doctor.
  struct Shape {
    uint64_t used = 0, slots = 0, overflowed_buckets = 0;
    uint32_t longest_probe = 0;  // buckets from home to the farthest that anything passed
  };
  Shape Measure() const;

 private:
  static constexpr uint32_t kSlots = 12;              // a bucket
  static constexpr uint32_t kGrowSlotsPerBucket = 9;  // load 0.75
  static constexpr uint32_t kTables = 256;
  static constexpr uint32_t kPrefetchIds = 24;  // ahead of the re-hash
  static constexpr uint16_t kOverflowMax = 0xffff;

  struct alignas(64) Bucket {
    uint8_t tags[kSlots];  // 0: free
    uint16_t overflow;     // ids that passed over this bucket; stays at kOverflowMax once there
    uint16_t spare;
    uint32_t ids[kSlots];
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr uint32_t kBucketsPerPage = 4096 / sizeof(Bucket);

  struct SubTable {
    Bucket* base = nullptr;
    uint32_t buckets = 0;
    uint32_t used = 0;
  };

  static uint32_t TableOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 56); }
  static uint8_t TagOf(uint64_t hash) {
    const uint8_t tag = static_cast<uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }
  static uint32_t BucketOf(uint64_t hash, uint32_t buckets) {
    return static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(hash >> 24)} * buckets >> 32);
  }
  const Bucket* HomeOf(uint64_t hash) const {
    const SubTable& table = tables_[TableOf(hash)];
    return table.base + BucketOf(hash, table.buckets);
  }
  // Calls visit(id) for the ids whose tag fits, until it returns true; returns that id, or kNone.
  template <typename VisitId>
  uint32_t Visit(uint64_t hash, VisitId visit) const {
    const SubTable& table = tables_[TableOf(hash)];
    const uint8_t tag = TagOf(hash);
    uint32_t at = BucketOf(hash, table.buckets);
    for (uint32_t probes = 0; probes < table.buckets; ++probes) {
      const Bucket& bucket = table.base[at];
      for (uint32_t matches = MatchTag(bucket, tag); matches != 0; matches &= matches - 1) {
        const uint32_t id = bucket.ids[std::countr_zero(matches)];
        if (visit(id)) return id;
      }
      if (bucket.overflow == 0) return kNone;
      at = at + 1 == table.buckets ? 0 : at + 1;
    }
    return kNone;
  }
  // Bit s: slot s has this tag (0: is free).
  static uint32_t MatchTag(const Bucket& bucket, uint8_t tag) {
#ifdef __SSE2__
    const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(&bucket));
    const __m128i equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<uint32_t>(_mm_movemask_epi8(equal)) & ((1u << kSlots) - 1);
#else
    uint32_t matches = 0;
    for (uint32_t s = 0; s < kSlots; ++s) matches |= uint32_t{bucket.tags[s] == tag} << s;
    return matches;
#endif
  }

  static Bucket* AllocateBuckets(uint32_t buckets);
  static void FreeBuckets(Bucket* base, uint32_t buckets);
  static uint32_t NextBuckets(uint32_t table, uint32_t buckets);
  static void Place(SubTable* table, uint64_t hash, uint32_t id);

  template <typename HashOf, typename PrefetchId>
  void Grow(uint32_t which, HashOf hash_of, PrefetchId prefetch) {
    SubTable& table = tables_[which];
    const SubTable old = table;
    table.buckets = NextBuckets(which, old.buckets);
    table.base = AllocateBuckets(table.buckets);
    // A ring of ids runs ahead of the re-hash, so that their entries are in the cache by then.
    uint32_t ring[kPrefetchIds];
    uint32_t read = 0, written = 0;
    const auto place_oldest = [&] {
      const uint32_t id = ring[read++ % kPrefetchIds];
      Place(&table, hash_of(id), id);
    };
    for (uint32_t b = 0; b < old.buckets; ++b) {
      for (uint32_t s = 0; s < kSlots; ++s) {
        if (old.base[b].tags[s] == 0) continue;
        if (written - read == kPrefetchIds) place_oldest();
        prefetch(old.base[b].ids[s]);
        ring[written++ % kPrefetchIds] = old.base[b].ids[s];
      }
    }
    while (read != written) place_oldest();
    FreeBuckets(old.base, old.buckets);
  }

  SubTable tables_[kTables];
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_INDEX_SLOT_TABLE_H_
