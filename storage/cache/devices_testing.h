// A cache over devices in files, for tests: puts that are tried again when they are shed, loads
// that are waited for, and every byte compared. THREADS: as Cache.
#ifndef KVARVE_STORAGE_CACHE_DEVICES_TESTING_H_
#define KVARVE_STORAGE_CACHE_DEVICES_TESTING_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "storage/cache/cache.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/faulty_device.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve::testing {

inline constexpr uint64_t kMiBytes = 1ull << 20;
inline constexpr uint64_t kTestBlock = 256 << 10;
inline constexpr int64_t kLongNanos = 60'000'000'000;

struct NodeOptions {
  uint64_t host_bytes = 64 * kMiBytes;
  uint64_t device_bytes = 256 * kMiBytes;
  uint64_t segment_bytes = 16 * kMiBytes;
  uint64_t dirty_bytes = 0;
  double drive_writes_per_day = 0;
  int devices = 1;
  TenantQuotas quotas;
  WantedBackend backend = WantedBackend::kAuto;
  PlantedTierBug bug = PlantedTierBug::kNone;
  bool prefer_recompute = true;
  Representation rung = Representation::kRaw;
  AdmissionStep admission = AdmissionStep::kAll;
};

// A block's bytes, a function of its namespace and key. Of every other key they are as even as real
// KV in their elements' highest bytes, so that they lie on a device in another form where there is
// a rung.
inline std::vector<std::byte> MakeMixedBlock(uint64_t ns, const BlockKey& key, size_t bytes) {
  std::vector<std::byte> block = MakeBlock(ns, key, bytes);
  if (std::to_integer<int>(std::byte{key.bytes[0]}) % 2 == 0) return block;
  for (size_t i = 1; i < bytes; i += 2) block[i] = (block[i] & std::byte{0x83}) | std::byte{0x3c};
  return block;
}

// The node's files live as long as it; Start and Crash are its processes.
class TestNode {
 public:
  explicit TestNode(const NodeOptions& options)
      : options_(options), catalogue_(NewMemoryCatalogue()) {
    static std::atomic<int> count{0};
    folder_ = ::testing::TempDir() + "kvarve_node_" + std::to_string(::getpid()) + "_" +
              std::to_string(count++);
    std::filesystem::create_directories(folder_);
    for (int i = 0; i < options_.devices; ++i) {
      FormatOptions format;
      format.bytes = options_.device_bytes;
      format.segment_bytes = options_.segment_bytes;
      format.overwrite = false;
      EXPECT_TRUE(FormatDevice(PathOf(i), format).ok());
      faults_.push_back(std::make_shared<DeviceFaults>());
    }
    Start();
  }
  ~TestNode() {
    CheckInvariants();
    cache_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string PathOf(int device) const { return folder_ + "/nvme" + std::to_string(device); }
  void Start() {
    CacheOptions options;
    options.arena.capacity_bytes = options_.host_bytes;
    options.arena.chunk_bytes = 32 * kMiBytes;
    options.arena.huge_pages = false;
    options.quotas = options_.quotas;
    options.devices.catalogue = catalogue_.get();
    options.devices.dirty_bytes_max = options_.dirty_bytes;
    options.devices.bug = options_.bug;
    options.devices.rung = options_.rung;
    options.devices.admission = options_.admission;
    options.prefer_recompute = options_.prefer_recompute;
    options.devices.drive_writes_per_day = options_.drive_writes_per_day;
    auto cache = Cache::Create(options);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    for (int i = 0; i < options_.devices; ++i) AddDevice(i);
  }
  void AddDevice(int i) {
    DeviceOptions device;
    device.backend = options_.backend;
    auto opened = OpenDevice(PathOf(i), device);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const absl::Status added =
        cache_->AddDevice(std::make_unique<FaultyDevice>(*std::move(opened), faults_[i]));
    ASSERT_TRUE(added.ok()) << added;
  }
  // The process ends without a word; with Crash the next one begins.
  void Stop() {
    CheckInvariants();
    cache_.reset();
  }
  void Crash(bool loses_catalogue = false) {
    Stop();
    if (loses_catalogue) catalogue_ = NewMemoryCatalogue();
    Start();
  }
  // In later lives.
  void SetRung(Representation rung) { options_.rung = rung; }
  void StopPolitely() {
    cache_->FlushDevices(kLongNanos);
    Crash();
  }

  Cache& cache() { return *cache_; }
  DeviceFaults& faults(int device = 0) { return *faults_[device]; }
  DeviceTierStats Stats() { return *cache_->Stats().devices; }
  bool WaitDevices() { return cache_->WaitDevices(kLongNanos); }

  NamespaceInfo Open(const std::string& model = "model", const std::string& tenant = "default") {
    NamespaceDescriptor descriptor = OpaqueNamespace(model, kTestBlock);
    descriptor.element_type = ElementType::kBf16;
    descriptor.layer_count = descriptor.layer_total = 4;
    descriptor.kv_head_count = descriptor.kv_head_total = 2;
    descriptor.block_tokens = 64;
    descriptor.k_dim = descriptor.v_dim = 128;
    descriptor.tenant = tenant;
    auto info = cache_->OpenNamespace(descriptor);
    EXPECT_TRUE(info.ok()) << info.status();
    return *info;
  }
  static uint64_t SeedOf(const NamespaceInfo& ns) { return ns.id.bytes[0]; }

  // One put of a whole chain, or its part from `first` on.
  std::vector<PutResult> Put(const NamespaceInfo& ns, std::span<const BlockKey> chain,
                             size_t first = 0) {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> sources;
    for (const BlockKey& key : chain.subspan(first)) {
      blocks.push_back(MakeMixedBlock(SeedOf(ns), key, ns.block_bytes));
      sources.push_back(blocks.back().data());
    }
    PutRequest request;
    request.ns = ns.handle;
    if (first > 0) request.parent = chain[first - 1];
    request.first_depth = static_cast<uint32_t>(first);
    request.keys = chain.subspan(first);
    request.sources = sources;
    std::vector<PutResult> results(request.keys.size());
    EXPECT_TRUE(cache_->Put(request, results).ok());
    return results;
  }
  // Until nothing is shed any more; returns how many of the chain are stored.
  size_t PutAll(const NamespaceInfo& ns, std::span<const BlockKey> chain) {
    for (size_t at = 0; at < chain.size();) {
      const std::vector<PutResult> results = Put(ns, chain, at);
      size_t good = 0;
      while (good < results.size() &&
             (results[good] == PutResult::kStored || results[good] == PutResult::kExists)) {
        ++good;
      }
      at += good;
      if (good == results.size()) break;
      if (results[good] != PutResult::kShed) return at;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return chain.size();
  }
  size_t Load(const NamespaceInfo& ns, std::span<const BlockKey> keys) {
    return cache_->LoadNow(ns.handle, keys, IoClass::kDemand);
  }
  // Loads, leases and compares; how many leading blocks were there. Wrong bytes fail the test.
  size_t Read(const NamespaceInfo& ns, std::span<const BlockKey> keys) {
    Load(ns, keys);
    const AcquireResult found = cache_->Acquire(ns.handle, keys, &account_, 0);
    for (size_t i = 0; i < found.grants.size(); ++i) {
      const std::span<const std::byte> block(cache_->Data(found.grants[i].slot), ns.block_bytes);
      EXPECT_TRUE(std::ranges::equal(MakeMixedBlock(SeedOf(ns), keys[i], block.size()), block))
          << "block " << i;
    }
    if (found.lease != 0) cache_->Release(found.lease, &account_);
    return found.grants.size();
  }

 private:
  void CheckInvariants() const {
    if (cache_ == nullptr || options_.bug != PlantedTierBug::kNone) return;
    EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  }

  NodeOptions options_;
  std::string folder_;
  std::unique_ptr<Catalogue> catalogue_;
  std::vector<std::shared_ptr<DeviceFaults>> faults_;
  LeaseAccount account_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_CACHE_DEVICES_TESTING_H_
