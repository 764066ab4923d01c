// Blocks of the host tier by the block before them, so that those that no lookup can reach any more
// are known: the block before was taken away by order, or left with its extent. They go first.
//
// A family is the blocks whose parent is not here: on a device, or gone. While it is gone they are
// dead, and so are those behind them, which become a family when these leave. When the parent comes
// again it adopts the family, as one more child: what was dead can be found again. Parents are
// claims of clients; links follow the index's (parent here, same namespace, depth - 1), so that
// whatever is claimed, they are a forest. Every call is O(1), or O(log families).
//
// 12 bytes a block. THREADS: externally synchronised (the cache's mutex).  BLOCKS: never.
#ifndef KVARVE_STORAGE_CACHE_FAMILIES_H_
#define KVARVE_STORAGE_CACHE_FAMILIES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "storage/base/chunked_array.h"
#include "storage/block/block_key.h"
#include "storage/index/index.h"

namespace kvarve {

class Families {
 public:
  enum class Parent { kOnDevice, kGone };

  // What names a block, whether it is here or not.
  struct Name {
    NamespaceIndex ns = 0;
    uint32_t depth = 0;
    BlockKey key;
    friend bool operator==(const Name&, const Name&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Name& name) {
      return H::combine(std::move(h), name.ns, name.depth, name.key.bytes);
    }
  };

  // A block has come. One without a parent needs no more than the first call, which is for all.
  void Add(EntryId id);
  void SetParent(EntryId id, EntryId parent);
  void SetParent(EntryId id, const Name& parent, uint32_t group, Parent where);
  // True: a family waited for the block `name`, and is a child of `id` from now on.
  bool Adopt(EntryId id, const Name& name);

  // The block leaves; what stood behind it waits for it now. `linked_parent`: Index::LinkedParent.
  // Returns who had adopted the block's family if that is empty now, else kNoEntry.
  EntryId Remove(EntryId id, EntryId linked_parent, const Name& name, uint32_t group, Parent where);
  // Likewise, of a namespace that is being emptied: what stands behind it leaves, too.
  EntryId Remove(EntryId id, EntryId linked_parent);
  // The block is on no device any more, and not here.
  void ParentGone(const Name& parent);

  // A dead block of the group, of the family that is so for longest; kNoEntry: none is known.
  EntryId Dead(uint32_t group) const;
  // It is no candidate while it is leased. Returned: an id that was set aside, or any other.
  void SetAside(EntryId id);
  void Return(EntryId id) {
    if (!aside_.empty()) TakeBack(id);
  }
  // The parent is about to come: until the call that takes it back its family is not dead.
  // False: there is none.
  bool Expect(const Name& parent, bool is_expected);

  bool HasAdopted(EntryId id) const { return adopted_.contains(id); }
  uint64_t MemoryBytes() const;

 private:
  static constexpr EntryId kNone = 0;  // others are an id + 1
  // Siblings are a ring: of a parent that is here, of a family, or of nobody (kNone: alone in it).
  struct Links {
    EntryId child = kNone, next = kNone, prev = kNone;
  };
  struct Family {
    Name parent;
    uint32_t group = 0;
    uint64_t number = 0;  // in the order in which families came to be
    bool is_gone = false;
    uint32_t expected = 0;
    EntryId adopter = kNone;
    EntryId ring = kNone;  // any of it
    uint32_t aside = 0;    // blocks of it in aside_
  };

  Links& At(EntryId one_more) { return links_[one_more - 1]; }
  Family* FamilyOf(const Name& parent, uint32_t group);
  // Joins a ring to the one that `ring` is of.
  void Splice(EntryId* ring, EntryId other);
  void SpliceToFamily(Family* family, EntryId other);
  EntryId TakeOut(EntryId id, EntryId linked_parent);
  EntryId EndIfEmpty(Family* family);
  void TakeBack(EntryId id);
  void Note(Family* family);  // whether it has dead blocks

  ChunkedArray<Links, 32768> links_;  // by id
  absl::flat_hash_map<Name, std::unique_ptr<Family>> families_;
  absl::flat_hash_map<EntryId, Family*> ring_of_;  // by the id that is Family::ring
  absl::flat_hash_map<EntryId, Family*> adopted_;  // by the id of the adopter
  absl::flat_hash_map<EntryId, Family*> aside_;
  std::map<std::pair<uint32_t, uint64_t>, Family*> dead_;  // by group and number
  uint64_t next_number_ = 0;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_FAMILIES_H_
