#include "services/rpc/block_store.h"

#include <chrono>
#include <map>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr auto kCloseTime = std::chrono::seconds(5);

class CacheBlockStore final : public BlockStore {
 public:
  CacheBlockStore(Cache* cache, BlockStoreOptions options)
      : cache_(cache), options_(std::move(options)), reading_(std::make_shared<Reading>(cache)) {
    reading_->account.name = "gRPC reads";
    reading_->account.bytes_max = options_.read_bytes_max;
    reading_->tenant_bytes_max = options_.read_bytes_max / 9 * 8;
  }
  ~CacheBlockStore() override {
    reading_->Close();
    MutexLock lock(&mutex_);
    for (auto& [tenant, pins] : pins_) cache_->ReleaseAll(&pins.account);
  }

  uint64_t incarnation() const override { return cache_->incarnation(); }

  absl::StatusOr<NamespaceInfo> OpenNamespace(const std::string& tenant,
                                              const NamespaceDescriptor& descriptor,
                                              const NamespaceDigest& digest) override {
    KV_ASSIGN_OR_RETURN(const NamespaceDescriptor complete,
                        options_.complete(tenant, descriptor, digest));
    return cache_->OpenNamespace(complete);
  }
  absl::StatusOr<NamespaceInfo> FindNamespace(const NamespaceId& id) override {
    return cache_->FindNamespace(id);
  }
  std::vector<NamespaceInfo> Namespaces() const override { return cache_->Namespaces(); }

  size_t Lookup(NamespaceHandle ns, std::span<const BlockKey> keys, size_t* in_host,
                uint32_t recompute_us) override {
    return cache_->Lookup(ns, keys, in_host, recompute_us);
  }
  size_t Touch(NamespaceHandle ns, std::span<const BlockKey> keys, uint64_t request_id) override {
    return cache_->Touch(ns, keys, request_id);
  }

  bool WantsLoad(NamespaceHandle ns, std::span<const BlockKey> keys) override {
    return cache_->has_devices() && cache_->WantsLoad(ns, keys);
  }
  void Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
            std::function<void()> done) override {
    cache_->Load(ns, keys, io_class, [done = std::move(done)](size_t) {
      if (done) done();
    });
  }

  BlockLease Acquire(const NamespaceInfo& ns, std::span<const BlockKey> keys,
                     uint64_t request_id) override {
    BlockLease lease;
    LeaseAccount* const account = reading_->AccountOf(ns.tenant);
    const AcquireResult result = cache_->Acquire(ns.handle, keys, account, request_id);
    lease.over_cap = result.over_lease_cap;
    if (result.lease == 0) return lease;
    lease.hold = std::make_shared<ReadHold>(reading_, account, result.lease);
    lease.blocks.reserve(result.grants.size());
    for (const Grant& grant : result.grants) {
      lease.blocks.push_back({cache_->Data(grant.slot), grant.checksum});
    }
    return lease;
  }
  absl::StatusOr<std::unique_ptr<BlockPut>> BeginPut(const PutRequest& request) override {
    return cache_->BeginPut(request);
  }

  PinAnswer Pin(const NamespaceInfo& ns, std::span<const BlockKey> keys, int64_t ttl_nanos,
                uint64_t request_id) override {
    PinAnswer answer;
    if (TenantPins* const pins = RoomForPin(ns.tenant)) {
      const AcquireResult result =
          cache_->Acquire(ns.handle, keys, &pins->account, 0, std::max<int64_t>(ttl_nanos, 1));
      answer.pin = result.lease;
      answer.pinned_blocks = result.grants.size();
      if (result.lease != 0) {
        MutexLock lock(&mutex_);
        pins->ends.emplace(result.lease, SystemClock::Get()->NowNanos() + ttl_nanos);
      }
    }
    // Pins touch nothing by themselves.
    answer.hit_blocks = request_id != 0 ? cache_->Touch(ns.handle, keys, request_id)
                                        : cache_->Lookup(ns.handle, keys);
    // A block may have gone in between.
    answer.hit_blocks = std::max(answer.hit_blocks, answer.pinned_blocks);
    return answer;
  }
  bool Unpin(const std::string& tenant, uint64_t pin) override {
    TenantPins* pins = nullptr;
    {
      MutexLock lock(&mutex_);
      const auto found = pins_.find(tenant);
      if (found == pins_.end() || found->second.ends.erase(pin) == 0) return false;
      pins = &found->second;
    }
    return cache_->Release(pin, &pins->account);
  }

  size_t ReportCorrupt(NamespaceHandle ns, std::span<const BlockKey> keys) override {
    size_t removed = 0;
    for (const BlockKey& key : keys) removed += cache_->ReportCorrupt(ns, key) ? 1 : 0;
    return removed;
  }
  uint64_t Invalidate(NamespaceHandle ns) override { return cache_->Invalidate(ns); }
  uint64_t InvalidateKeys(NamespaceHandle ns, std::span<const BlockKey> keys) override {
    return cache_->InvalidateKeys(ns, keys);
  }
  CacheStats Stats() const override { return cache_->Stats(); }
  absl::StatusOr<uint64_t> Events(uint64_t from, size_t most,
                                  std::vector<CacheEvent>* events) const override {
    return cache_->Events(from, most, events);
  }
  uint64_t next_event() const override { return cache_->next_event(); }

 private:
  // Outlives the store as long as gRPC holds a slice; the cache need not.
  struct Reading {
    explicit Reading(Cache* of) : cache(of) {}
    // No hold uses the cache afterwards. Waits for those that gRPC is about to let go of.
    void Close() {
      {
        MutexLock lock(&mutex);
        const auto until = std::chrono::steady_clock::now() + kCloseTime;
        while (holds > 0 && changed.wait_until(mutex, until) != std::cv_status::timeout) {
        }
        closed = true;
      }
      MutexLock lock(&mutex);
      for (auto& [tenant, of] : of_tenant) cache->ReleaseAll(&of);
    }
    // Tenants are few and never forgotten.
    LeaseAccount* AccountOf(const std::string& tenant) {
      MutexLock lock(&mutex);
      const auto [found, is_new] = of_tenant.try_emplace(tenant);
      if (is_new) {
        found->second.name = account.name;
        found->second.bytes_max = tenant_bytes_max;
        found->second.parent = &account;
      }
      return &found->second;
    }
    Cache* const cache;
    LeaseAccount account;  // of all tenants
    uint64_t tenant_bytes_max = 0;
    Mutex mutex;
    std::map<std::string, LeaseAccount> of_tenant ABSL_GUARDED_BY(mutex);
    CondVar changed;
    size_t holds ABSL_GUARDED_BY(mutex) = 0;
    bool closed ABSL_GUARDED_BY(mutex) = false;
  };
  struct ReadHold {
    ReadHold(std::shared_ptr<Reading> of, LeaseAccount* by, LeaseId id)
        : reading(std::move(of)), account(by), lease(id) {
      MutexLock lock(&reading->mutex);
      ++reading->holds;
    }
    ~ReadHold() {
      {
        MutexLock lock(&reading->mutex);
        if (reading->closed) return;
      }
      reading->cache->Release(lease, account);
      MutexLock lock(&reading->mutex);
      --reading->holds;
      reading->changed.notify_all();
    }
    ReadHold(const ReadHold&) = delete;
    ReadHold& operator=(const ReadHold&) = delete;
    const std::shared_ptr<Reading> reading;
    LeaseAccount* const account;
    const LeaseId lease;
  };
  struct TenantPins {
    LeaseAccount account;
    std::map<LeaseId, int64_t> ends;  // when the cache ends them by itself
  };

  // Null: the tenant has too many pins. Tenants are few and never forgotten.
  TenantPins* RoomForPin(const std::string& tenant) {
    MutexLock lock(&mutex_);
    TenantPins& pins = pins_[tenant];
    pins.account.name = "gRPC pins";
    pins.account.bytes_max = options_.pin_bytes_max;
    if (pins.ends.size() >= kMaxPinsPerTenant) {
      const int64_t now = SystemClock::Get()->NowNanos();
      std::erase_if(pins.ends, [&](const auto& pin) { return pin.second < now; });
    }
    return pins.ends.size() < kMaxPinsPerTenant ? &pins : nullptr;
  }

  Cache* const cache_;
  const BlockStoreOptions options_;
  const std::shared_ptr<Reading> reading_;
  Mutex mutex_;
  std::map<std::string, TenantPins> pins_ ABSL_GUARDED_BY(mutex_);  // by tenant
};

}  // namespace

std::unique_ptr<BlockStore> BlockStoreOf(Cache* cache, BlockStoreOptions options) {
  return std::make_unique<CacheBlockStore>(cache, std::move(options));
}

}  // namespace kvarve
