#include "storage/index/slot_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// Sub-tables of this many pages begin to grow out of step, so that they do not all grow at once.
constexpr uint32_t kStaggerPages = 16;

}  // namespace

SlotTable::SlotTable() {
  for (SubTable& table : tables_) {
    table.buckets = kBucketsPerPage;
    table.base = AllocateBuckets(table.buckets);
  }
}

SlotTable::~SlotTable() {
  for (SubTable& table : tables_) FreeBuckets(table.base, table.buckets);
}

// Whole pages from the kernel: a heap would keep the holes that growing tables leave behind.
SlotTable::Bucket* SlotTable::AllocateBuckets(uint32_t buckets) {
  void* memory = ::mmap(nullptr, buckets * sizeof(Bucket), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  KV_CHECK(memory != MAP_FAILED);
  return static_cast<Bucket*>(memory);
}

void SlotTable::FreeBuckets(Bucket* base, uint32_t buckets) {
  ::munmap(base, buckets * sizeof(Bucket));
}

uint32_t SlotTable::NextBuckets(uint32_t table, uint32_t buckets) {
  const uint32_t pages = buckets / kBucketsPerPage;
  uint32_t next = pages + (pages + 3) / 4;
  if (pages < kStaggerPages && next >= kStaggerPages) next = kStaggerPages + table % 4;
  return next * kBucketsPerPage;
}

void SlotTable::Place(SubTable* table, uint64_t hash, uint32_t id) {
  uint32_t at = BucketOf(hash, table->buckets);
  while (true) {
    Bucket& bucket = table->base[at];
    if (const uint32_t free = MatchTag(bucket, 0); free != 0) {
      const int slot = std::countr_zero(free);
      bucket.tags[slot] = TagOf(hash);
      bucket.ids[slot] = id;
      return;
    }
    if (bucket.overflow != kOverflowMax) ++bucket.overflow;
    at = at + 1 == table->buckets ? 0 : at + 1;
  }
}

void SlotTable::Erase(uint64_t hash, uint32_t id) {
  SubTable& table = tables_[TableOf(hash)];
  uint32_t at = BucketOf(hash, table.buckets);
  for (uint32_t probes = 0; probes < table.buckets; ++probes) {
    Bucket& bucket = table.base[at];
    for (uint32_t s = 0; s < kSlots; ++s) {
      if (bucket.tags[s] != 0 && bucket.ids[s] == id) {
        bucket.tags[s] = 0;
        --table.used;
        return;
      }
    }
    KV_CHECK(bucket.overflow > 0);
    if (bucket.overflow != kOverflowMax) --bucket.overflow;
    at = at + 1 == table.buckets ? 0 : at + 1;
  }
  KV_CHECK(false);
}

uint64_t SlotTable::MemoryBytes() const {
  uint64_t bytes = sizeof(*this);
  for (const SubTable& table : tables_) bytes += uint64_t{table.buckets} * sizeof(Bucket);
  return bytes;
}

SlotTable::Shape SlotTable::Measure() const {
  Shape shape;
  for (const SubTable& table : tables_) {
    shape.used += table.used;
    shape.slots += uint64_t{table.buckets} * kSlots;
    uint32_t run = 0;
    for (uint32_t b = 0; b < table.buckets; ++b) {
      const bool passed = table.base[b].overflow > 0;
      shape.overflowed_buckets += passed;
      run = passed ? run + 1 : 0;
      shape.longest_probe = std::max(shape.longest_probe, run);
    }
  }
  return shape;
}

}  // namespace kvarve
