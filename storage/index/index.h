// The index: block key -> where the block is, its checksum, its place in its chain. Entries live in
// a chunked slab (stable ids), found through an open-addressing table of tagged slots that grows in
// small steps. At most 96 bytes an entry all in, at any number of entries.
//
// A parent is a claim: it is linked only if it exists now, in the same namespace, at depth - 1, and
// never re-linked later. Links carry a generation, so that an id used again is not mistaken for the
// old block.
//
// THREADS: externally synchronised (the cache's mutex).  BLOCKS: never.
#ifndef KVARVE_STORAGE_INDEX_INDEX_H_
#define KVARVE_STORAGE_INDEX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/chunked_array.h"
#include "storage/base/status_macros.h"
#include "storage/block/block_key.h"

namespace kvarve {

using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = 0xffffffffu;

using NamespaceIndex = uint16_t;  // dense, local to this daemon
inline constexpr uint32_t kMaxNamespaces = 4096;
inline constexpr uint32_t kMaxDepth = (1u << 20) - 1;

// 64 bytes: one cache line. Bit fields are read and written by the index; others may read them.
struct alignas(64) IndexEntry {
  BlockKey key;
  uint64_t slot : 48;    // SlotRef::packed
  uint64_t leases : 16;  // holds on the slot; Lease/Unlease below
  uint64_t checksum;
  uint64_t depth : 20;     // 0 is the first block of a prompt
  uint64_t children : 28;  // linked entries whose parent this is; saturates (then never a leaf)
  uint64_t ns : 12;
  uint64_t live : 1;  // found by lookups; 0 = removed but still leased (doomed), or free
  uint64_t used : 1;  // slab cell is taken
  uint64_t spare : 2;
  EntryId parent;  // kNoEntry: a root, or an unknown parent
  uint16_t parent_generation;
  // Counts the removals that left children behind, which alone can leave links to this id. A cell
  // whose generations are used up is never used again.
  uint16_t generation;
};
static_assert(sizeof(IndexEntry) == 64);

// What FindPrefix may be told of the keys before: the last of `found` where it lies right behind
// the one before it, so that the next may go on there; else kNoEntry.
inline EntryId WalkHint(std::span<const EntryId> found) {
  const size_t n = found.size();
  return n >= 2 && found[n - 1] == found[n - 2] + 1 ? found[n - 1] : kNoEntry;
}

struct IndexStats {
  uint64_t entries = 0;       // live
  uint64_t doomed = 0;        // removed, still leased
  uint64_t retired = 0;       // cells out of generations
  uint64_t memory_bytes = 0;  // slab and table as mapped
};

class Index {
 public:
  // `seed` is secret and mixed into the table's hash. `max_entries` bounds memory: cells taken by
  // live and doomed entries. Memory grows with the most entries there ever were and is kept.
  Index(uint64_t seed, uint64_t max_entries);
  ~Index();

  // Longest prefix: how many leading keys are live in `ns`. Writes their ids to `out` when not null
  // (room for keys.size()). Prefetches in batches. `before`, a hint (WalkHint): where the key
  // before them was found.
  size_t FindPrefix(NamespaceIndex ns, std::span<const BlockKey> keys, EntryId* out,
                    EntryId before = kNoEntry) const;
  EntryId Find(NamespaceIndex ns, const BlockKey& key) const;

  // Adds a live entry with no leases. `parent`: key claimed as parent, null for a root; linked by
  // the rule above. AlreadyExists: key is live. ResourceExhausted: max_entries, or namespace or
  // depth out of range. REQUIRES: slot < 2^48.
  absl::StatusOr<EntryId> Insert(NamespaceIndex ns, const BlockKey& key, const BlockKey* parent,
                                 uint32_t depth, uint64_t slot, uint64_t checksum);

  const IndexEntry& Get(EntryId id) const { return (*slab_)[id]; }

  // Takes the entry out of lookups and unlinks it from its parent. If it has leases it stays as
  // doomed (its id and slot valid) until the last one goes. Its children keep their place as
  // orphans; their link is stale by generation. Returns the parent's id if that parent lost its
  // last child by this, else kNoEntry. REQUIRES: live.
  EntryId Remove(EntryId id);
  // One child more that is not linked by this index: one that the caller counts, until DropChild,
  // which says whether it was the last. REQUIRES: live.
  void AddChild(EntryId id);
  bool DropChild(EntryId id);
  // Frees a doomed entry's cell. REQUIRES: not live, no leases.
  void Erase(EntryId id);

  // False at 65,535 leases. REQUIRES: live.
  [[nodiscard]] bool Lease(EntryId id) {
    IndexEntry& entry = (*slab_)[id];
    KV_CHECK(entry.used && entry.live);
    if (entry.leases == kMaxLeases) return false;
    entry.leases = entry.leases + 1;
    return true;
  }
  // Returns the leases left. REQUIRES: leases > 0.
  uint32_t Unlease(EntryId id) {
    IndexEntry& entry = (*slab_)[id];
    KV_CHECK(entry.used && entry.leases > 0);
    entry.leases = entry.leases - 1;
    return static_cast<uint32_t>(entry.leases);
  }

  // The parent that the entry was linked to, if that is live still; else kNoEntry.
  EntryId LinkedParent(EntryId id) const;
  bool IsLeaf(EntryId id) const { return Get(id).children == 0; }

  // Calls fn(EntryId) for every live entry of `ns`, or of all namespaces with nullopt, whose id is
  // in [begin, end), in order of ids. fn may remove the entry that it is called with, and change
  // the index in no other way. To scan in slices, pass consecutive ranges up to capacity_ids(): an
  // entry that lives all the while is seen once.
  template <typename Fn>
  void ForEachRange(EntryId begin, EntryId end, std::optional<NamespaceIndex> ns, Fn fn) const {
    if (end > capacity_ids()) end = capacity_ids();
    for (EntryId id = begin; id < end; ++id) {
      const IndexEntry& entry = Get(id);
      if (entry.used && entry.live && (!ns || entry.ns == *ns)) fn(id);
    }
  }
  template <typename Fn>
  void ForEach(std::optional<NamespaceIndex> ns, Fn fn) const {
    ForEachRange(0, capacity_ids(), ns, fn);
  }
  EntryId capacity_ids() const;  // ids below this are addressable

  IndexStats Stats() const;

 private:
  static constexpr uint64_t kMaxLeases = 0xffff;
  static constexpr size_t kEntriesPerChunk = 32768;  // 2 MiB
  using Slab = ChunkedArray<IndexEntry, kEntriesPerChunk, /*kHuge=*/true>;

  struct Rep;
  std::unique_ptr<Rep> rep_;
  Slab* slab_;  // rep_'s, for the calls that are made for every block of a request
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_INDEX_INDEX_H_
