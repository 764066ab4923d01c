#include "gpu/agent/kv_agent.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr char kDeviceFailed[] = "the device failed: nothing is moved any more";

}  // namespace

// Declared in this order: the transfer ends before the memory under its view goes.
struct AgentMove::Attached {
  uint64_t generation = 0;
  uint32_t block_tokens = 0;
  std::vector<DeviceMemory> memory;
  std::unique_ptr<Transfer> transfer;
};

AgentMove::~AgentMove() { Wait().IgnoreError(); }

absl::Status AgentMove::End(const absl::Status& status) {
  status_ = agent_->Seen(status);
  move_.reset();
  attached_.reset();
  agent_->Ended();
  return status_;
}

absl::StatusOr<bool> AgentMove::Done() {
  if (attached_ != nullptr) {
    const absl::StatusOr<bool> done = move_->Done();
    if (done.ok() && !*done) return false;
    End(done.status()).IgnoreError();
  }
  KV_RETURN_IF_ERROR(status_);
  return true;
}

absl::Status AgentMove::Wait() {
  if (attached_ == nullptr) return status_;
  return End(move_ == nullptr ? absl::OkStatus() : move_->Wait());
}

absl::Status AgentMove::EngineAfterLayer(EngineStream engine, uint32_t layer) {
  if (attached_ == nullptr) return status_;
  return agent_->Seen(move_->EngineAfterLayer(engine, layer));
}

KvAgent::~KvAgent() {
  MutexLock lock(&mutex_);
  KV_CHECK(stats_.under_way == 0);
}

absl::StatusOr<uint64_t> KvAgent::Attach(KvView view, const BlockLayout& layout,
                                         std::vector<DeviceMemory> memory,
                                         const Transfer::Options& options) {
  auto attached = std::make_shared<AgentMove::Attached>();
  attached->memory = std::move(memory);
  attached->block_tokens = layout.tokens;
  {
    MutexLock lock(&mutex_);
    if (stats_.failed) return absl::UnavailableError(kDeviceFailed);
    if (attached_ != nullptr) return absl::FailedPreconditionError("attached already");
  }
  auto transfer = Transfer::Create(device_, registry_, std::move(view), layout, options);
  KV_RETURN_IF_ERROR(Seen(transfer.status()));
  attached->transfer = *std::move(transfer);
  MutexLock lock(&mutex_);
  if (attached_ != nullptr) return absl::FailedPreconditionError("attached already");
  attached->generation = stats_.generation = ++last_generation_;
  attached_ = std::move(attached);
  return last_generation_;
}

absl::Status KvAgent::Detach(uint64_t generation) {
  std::shared_ptr<AgentMove::Attached> retired;
  {
    MutexLock lock(&mutex_);
    if (attached_ == nullptr || attached_->generation != generation) {
      return absl::FailedPreconditionError(
          absl::StrFormat("generation %d is not attached", generation));
    }
    retired = std::exchange(attached_, nullptr);
    stats_.generation = 0;
    while (stats_.under_way > 0) ended_.wait(mutex_);
  }
  return absl::OkStatus();  // and what was mapped for it goes, outside the lock
}

absl::StatusOr<std::unique_ptr<AgentMove>> KvAgent::Start(uint64_t generation,
                                                          MoveDirection direction,
                                                          std::span<const BlockMove> blocks,
                                                          const EngineOrder& engine) {
  std::unique_ptr<AgentMove> move;
  {
    MutexLock lock(&mutex_);
    if (stats_.failed) return absl::UnavailableError(kDeviceFailed);
    if (attached_ == nullptr || attached_->generation != generation) {
      ++stats_.stale;
      return absl::FailedPreconditionError(absl::StrFormat("generation %d is retired", generation));
    }
    move.reset(new AgentMove(this, attached_));
    ++stats_.under_way;  // until AgentMove::End
  }
  auto started =
      move->attached_->transfer->Start(direction, blocks, 0, move->attached_->block_tokens, engine);
  KV_RETURN_IF_ERROR(Seen(started.status()));
  move->move_ = *std::move(started);
  MutexLock lock(&mutex_);
  ++stats_.moves;
  return move;
}

absl::Status KvAgent::Seen(const absl::Status& status) {
  if (!absl::IsInternal(status)) return status;
  MutexLock lock(&mutex_);
  stats_.failed = true;
  return absl::UnavailableError(absl::StrFormat("%s (%s)", kDeviceFailed, status.message()));
}

void KvAgent::Ended() {
  MutexLock lock(&mutex_);
  --stats_.under_way;
  ended_.notify_all();
}

KvAgent::Stats KvAgent::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace kvarve
