#include "services/rpc/block_store.h"

#include <map>

#include "storage/base/mutex.h"

namespace kvarve {
namespace {

class CacheBlockStore final : public BlockStore {
 public:
  explicit CacheBlockStore(Cache* cache) : cache_(cache) {}

  uint64_t incarnation() const override { return cache_->incarnation(); }

  // Namespaces are never closed, and their handles stay: what was found once needs no second walk.
  absl::StatusOr<NamespaceInfo> FindNamespace(const NamespaceId& id) override {
    MutexLock lock(&mutex_);
    auto found = known_.find(id);
    if (found == known_.end()) {
      for (NamespaceInfo& info : cache_->Namespaces()) known_.emplace(info.id, std::move(info));
      found = known_.find(id);
    }
    if (found == known_.end())
      return absl::NotFoundError("no client has opened this namespace here");
    return found->second;
  }
  std::vector<NamespaceInfo> Namespaces() const override { return cache_->Namespaces(); }

  size_t Lookup(NamespaceHandle ns, std::span<const BlockKey> keys) override {
    return cache_->Lookup(ns, keys);
  }
  uint64_t Invalidate(NamespaceHandle ns) override { return cache_->Invalidate(ns); }
  uint64_t InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys) override {
    return cache_->InvalidateKeys(ns, keys);
  }
  CacheStats Stats() const override { return cache_->Stats(); }

 private:
  Cache* const cache_;
  Mutex mutex_;
  std::map<NamespaceId, NamespaceInfo> known_ ABSL_GUARDED_BY(mutex_);  // at most kMaxNamespaces
};

}  // namespace

std::unique_ptr<BlockStore> BlockStoreOf(Cache* cache) {
  return std::make_unique<CacheBlockStore>(cache);
}

}  // namespace kvarve
