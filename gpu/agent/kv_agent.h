// The agent of one engine: its paged KV as this process's device has it, under a generation, and
// the moves over it. In the engine's process it is the library (in-process pointers, nothing to
// map); kvarve-agent has one for each engine that is connected (agent_server.h), over imported
// memory.
//
// An engine that sleeps (its pages are given back to the device) detaches, and attaches again when
// it wakes: the generation before is retired at once, what moves still is waited for, then the
// memory goes. A move that names a retired generation is refused, so that nothing that was asked
// for before can touch what lies at those addresses now.
//
// After an error of the device, which no process gets rid of but by ending, every answer is
// Unavailable, a miss; the context is never reset: it is the engine's, too.
//
// THREADS: any; a move one at a time.  BLOCKS: Detach until all moves are known to be over,
// AgentMove::Wait; Attach as Transfer::Create.
#ifndef KVARVE_GPU_AGENT_KV_AGENT_H_
#define KVARVE_GPU_AGENT_KV_AGENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/device/device.h"
#include "gpu/paged/kv_view.h"
#include "gpu/transfer/host_registry.h"
#include "gpu/transfer/transfer.h"
#include "storage/base/mutex.h"
#include "storage/block/layout.h"

namespace kvarve {

class KvAgent;

// A move under way, which keeps what it moves over. The agent must outlive it.
class AgentMove {
 public:
  ~AgentMove();  // waits
  AgentMove(const AgentMove&) = delete;
  AgentMove& operator=(const AgentMove&) = delete;
  // Whether it is over. Unavailable: the device failed.
  absl::StatusOr<bool> Done();
  absl::Status Wait();
  // As Move's.
  absl::Status EngineAfterLayer(EngineStream engine, uint32_t layer);

 private:
  friend class KvAgent;
  struct Attached;
  AgentMove(KvAgent* agent, std::shared_ptr<Attached> attached)
      : agent_(agent), attached_(std::move(attached)) {}
  absl::Status End(const absl::Status& status);
  KvAgent* const agent_;
  std::shared_ptr<Attached> attached_;  // null: it is over
  std::unique_ptr<Move> move_;
  absl::Status status_;
};

class KvAgent {
 public:
  KvAgent(std::shared_ptr<ComputeDevice> device, std::shared_ptr<HostRegistry> registry)
      : device_(std::move(device)), registry_(std::move(registry)) {}
  ~KvAgent();  // REQUIRES: no AgentMove is left

  // `memory`, where the view lies in what was imported, is kept as long as the generation. The new
  // generation, never one that was. FailedPrecondition: attached already. Unavailable: the device
  // failed. Else as Transfer::Create.
  absl::StatusOr<uint64_t> Attach(KvView view, const BlockLayout& layout,
                                  std::vector<DeviceMemory> memory,
                                  const Transfer::Options& options);
  // FailedPrecondition: not the generation that is attached. REQUIRES: moves under way are polled
  // or waited for, by somebody else.
  absl::Status Detach(uint64_t generation);

  // As Transfer::Start, of whole blocks: in the engine's process `engine` names its stream. From
  // another process nothing can, and what wrote the pages must be over.
  // FailedPrecondition: not the generation that is attached. Unavailable: the device failed, or the
  // engine captures.
  absl::StatusOr<std::unique_ptr<AgentMove>> Start(uint64_t generation, MoveDirection direction,
                                                   std::span<const BlockMove> blocks,
                                                   const EngineOrder& engine = {});

  struct Stats {
    uint64_t generation = 0;  // attached now; 0: none
    uint64_t moves = 0, stale = 0, under_way = 0;
    bool failed = false;
  };
  Stats stats() const;

 private:
  friend class AgentMove;
  // OK but for the device's own errors, which are remembered.
  absl::Status Seen(const absl::Status& status);
  void Ended();

  const std::shared_ptr<ComputeDevice> device_;
  const std::shared_ptr<HostRegistry> registry_;
  mutable Mutex mutex_;
  CondVar ended_;
  std::shared_ptr<AgentMove::Attached> attached_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_GPU_AGENT_KV_AGENT_H_
