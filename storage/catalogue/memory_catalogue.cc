#include <map>
#include <utility>

#include "storage/base/mutex.h"
#include "storage/catalogue/catalogue.h"

namespace kvarve {
namespace {

class MemoryCatalogue final : public Catalogue {
 public:
  std::optional<std::string> Get(const CatalogueDevice& device, uint64_t segment_id) override {
    MutexLock lock(&mutex_);
    const auto it = values_.find({device, segment_id});
    if (it == values_.end()) return std::nullopt;
    return it->second;
  }
  absl::Status Put(const CatalogueDevice& device, uint64_t segment_id,
                   std::string_view value) override {
    MutexLock lock(&mutex_);
    values_[{device, segment_id}] = std::string(value);
    return absl::OkStatus();
  }
  absl::Status Delete(const CatalogueDevice& device, uint64_t segment_id) override {
    MutexLock lock(&mutex_);
    values_.erase({device, segment_id});
    return absl::OkStatus();
  }
  std::vector<uint64_t> Segments(const CatalogueDevice& device) override {
    MutexLock lock(&mutex_);
    std::vector<uint64_t> ids;
    for (auto it = values_.lower_bound({device, 0});
         it != values_.end() && it->first.first == device; ++it)
      ids.push_back(it->first.second);
    return ids;
  }
  std::optional<std::string> GetMeta(std::string_view name) override {
    MutexLock lock(&mutex_);
    const auto it = meta_.find(name);
    if (it == meta_.end()) return std::nullopt;
    return it->second;
  }
  absl::Status PutMeta(std::string_view name, std::string_view value) override {
    MutexLock lock(&mutex_);
    meta_[std::string(name)] = std::string(value);
    return absl::OkStatus();
  }
  uint64_t errors() const override { return 0; }

 private:
  Mutex mutex_;
  std::map<std::pair<CatalogueDevice, uint64_t>, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string, std::less<>> meta_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Catalogue> NewMemoryCatalogue() { return std::make_unique<MemoryCatalogue>(); }

}  // namespace kvarve
