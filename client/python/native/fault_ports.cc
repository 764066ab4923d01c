#include "client/python/native/fault_ports.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace kvarve::python {
namespace {

class FaultySource : public BlockSource {
 public:
  FaultySource(std::unique_ptr<BlockSource> source, std::shared_ptr<FaultPlan> plan)
      : source_(std::move(source)), plan_(std::move(plan)) {}

  absl::StatusOr<OpenBlocks> Open(ClientNamespace ns, std::span<const BlockKey> keys,
                                  const std::optional<GrantSet>& grants,
                                  uint64_t request_id) override {
    if (!keys.empty()) {
      if (const auto delay = plan_->Take("delay_load", keys.front())) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(*delay));
      }
    }
    return source_->Open(ns, keys, grants, request_id);
  }
  bool Verify(ClientNamespace ns, const BlockKey& key, const std::byte* block,
              uint64_t checksum) override {
    return !plan_->Take("fail_load", key) && source_->Verify(ns, key, block, checksum);
  }

 private:
  const std::unique_ptr<BlockSource> source_;
  const std::shared_ptr<FaultPlan> plan_;
};

class FaultySink : public BlockSink {
 public:
  FaultySink(std::unique_ptr<BlockSink> sink, std::shared_ptr<FaultPlan> plan, uint64_t block_bytes)
      : sink_(std::move(sink)), plan_(std::move(plan)), block_bytes_(block_bytes) {}

  absl::StatusOr<StagedBytes> Stage(size_t bytes) override { return sink_->Stage(bytes); }
  absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                              StagedBytes staged) override {
    for (size_t i = 0; i < chain.keys.size(); ++i) {
      if (plan_->Take("flip_save", chain.keys[i])) staged.data[i * block_bytes_] ^= std::byte{1};
    }
    return sink_->Put(ns, chain, std::move(staged));
  }

 private:
  const std::unique_ptr<BlockSink> sink_;
  const std::shared_ptr<FaultPlan> plan_;
  const uint64_t block_bytes_;
};

}  // namespace

absl::Status FaultPlan::Add(const std::string& kind, const BlockKey& key, int64_t nanos) {
  if (kind != "fail_load" && kind != "delay_load" && kind != "flip_save") {
    return absl::InvalidArgumentError("a fault is fail_load, delay_load or flip_save");
  }
  MutexLock lock(&mutex_);
  if (faults_.size() >= kMaxFaults) return absl::ResourceExhaustedError("too many planned faults");
  faults_.push_back({kind, key, nanos});
  return absl::OkStatus();
}

std::optional<int64_t> FaultPlan::Take(const char* kind, const BlockKey& key) {
  MutexLock lock(&mutex_);
  const auto fault = std::find_if(faults_.begin(), faults_.end(),
                                  [&](const Fault& f) { return f.kind == kind && f.key == key; });
  if (fault == faults_.end()) return std::nullopt;
  const int64_t nanos = fault->nanos;
  faults_.erase(fault);
  return nanos;
}

std::unique_ptr<BlockSource> WithFaults(std::unique_ptr<BlockSource> source,
                                        std::shared_ptr<FaultPlan> plan) {
  return std::make_unique<FaultySource>(std::move(source), std::move(plan));
}
std::unique_ptr<BlockSink> WithFaults(std::unique_ptr<BlockSink> sink,
                                      std::shared_ptr<FaultPlan> plan, uint64_t block_bytes) {
  return std::make_unique<FaultySink>(std::move(sink), std::move(plan), block_bytes);
}

}  // namespace kvarve::python
