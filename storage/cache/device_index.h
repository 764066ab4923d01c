// Which blocks lie on devices, and where: what the host tier's index is to its slots. Namespaces
// are known by id, whether a client has opened them since the start or not, and segments by a dense
// number, so that a place fits the index's 48 bits.
//
// THREADS: externally synchronised (the cache's mutex).  BLOCKS: never.
#ifndef KVARVE_STORAGE_CACHE_DEVICE_INDEX_H_
#define KVARVE_STORAGE_CACHE_DEVICE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/chunked_array.h"
#include "storage/base/units.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"
#include "storage/codec/codec.h"
#include "storage/index/index.h"
#include "storage/segment/segment_log.h"

namespace kvarve {

class DeviceIndex {
 public:
  using Ns = uint32_t;  // dense; stays the same over BeginClear
  struct Place {
    uint32_t device = 0;
    BlockLocation at;
    uint64_t checksum = 0;  // of the block itself
    friend bool operator==(const Place&, const Place&) = default;
  };
  // In what form it lies there. Raw: `bytes` and `checksum` are the block's own.
  struct Stored {
    uint64_t checksum = 0;
    uint32_t bytes = 0;
    Representation form = Representation::kRaw;
    uint64_t pages_bytes() const { return RoundUp(bytes, kUnit); }
  };
  struct Namespace {
    NamespaceId id;
    NamespaceIndex index = 0;  // the entries'; a new one after BeginClear
    uint32_t generation = 0;   // counts clears
    uint32_t block_bytes = 0;  // all of a namespace have as many. 0: none came yet
    uint64_t blocks = 0;
    uint64_t bytes = 0;   // stored, in whole pages
    uint32_t tenant = 0;  // into the index's; 0: not known yet
  };

  DeviceIndex(uint64_t seed, uint64_t max_entries);

  // Adds the namespace if it is new. None: too many.
  std::optional<Ns> NamespaceOf(const NamespaceId& id);
  std::optional<Ns> FindNamespace(const NamespaceId& id) const;
  Namespace& at(Ns ns) { return namespaces_[ns]; }
  const Namespace& at(Ns ns) const { return namespaces_[ns]; }
  Ns namespaces() const { return static_cast<Ns>(namespaces_.size()); }  // numbers below are in use
  const std::string& TenantOf(Ns ns) const { return tenants_[at(ns).tenant].name; }
  void SetTenant(Ns ns, const std::string& tenant);
  uint64_t BytesOfTenant(const std::string& tenant) const;  // stored, in whole pages

  // Where the record's block lies.
  static Place PlaceOf(const BlockRecord& record, uint32_t device, const BlockLocation& at);
  // False, and nothing changes: the block is known, of another size than the namespace's others, in
  // a representation that is not known, or there is no room.
  bool Insert(Ns ns, const BlockRecord& record, const Place& place);
  size_t FindPrefix(Ns ns, std::span<const BlockKey> keys, EntryId* ids) const {
    return index_.FindPrefix(namespaces_[ns].index, keys, ids);
  }
  EntryId Find(Ns ns, const BlockKey& key) const { return index_.Find(namespaces_[ns].index, key); }
  Place PlaceOf(EntryId id) const;
  Stored StoredOf(EntryId id) const;
  uint32_t DepthOf(EntryId id) const { return static_cast<uint32_t>(index_.Get(id).depth); }
  // Reads since the block was written there; saturates.
  uint8_t HitsOf(EntryId id) const { return hits_[id]; }
  void Hit(EntryId id);
  void Remove(EntryId id);
  // The block is elsewhere now; its hits begin anew. REQUIRES: present.
  void Move(Ns ns, const BlockRecord& record, const Place& from, const Place& to);

  // Nothing of the namespace is found when this returns; then ClearSlice over [0, ids()) in steps
  // frees what it had, and EndClear(index) ends it. None: there is no second index; cleared at
  // once.
  std::optional<NamespaceIndex> BeginClear(Ns ns);
  void ClearSlice(NamespaceIndex old, EntryId begin, EntryId end);
  void EndClear(NamespaceIndex old);

  // A segment that was reclaimed: its blocks are those of the table that still lie in it, or, for a
  // table that could not be read, found by a walk over everything. Its number is free then.
  // `gone`, if not null, is told of each.
  using Gone = std::function<void(Ns ns, const BlockKey& key, uint32_t depth)>;
  void RemoveSegment(uint32_t device, const SegmentTable& table, const Gone& gone);
  // Everything on the device whose id is in [begin, end).
  void RemoveDevice(uint32_t device, EntryId begin, EntryId end);

  EntryId ids() const { return index_.capacity_ids(); }
  uint64_t blocks() const { return index_.Stats().entries; }
  uint64_t bytes() const;  // stored, in whole pages
  uint64_t MemoryBytes() const {
    return index_.Stats().memory_bytes + hits_.capacity() + encoded_.MemoryBytes();
  }

 private:
  struct Segment {
    uint32_t device = 0;
    uint64_t id = 0;
  };
  struct Tenant {
    std::string name;
    uint64_t bytes = 0;
  };
  // So much more, or less, of the namespace.
  void Count(Ns ns, int64_t blocks, int64_t bytes);
  void SetStored(EntryId id, const Stored& stored);
  uint64_t Pack(uint32_t device, const BlockLocation& at);
  Ns OwnerOf(NamespaceIndex index) const { return owners_[index]; }

  Index index_;
  std::vector<uint8_t> hits_;  // by entry
  // By entry, of those that are not raw; others, and ids beyond its end, have no bytes here.
  ChunkedArray<Stored, 4096> encoded_;
  std::vector<Namespace> namespaces_;
  std::vector<Tenant> tenants_ = std::vector<Tenant>(1);  // the first: of whom nothing is known
  std::map<std::string, uint32_t> tenant_numbers_;
  std::map<NamespaceId, Ns> numbers_;
  std::vector<NamespaceIndex> free_indices_;
  std::vector<Ns> owners_;  // by NamespaceIndex; kNobody: free, or being cleared
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> segment_numbers_;
  std::vector<Segment> segments_;
  std::vector<uint32_t> free_segments_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_DEVICE_INDEX_H_
