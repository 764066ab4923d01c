// A naive store behind the seam of the gRPC services. THREADS: any.
#ifndef KVARVE_SERVICES_RPC_FAKE_STORE_TESTING_H_
#define KVARVE_SERVICES_RPC_FAKE_STORE_TESTING_H_

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "services/rpc/block_store.h"
#include "storage/base/mutex.h"

namespace kvarve {

// Two namespaces (keys of 32 and of 16 bytes) as sets.
class FakeStore : public BlockStore {
 public:
  FakeStore() {
    for (uint32_t i = 0; i < 2; ++i) {
      NamespaceInfo info;
      info.handle = i;
      info.id.bytes.fill(static_cast<uint8_t>(0x10 + i));
      info.block_bytes = 4096 * (i + 1);
      info.key_bytes = i == 0 ? 32 : 16;
      info.tenant = "team";
      info.model = "model-" + std::to_string(i);
      namespaces_.push_back(info);
    }
  }
  uint64_t incarnation() const override { return 0x1122334455667788; }
  absl::StatusOr<NamespaceInfo> FindNamespace(const NamespaceId& id) override {
    for (const NamespaceInfo& info : namespaces_) {
      if (info.id == id) return info;
    }
    return absl::NotFoundError("unknown");
  }
  std::vector<NamespaceInfo> Namespaces() const override { return namespaces_; }
  absl::StatusOr<NamespaceInfo> OpenNamespace(const std::string&, const NamespaceDescriptor&,
                                              const NamespaceDigest&) override {
    return absl::UnimplementedError("not asked here");
  }
  size_t Touch(NamespaceHandle ns, std::span<const BlockKey> keys, uint64_t) override {
    return Lookup(ns, keys, nullptr, 0);
  }
  BlockLease Acquire(const NamespaceInfo&, std::span<const BlockKey>, uint64_t) override {
    return {};
  }
  absl::StatusOr<std::unique_ptr<BlockPut>> BeginPut(const PutRequest&) override {
    return absl::UnimplementedError("not asked here");
  }
  PinAnswer Pin(const NamespaceInfo&, std::span<const BlockKey>, int64_t, uint64_t) override {
    return {};
  }
  bool Unpin(const std::string&, uint64_t) override { return false; }
  size_t ReportCorrupt(NamespaceHandle, std::span<const BlockKey>) override { return 0; }
  absl::StatusOr<uint64_t> Events(uint64_t from, size_t, std::vector<CacheEvent>*) const override {
    return from;
  }
  uint64_t next_event() const override { return 1; }
  size_t Lookup(NamespaceHandle ns, std::span<const BlockKey> keys, size_t* in_host,
                uint32_t recompute_us) override {
    size_t hits = 0;
    MutexLock lock(&mutex_);
    while (hits < keys.size() && blocks_[ns].contains(Text(keys[hits]))) ++hits;
    if (in_host != nullptr) *in_host = hits;
    return hits;
  }
  bool WantsLoad(NamespaceHandle ns, std::span<const BlockKey> keys) override { return false; }
  void Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
            std::function<void()> done) override {
    if (done) done();
  }
  uint64_t Invalidate(NamespaceHandle ns) override {
    MutexLock lock(&mutex_);
    const uint64_t removed = blocks_[ns].size();
    blocks_[ns].clear();
    return removed;
  }
  uint64_t InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys) override {
    uint64_t removed = 0;
    MutexLock lock(&mutex_);
    for (const BlockKey& key : keys) removed += blocks_[ns].erase(Text(key));
    return removed;
  }
  CacheStats Stats() const override {
    CacheStats stats;
    stats.arena.capacity_bytes = 1000;
    stats.arena.used_bytes = 600;
    MutexLock lock(&mutex_);
    stats.index.entries = blocks_[0].size() + blocks_[1].size();
    PoolStats pool;
    pool.tenant = "others";
    pool.hit_blocks = 70;
    stats.pools.push_back(pool);
    pool.tenant = "team";
    pool.used_bytes = 500;
    pool.hit_blocks = 7;
    pool.stored_blocks = 11;
    stats.pools.push_back(pool);
    return stats;
  }

  static std::string Text(const BlockKey& key) {
    return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()};
  }
  void Add(NamespaceHandle ns, std::string key) {
    key.resize(32);
    MutexLock lock(&mutex_);
    blocks_[ns].insert(key);
  }

 private:
  std::vector<NamespaceInfo> namespaces_;
  mutable Mutex mutex_;
  std::set<std::string> blocks_[2] ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_FAKE_STORE_TESTING_H_
