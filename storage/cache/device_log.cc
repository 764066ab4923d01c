#include "storage/cache/device_log.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint64_t kFrameBytes = kFramePayloadBytes;
constexpr uint64_t kBatchBytes = 32ull << 20;
constexpr auto kTick = std::chrono::milliseconds(250);
constexpr int64_t kOfferNanos = 250'000'000;
constexpr uint32_t kReadFailuresMax = 64;  // in a row, until nothing of the device is used
// What probes read, at least: of several sizes, so that a fixed part can be told from one a byte.
constexpr std::array<uint64_t, LoadModel::kLeast> kProbeBytes = {1, 1 << 20, 4 << 20};
// Of what the write budget's bucket holds: so much may be written before its level is kept again.
constexpr double kBucketParts = 64;
// How often a block may be carried on from a segment that ends.
constexpr uint8_t kLivesMax = 3;

int64_t Now() { return SystemClock::Get()->NowNanos(); }
int64_t WallSeconds() { return static_cast<int64_t>(::time(nullptr)); }

uint64_t BytesOf(const AppendBlock& block) { return block.record.pages() * kUnit; }

std::string BudgetName(const Superblock& superblock) {
  return "write_budget/" + UuidText(superblock.uuid);
}

WriteBudgetOptions BudgetOf(const DeviceInfo& info, const DeviceTierOptions& options) {
  WriteBudgetOptions budget;
  budget.capacity_bytes = info.bytes;
  budget.drive_writes_per_day = options.drive_writes_per_day;
  budget.least = options.admission;
  return budget;
}

}  // namespace

DeviceLog::DeviceLog(DeviceTier* tier, uint32_t number, std::unique_ptr<Device> device)
    : tier_(*tier),
      number_(number),
      device_(std::move(device)),
      catalogue_(tier->options().catalogue),
      budget_(BudgetOf(device_->info(), tier->options())),
      scrubbed_nanos_(Now()) {
  if (catalogue_ != nullptr) return;
  own_catalogue_ = NewMemoryCatalogue();
  catalogue_ = own_catalogue_.get();
}

absl::StatusOr<std::shared_ptr<DeviceLog>> DeviceLog::Open(DeviceTier* tier, uint32_t number,
                                                           std::unique_ptr<Device> device) {
  std::shared_ptr<DeviceLog> made(new DeviceLog(tier, number, std::move(device)));
  LogOptions options;
  options.recovery_thread = true;
  options.incompat = tier->rung().incompat();
  KV_ASSIGN_OR_RETURN(made->log_,
                      SegmentLog::Open(made->device_.get(), made->catalogue_, made.get(), options));
  tier->cache().device_memory.Add(made->device_.get());
  const auto level = made->catalogue_->GetMeta(BudgetName(made->log_->superblock()));
  if (level.has_value()) made->budget_.Restore(*level, WallSeconds());
  made->kept_level_ = made->budget_.level_bytes();
  made->kept_seconds_ = made->NowSeconds();
  return made;
}

DeviceLog::~DeviceLog() {
  Stop(/*polite=*/false);
  tier_.cache().device_memory.Remove(device_.get());
}

void DeviceLog::Start() {
  flusher_ = std::thread([this] { Flush(); });
  recoverer_ = std::thread([this] { Recover(); });
}

double DeviceLog::NowSeconds() const { return static_cast<double>(Now()) / 1e9; }

void DeviceLog::Stop(bool polite) {
  {
    MutexLock lock(&queue_mutex_);
    stop_ = true;
    stop_politely_ = stop_politely_ || polite;
    queue_changed_.notify_all();
  }
  if (flusher_.joinable()) flusher_.join();
  if (recoverer_.joinable()) recoverer_.join();
}

void DeviceLog::SaveBudget() {
  std::string level;
  {
    MutexLock lock(&tier_.cache().mutex);
    level = budget_.Save(WallSeconds());
  }
  catalogue_->PutMeta(BudgetName(log_->superblock()), level).IgnoreError();  // counted there
}

void DeviceLog::KeepBudget() {
  {
    MutexLock lock(&tier_.cache().mutex);
    if (budget_.unlimited()) return;
    const double now = NowSeconds();
    const double refilled = budget_.bytes_per_second() * (now - kept_seconds_);
    const double told = std::min(budget_.burst_bytes(), kept_level_ + refilled);  // to a start now
    if (told - budget_.level_bytes() <= budget_.burst_bytes() / kBucketParts) return;
    kept_level_ = budget_.level_bytes();
    kept_seconds_ = now;
  }
  SaveBudget();
}

DeviceStats DeviceLog::Stats() const {
  DeviceStats stats;
  stats.path = path();
  stats.uuid = UuidText(log_->superblock().uuid);
  stats.state = off_.load()         ? DeviceState::kOff
                : write_off_.load() ? DeviceState::kWriteOff
                : recovered_.load() ? DeviceState::kReady
                                    : DeviceState::kRecovering;
  stats.backend = device_->info().backend;
  stats.as_wanted = device_->info().fallback_reason.empty();
  stats.direct = device_->info().direct;
  stats.fallback_reason = device_->info().fallback_reason;
  stats.capacity_bytes = log_->superblock().slots * log_->superblock().segment_bytes;
  stats.log = log_->Stats();
  stats.io = device_->Stats();
  return stats;
}

void DeviceLog::TurnOff(const char* why) {
  write_off_.store(true);
  if (off_.exchange(true)) return;
  KvLog(LogLevel::kError, "a device is switched off; the daemon goes on without it",
        {{"device", path()}, {"why", why}});
}

void DeviceLog::Read(std::shared_ptr<Rung::Reading> reading, IoClass io_class, ReadDone done,
                     bool caller_waits) {
  if (off_.load()) {
    for (size_t i = 0; i < reading->blocks.size(); ++i) {
      done(i, absl::UnavailableError(path() + ": switched off after repeated failures"));
    }
    return;
  }
  std::vector<BlockRead> reads = tier_.rung().Begin(reading.get());
  log_->Read(
      std::move(reads), io_class,
      [this, reading = std::move(reading), done = std::move(done)](size_t i,
                                                                   const absl::Status& status) {
        if (status.code() == absl::StatusCode::kInternal) {
          if (++read_failures_in_a_row_ >= kReadFailuresMax) TurnOff("reads keep failing");
        } else if (status.ok()) {
          read_failures_in_a_row_.store(0, std::memory_order_relaxed);
        }
        done(i, status.ok() ? tier_.rung().Finish(reading.get(), i) : status);
      },
      caller_waits);
}

// ---- The flusher

void DeviceLog::Enqueue(const std::vector<AppendBlock>& blocks) {
  MutexLock lock(&queue_mutex_);
  if (queue_.empty()) queued_since_ = Now();
  for (const AppendBlock& block : blocks) {
    queued_bytes_ += BytesOf(block);
    queue_.push_back(block);
  }
  queue_changed_.notify_all();
}

// False: it is time to end.
bool DeviceLog::NextBatch(std::vector<AppendBlock>* batch, std::vector<Order>* orders) {
  MutexLock lock(&queue_mutex_);
  const auto tick_end = std::chrono::steady_clock::now() + kTick;
  for (;;) {
    if (stop_ && (!stop_politely_ || queue_.empty())) return false;
    if (!orders_.empty()) break;
    if (!queue_.empty()) {
      const int64_t ripe = queued_since_ + tier_.options().gather_nanos;
      if (queued_bytes_ >= kFrameBytes || stop_ || Now() >= ripe) break;
      queue_changed_.wait_for(queue_mutex_, std::chrono::nanoseconds(ripe - Now()));
      continue;
    }
    if (queue_changed_.wait_until(queue_mutex_, tick_end) == std::cv_status::timeout) break;
  }
  *orders = std::exchange(orders_, {});
  uint64_t bytes = 0;
  while (!queue_.empty() && (batch->empty() || bytes + BytesOf(queue_.front()) <= kBatchBytes)) {
    bytes += BytesOf(queue_.front());
    batch->push_back(queue_.front());
    queue_.pop_front();
  }
  queued_bytes_ -= bytes;
  queued_since_ = Now();
  return true;
}

void DeviceLog::Flush() {
  std::vector<AppendBlock> batch;
  std::vector<Order> orders;
  for (;;) {
    batch.clear();
    orders.clear();
    if (!NextBatch(&batch, &orders)) break;
    // An erase comes before what was queued with it: of that the older blocks are stale and not
    // written any more, the newer ones must have a later seq.
    for (const Order& order : orders) {
      if (order.kind == Order::Kind::kErase) Obey(order);
    }
    tier_.DropStale(&batch);
    tier_.EncodeAll(&batch);
    if (!batch.empty()) {
      KeepBudget();  // before a byte of it is written
      log_->Append(StreamClass::kFresh, batch);
    }
    bool is_last = false;
    {
      MutexLock lock(&queue_mutex_);
      is_last = queue_.empty();
      for (const Order& order : orders) {
        if (order.kind == Order::Kind::kSeal && !is_last) orders_.push_back(order);
      }
    }
    if (is_last) {
      log_->Drain();
      for (const Order& order : orders) {
        if (order.kind == Order::Kind::kSeal) Obey(order);
      }
    }
    log_->Maintain();
    OfferIfDue();
    if (batch.empty() && orders.empty()) ScrubIfDue();
  }
  log_->Drain();
  // Nobody obeys any more.
  MutexLock lock(&queue_mutex_);
  for (const Order& order : orders_) {
    order.end->status = absl::UnavailableError(path() + ": stops");
    order.end->done = true;
  }
  orders_.clear();
  stop_ = true;
  queue_changed_.notify_all();
}

void DeviceLog::ScrubIfDue() {
  const int64_t every = tier_.options().scrub_nanos;
  if (every == 0 || !recovered_.load() || Now() - scrubbed_nanos_ < every) return;
  scrubbed_nanos_ = Now();
  scrubbed_segment_ = log_->Scrub(scrubbed_segment_);  // 0 behind the last: it begins anew
}

void DeviceLog::OfferIfDue() {
  if (Now() - offered_nanos_ < kOfferNanos) return;
  offered_nanos_ = Now();
  tier_.OfferAgain();
}

void DeviceLog::Obey(const Order& order) {
  absl::Status status;
  if (order.kind == Order::Kind::kErase) {
    status = log_->Erase(order.ns, order.keys);
  } else {
    log_->Seal();
  }
  MutexLock lock(&queue_mutex_);
  order.end->status = status;
  order.end->done = true;
  queue_changed_.notify_all();
}

void DeviceLog::Give(const Order& order) {
  MutexLock lock(&queue_mutex_);
  if (stop_) {
    order.end->status = absl::UnavailableError(path() + ": stops");
    order.end->done = true;
    return;
  }
  orders_.push_back(order);
  queue_changed_.notify_all();
}

absl::Status DeviceLog::Wait(const OrderEnd& end) {
  MutexLock lock(&queue_mutex_);
  while (!end.done) queue_changed_.wait(queue_mutex_);
  return end.status;
}

std::shared_ptr<DeviceLog::OrderEnd> DeviceLog::BeginErase(const NamespaceId& ns,
                                                           std::span<const BlockKey> keys) {
  Order order{Order::Kind::kErase, ns, {keys.begin(), keys.end()}, std::make_shared<OrderEnd>()};
  Give(order);
  return order.end;
}

void DeviceLog::Seal() {
  const Order order{Order::Kind::kSeal, NamespaceId(), {}, std::make_shared<OrderEnd>()};
  Give(order);
  Wait(*order.end).IgnoreError();
}

void DeviceLog::Recover() {
  const int64_t begin = Now();
  const absl::Status recovered = log_->Recover();
  if (!recovered.ok()) {
    KvLog(LogLevel::kError, "a device cannot be recovered whole",
          {{"device", path()}, {"reason", recovered.ToString()}});
  }
  const LogStats stats = log_->Stats();
  recovered_.store(true);
  KvLog(LogLevel::kInfo, "a device is recovered",
        {{"device", path()},
         {"blocks", absl::StrFormat("%d", stats.recovered_records)},
         {"segments_from_catalogue", absl::StrFormat("%d", stats.from_catalogue)},
         {"from_footers", absl::StrFormat("%d", stats.from_footer)},
         {"from_frames", absl::StrFormat("%d", stats.from_frames)},
         {"millis", absl::StrFormat("%d", (Now() - begin) / 1'000'000)}});
  tier_.DeviceRecovered();
}

// ---- What the log tells

void DeviceLog::OnRecovered(const SegmentTable& table) {
  tier_.Recovered(number_, table, &erased_);
  if (probes_ < kProbeBytes.size()) Probe(table);
}

void DeviceLog::Probe(const SegmentTable& table) {
  std::vector<BlockRead> reads;
  std::vector<AlignedBuffer> memory;
  uint64_t bytes = 0;
  const auto read = [&] {
    LoadTimes::Reading reading;
    {
      MutexLock lock(&tier_.cache().mutex);
      reading = tier_.load_times().Begin(number_, bytes, Now());
    }
    const std::vector<absl::Status> statuses =
        ReadBlocks(log_.get(), device_.get(), std::exchange(reads, {}), IoClass::kPrefetch);
    const bool is_good = std::ranges::all_of(statuses, [](const auto& s) { return s.ok(); });
    MutexLock lock(&tier_.cache().mutex);
    tier_.load_times().End(reading, Now(), is_good);
    memory.clear();
    bytes = 0;
    ++probes_;
  };
  for (const BlockRecord& record : table.records) {
    if (probes_ == kProbeBytes.size()) break;
    if (record.is_erase()) continue;
    memory.emplace_back(record.pages() * kUnit);
    reads.push_back({.at = {table.facts.segment_id, record.off4k},
                     .ns = table.namespaces[record.ns_ref],
                     .key = record.key,
                     .stored_len = record.stored_len,
                     .c64_stored = record.c64_stored,
                     .into = memory.back().data()});
    bytes += record.stored_len;
    if (bytes >= kProbeBytes[probes_]) read();
  }
  if (!reads.empty()) read();
}

void DeviceLog::OnWritten(const AppendBlock& block, const BlockLocation& at) {
  tier_.rung().Told(block);
  tier_.Written(number_, block, at);
}

void DeviceLog::OnNotWritten(const AppendBlock& block, const absl::Status& why) {
  tier_.rung().Told(block);
  GivenUp reason = GivenUp::kDevice;
  if (absl::IsResourceExhausted(why)) reason = GivenUp::kFull;
  if (absl::IsInvalidArgument(why)) reason = GivenUp::kTooLarge;
  if (absl::IsUnavailable(why) && !write_off_.exchange(true)) {
    KvLog(LogLevel::kError, "a device takes no writes any more; puts stay in memory",
          {{"device", path()}, {"reason", why.ToString()}});
  }
  tier_.NotWritten(block, reason);
}

void DeviceLog::ChooseSurvivors(const SegmentTable& table, Keep what, std::vector<bool>* keep) {
  tier_.ChooseSurvivors(number_, table, what, kLivesMax, keep);
}

void DeviceLog::OnMoved(const NamespaceId& ns, const BlockRecord& record, const BlockLocation& from,
                        const BlockLocation& to) {
  tier_.Moved(number_, ns, record, from, to);
}

void DeviceLog::OnReclaimed(const SegmentTable& table) { tier_.Reclaimed(number_, table); }

}  // namespace kvarve
