#include "storage/index/index.h"

#include <algorithm>

#include "storage/base/chunked_array.h"
#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "storage/index/key_hash.h"
#include "storage/index/slot_table.h"

namespace kvarve {
namespace {

constexpr size_t kBatchKeys = 32;  // of FindPrefix; a miss looks at less than these in vain
constexpr EntryId kWalkAhead = 8;
constexpr uint64_t kChildrenMax = (1ull << 28) - 1;
constexpr uint16_t kGenerationMax = 0xffff;

}  // namespace

// Cells: a free one has used = 0 and its successor in the free list in `parent`; a retired one has
// used = 0 and is in no list. Links: entry.parent is valid while the parent's generation equals
// parent_generation; then the entry is one of the parent's `children`.
struct Index::Rep {
  Rep(uint64_t seed, uint64_t max_entries) : hash(seed), max_entries(max_entries) {}

  bool IsKey(EntryId id, NamespaceIndex ns, const BlockKey& key) const {
    const IndexEntry& entry = slab[id];
    return entry.key == key && entry.ns == ns && entry.live;
  }
  EntryId Find(uint64_t hashed, NamespaceIndex ns, const BlockKey& key) const {
    return table.Find(hashed, [&](EntryId id) { return IsKey(id, ns, key); });
  }
  // Blocks that were put one after the other mostly lie in cells one after the other. How many of
  // the leading keys lie so behind `before`: found by a comparison each, without the table.
  size_t Walk(NamespaceIndex ns, std::span<const BlockKey> keys, EntryId before,
              EntryId* out) const {
    size_t i = 0;
    for (EntryId id = before + 1; i < keys.size() && id < slab.size(); ++i, ++id) {
      if (!IsKey(id, ns, keys[i])) break;
      if (id + kWalkAhead < slab.size()) PrefetchForRead(&slab[id + kWalkAhead]);
      if (out != nullptr) out[i] = id;
    }
    return i;
  }

  // Three passes over the batch, so that its cache misses overlap: buckets are fetched, then the
  // entries that their tags point to, then keys are compared, first with the entry whose tag came
  // first, which is nearly always the one. (Measured against one pass with the stages a fixed
  // distance apart: 0.21 and 0.33 ms against 0.26 and 0.50 for 8,192 keys of 1 M and 8 M.)
  size_t FindBatch(NamespaceIndex ns, std::span<const BlockKey> keys, EntryId* ids) const {
    uint64_t hashes[kBatchKeys];
    for (size_t i = 0; i < keys.size(); ++i) {
      hashes[i] = hash(ns, keys[i]);
      table.Prefetch(hashes[i]);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      ids[i] = kNoEntry;
      table.PrefetchIds(hashes[i], [this, &first = ids[i]](EntryId id) {
        if (first == kNoEntry) first = id;
        PrefetchForRead(&slab[id]);
      });
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (ids[i] != kNoEntry && !IsKey(ids[i], ns, keys[i])) ids[i] = Find(hashes[i], ns, keys[i]);
      if (ids[i] == kNoEntry) return i;
    }
    return keys.size();
  }

  uint64_t HashOf(EntryId id) const {
    const IndexEntry& entry = slab[id];
    return hash(static_cast<NamespaceIndex>(entry.ns), entry.key);
  }
  // The parent's entry if the link still holds, else null.
  IndexEntry* LinkedParent(const IndexEntry& entry) {
    if (entry.parent == kNoEntry) return nullptr;
    IndexEntry& parent = slab[entry.parent];
    return parent.generation == entry.parent_generation ? &parent : nullptr;
  }
  EntryId TakeCell() {
    if (free_head != kNoEntry) {
      const EntryId id = free_head;
      free_head = slab[id].parent;
      return id;
    }
    if (slab.size() >= kNoEntry) return kNoEntry;
    slab.PushBack(IndexEntry{});
    return static_cast<EntryId>(slab.size() - 1);
  }
  void FreeCell(EntryId id) {
    IndexEntry& entry = slab[id];
    entry.used = 0;
    if (entry.generation == kGenerationMax) {
      ++retired;
      return;
    }
    entry.parent = free_head;
    free_head = id;
  }

  const KeyHash hash;
  const uint64_t max_entries;
  SlotTable table;
  Slab slab;
  EntryId free_head = kNoEntry;
  uint64_t live = 0;
  uint64_t doomed = 0;
  uint64_t retired = 0;
};

Index::Index(uint64_t seed, uint64_t max_entries)
    : rep_(std::make_unique<Rep>(seed, max_entries)), slab_(&rep_->slab) {}
Index::~Index() = default;

size_t Index::FindPrefix(NamespaceIndex ns, std::span<const BlockKey> keys, EntryId* out,
                         EntryId before) const {
  const Rep& rep = *rep_;
  EntryId ids[kBatchKeys];
  size_t at = 0;
  while (at < keys.size()) {
    if (before != kNoEntry) {
      at += rep.Walk(ns, keys.subspan(at), before, out == nullptr ? nullptr : out + at);
      if (at == keys.size()) break;
    }
    const size_t n = std::min(kBatchKeys, keys.size() - at);
    const size_t found = rep.FindBatch(ns, keys.subspan(at, n), ids);
    if (out != nullptr) std::copy_n(ids, found, out + at);
    at += found;
    if (found < n) break;
    before = WalkHint(std::span(ids).first(n));
  }
  return at;
}

EntryId Index::Find(NamespaceIndex ns, const BlockKey& key) const {
  return rep_->Find(rep_->hash(ns, key), ns, key);
}

absl::StatusOr<EntryId> Index::Insert(NamespaceIndex ns, const BlockKey& key,
                                      const BlockKey* parent, uint32_t depth, uint64_t slot,
                                      uint64_t checksum) {
  Rep& rep = *rep_;
  KV_CHECK(slot < (1ull << 48));
  if (ns >= kMaxNamespaces)
    return absl::ResourceExhaustedError("too many namespaces for the index");
  if (depth > kMaxDepth) return absl::ResourceExhaustedError("chain is too deep for the index");
  const uint64_t hashed = rep.hash(ns, key);
  if (rep.Find(hashed, ns, key) != kNoEntry) return absl::AlreadyExistsError("key is live");
  if (rep.live + rep.doomed >= rep.max_entries)
    return absl::ResourceExhaustedError("index is full");
  const EntryId parent_id = parent == nullptr ? kNoEntry : Find(ns, *parent);
  const EntryId id = rep.TakeCell();
  if (id == kNoEntry) return absl::ResourceExhaustedError("index is out of ids");

  IndexEntry& entry = rep.slab[id];
  entry.key = key;
  entry.slot = slot;
  entry.leases = 0;
  entry.checksum = checksum;
  entry.depth = depth;
  entry.children = 0;
  entry.ns = ns;
  entry.live = 1;
  entry.used = 1;
  entry.parent = kNoEntry;
  entry.parent_generation = 0;
  if (parent_id != kNoEntry && uint64_t{rep.slab[parent_id].depth} + 1 == depth) {
    IndexEntry& linked = rep.slab[parent_id];
    entry.parent = parent_id;
    entry.parent_generation = linked.generation;
    if (linked.children != kChildrenMax) linked.children = linked.children + 1;
  }
  rep.table.Insert(
      hashed, id, [&rep](EntryId other) { return rep.HashOf(other); },
      [&rep](EntryId other) { PrefetchForRead(&rep.slab[other]); });
  ++rep.live;
  return id;
}

EntryId Index::LinkedParent(EntryId id) const {
  const IndexEntry& entry = Get(id);
  const IndexEntry* const parent = rep_->LinkedParent(entry);
  return parent != nullptr && parent->used && parent->live ? entry.parent : kNoEntry;
}

EntryId Index::Remove(EntryId id) {
  Rep& rep = *rep_;
  IndexEntry& entry = rep.slab[id];
  KV_CHECK(entry.used && entry.live);
  rep.table.Erase(rep.HashOf(id), id);
  entry.live = 0;
  --rep.live;

  EntryId childless_parent = kNoEntry;
  if (IndexEntry* parent = rep.LinkedParent(entry);
      parent != nullptr && parent->children != kChildrenMax) {
    parent->children = parent->children - 1;
    if (parent->children == 0) childless_parent = entry.parent;
  }
  entry.parent = kNoEntry;
  if (entry.children != 0) {
    entry.children = 0;
    ++entry.generation;
  }
  if (entry.leases == 0) {
    rep.FreeCell(id);
  } else {
    ++rep.doomed;
  }
  return childless_parent;
}

void Index::AddChild(EntryId id) {
  IndexEntry& entry = rep_->slab[id];
  KV_CHECK(entry.used && entry.live);
  if (entry.children != kChildrenMax) entry.children = entry.children + 1;
}

bool Index::DropChild(EntryId id) {
  IndexEntry& entry = rep_->slab[id];
  KV_CHECK(entry.used && entry.live && entry.children > 0);
  if (entry.children == kChildrenMax) return false;
  entry.children = entry.children - 1;
  return entry.children == 0;
}

void Index::Erase(EntryId id) {
  const IndexEntry& entry = rep_->slab[id];
  KV_CHECK(entry.used && !entry.live && entry.leases == 0);
  --rep_->doomed;
  rep_->FreeCell(id);
}

EntryId Index::capacity_ids() const { return static_cast<EntryId>(rep_->slab.size()); }

IndexStats Index::Stats() const {
  IndexStats stats;
  stats.entries = rep_->live;
  stats.doomed = rep_->doomed;
  stats.retired = rep_->retired;
  stats.memory_bytes = sizeof(Rep) + rep_->table.MemoryBytes() + rep_->slab.MemoryBytes();
  return stats;
}

}  // namespace kvarve
