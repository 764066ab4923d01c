// The simplest owner of a log: a map under a mutex. Tests and benches only.
#ifndef KVARVE_STORAGE_SEGMENT_MAP_OWNER_TESTING_H_
#define KVARVE_STORAGE_SEGMENT_MAP_OWNER_TESTING_H_

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/block/checksum.h"
#include "storage/io/aligned_buffer.h"
#include "storage/segment/erased_seqs.h"
#include "storage/segment/segment_log.h"
#include "storage/testing/block_generator.h"

namespace kvarve::testing {

class MapOwner final : public LogOwner {
 public:
  struct Known {
    BlockRecord record;
    BlockLocation at;
  };
  using Name = std::pair<NamespaceId, std::array<uint8_t, 32>>;

  void OnRecovered(const SegmentTable& table) override {
    MutexLock lock(&mutex_);
    const std::vector<bool> living = erased_.Living(table);
    for (size_t i = 0; i < living.size(); ++i) {
      const BlockRecord& record = table.records[i];
      if (!living[i]) continue;
      known_.try_emplace({table.namespaces[record.ns_ref], record.key.bytes},
                         Known{record, {table.facts.segment_id, record.off4k}});
    }
  }
  void OnWritten(const AppendBlock& block, const BlockLocation& at) override {
    MutexLock lock(&mutex_);
    known_[{block.ns, block.record.key.bytes}] = {block.record, at};
  }
  void OnNotWritten(const AppendBlock& block, const absl::Status& why) override {
    MutexLock lock(&mutex_);
    refusals_.push_back(why.code());
  }
  void ChooseSurvivors(const SegmentTable& table, Keep what, std::vector<bool>* keep) override {
    MutexLock lock(&mutex_);
    for (size_t i = 0; i < table.records.size(); ++i) {
      const BlockRecord& record = table.records[i];
      const auto it = known_.find({table.namespaces[record.ns_ref], record.key.bytes});
      (*keep)[i] = it != known_.end() &&
                   it->second.at == BlockLocation{table.facts.segment_id, record.off4k} &&
                   (what == Keep::kAll || (hot && hot(record)));
    }
  }
  void OnMoved(const NamespaceId& ns, const BlockRecord& record, const BlockLocation& from,
               const BlockLocation& to) override {
    MutexLock lock(&mutex_);
    const auto it = known_.find({ns, record.key.bytes});
    if (it != known_.end() && it->second.at == from) it->second = {record, to};
  }
  void OnReclaimed(const SegmentTable& table) override {
    MutexLock lock(&mutex_);
    std::erase_if(known_, [&](const auto& entry) {
      return entry.second.at.segment_id == table.facts.segment_id;
    });
  }

  std::optional<Known> Find(const NamespaceId& ns, const BlockKey& key) const {
    MutexLock lock(&mutex_);
    const auto it = known_.find({ns, key.bytes});
    return it == known_.end() ? std::nullopt : std::optional(it->second);
  }
  size_t size() const {
    MutexLock lock(&mutex_);
    return known_.size();
  }
  std::vector<absl::StatusCode> refusals() const {
    MutexLock lock(&mutex_);
    return refusals_;
  }

  std::function<bool(const BlockRecord&)> hot;  // what survives; null: nothing

 private:
  mutable Mutex mutex_;
  std::map<Name, Known> known_ ABSL_GUARDED_BY(mutex_);
  ErasedSeqs erased_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::StatusCode> refusals_ ABSL_GUARDED_BY(mutex_);
};

// A chain's blocks with the bytes of their keys, and the memory that they lie in.
struct TestChain {
  AlignedBuffer memory;
  std::vector<AppendBlock> blocks;

  TestChain(const NamespaceId& ns, uint64_t first, size_t count, uint32_t bytes)
      : memory(count * RoundUp(bytes, kUnit)) {
    for (size_t i = 0; i < count; ++i) {
      std::byte* data = memory.data() + i * RoundUp(bytes, kUnit);
      AppendBlock& block = blocks.emplace_back();
      block.ns = ns;
      block.record.key = KeyOf(first + i);
      block.record.key_len = 32;
      block.record.stored_len = block.record.raw_len = bytes;
      block.record.depth_flags = static_cast<uint32_t>(i);
      if (i > 0) block.record.parent_hash = ParentHash(KeyOf(first + i - 1));
      FillBlock(ns.bytes[0], block.record.key, {data, bytes});
      block.record.c64_raw = block.record.c64_stored =
          BlockChecksum(ChecksumSeed(ns, block.record.key, bytes), data, bytes);
      block.data = data;
    }
  }
};

inline NamespaceId TestNs(uint8_t n) {
  NamespaceId ns;
  ns.bytes[0] = n;
  return ns;
}

inline BlockRead ReadOf(const NamespaceId& ns, const MapOwner::Known& known, std::byte* into) {
  return {known.at, ns, known.record.key, known.record.stored_len, known.record.c64_stored, into};
}

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_SEGMENT_MAP_OWNER_TESTING_H_
