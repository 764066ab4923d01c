// One device of the NVMe tier: its log, what may be written to it, and the two threads that work
// for it. Private to storage/cache.
//
// THREADS: as said at each part. The flusher's queue has a lock of its own, taken under the cache's
// mutex and never the other way round.
#ifndef KVARVE_STORAGE_CACHE_DEVICE_LOG_H_
#define KVARVE_STORAGE_CACHE_DEVICE_LOG_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/cache/device_tier.h"
#include "storage/cache/rung.h"
#include "storage/policy/write_budget.h"
#include "storage/segment/segment_log.h"

namespace kvarve {

class DeviceLog final : public LogOwner {
 public:
  // Fails as SegmentLog::Open does.
  static absl::StatusOr<std::shared_ptr<DeviceLog>> Open(DeviceTier* tier, uint32_t number,
                                                         std::unique_ptr<Device> device);
  ~DeviceLog() override;

  uint32_t number() const { return number_; }
  const std::string& path() const { return device_->info().path; }
  const DeviceUuid& uuid() const { return log_->superblock().uuid; }
  void Start();  // the threads

  // ---- Under the cache's mutex.
  bool takes_writes() const { return !write_off_.load() && !closed_; }
  bool recovered() const { return recovered_.load(); }
  WriteBudget& budget() { return budget_; }
  double NowSeconds() const;
  void Enqueue(const std::vector<AppendBlock>& blocks);
  void Close() { closed_ = true; }  // admits nothing from now on
  // What is queued later is written behind the erase; the caller has forgotten what came before.
  struct OrderEnd {
    absl::Status status;
    bool done = false;
  };
  std::shared_ptr<OrderEnd> BeginErase(const NamespaceId& ns, std::span<const BlockKey> keys);

  // ---- Any thread, without the cache's mutex.
  DeviceStats Stats() const;
  // As SegmentLog::Read; `done` is told when the blocks are decoded.
  void Read(std::shared_ptr<Rung::Reading> reading, IoClass io_class, ReadDone done,
            bool caller_waits);
  absl::Status Wait(const OrderEnd& end);  // BLOCKS
  // Behind all that is queued now.  BLOCKS.
  void Seal();
  // Ends the threads: what is queued is written first if `polite`.
  void Stop(bool polite);
  void SaveBudget();
  void TurnOff(const char* why);  // reads and writes

  // ---- LogOwner.
  void OnRecovered(const SegmentTable& table) override;
  void OnWritten(const AppendBlock& block, const BlockLocation& at) override;
  void OnNotWritten(const AppendBlock& block, const absl::Status& why) override;
  void ChooseSurvivors(const SegmentTable& table, Keep what, std::vector<bool>* keep) override;
  void OnMoved(const NamespaceId& ns, const BlockRecord& record, const BlockLocation& from,
               const BlockLocation& to) override;
  void OnReclaimed(const SegmentTable& table) override;

 private:
  struct Order {  // for the flusher, before what is queued
    enum class Kind : uint8_t { kErase, kSeal } kind = Kind::kSeal;
    NamespaceId ns;
    std::vector<BlockKey> keys;     // of an erase; empty: all
    std::shared_ptr<OrderEnd> end;  // under queue_mutex_
  };

  DeviceLog(DeviceTier* tier, uint32_t number, std::unique_ptr<Device> device);
  void Flush();
  void Recover();
  // Reads some of the segment's blocks, so that the device's speed is known before the first prompt
  // asks for it. BLOCKS.
  void Probe(const SegmentTable& table);
  bool NextBatch(std::vector<AppendBlock>* batch, std::vector<Order>* orders);
  void Obey(const Order& order);
  void ScrubIfDue();
  void OfferIfDue();
  // Keeps the budget's level for a start after a kill, unless what is kept says about as much.
  void KeepBudget();
  void Give(const Order& order);

  DeviceTier& tier_;
  const uint32_t number_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<Catalogue> own_catalogue_;  // when the tier has none
  Catalogue* catalogue_ = nullptr;
  std::unique_ptr<SegmentLog> log_;
  WriteBudget budget_;
  bool closed_ = false;
  std::atomic<bool> write_off_{false}, off_{false}, recovered_{false};
  std::atomic<uint32_t> read_failures_in_a_row_{0};
  ErasedSeqs erased_;  // of Recover alone, as the next
  uint64_t probes_ = 0;
  int64_t scrubbed_nanos_ = 0;  // of the flusher alone, as the next
  uint64_t scrubbed_segment_ = 0;
  int64_t offered_nanos_ = 0;
  double kept_level_ = 0, kept_seconds_ = 0;

  mutable Mutex queue_mutex_;
  CondVar queue_changed_;
  std::deque<AppendBlock> queue_ ABSL_GUARDED_BY(queue_mutex_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(queue_mutex_) = 0;
  int64_t queued_since_ ABSL_GUARDED_BY(queue_mutex_) = 0;
  std::vector<Order> orders_ ABSL_GUARDED_BY(queue_mutex_);
  bool stop_ ABSL_GUARDED_BY(queue_mutex_) = false;
  bool stop_politely_ ABSL_GUARDED_BY(queue_mutex_) = false;
  std::thread flusher_, recoverer_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_DEVICE_LOG_H_
