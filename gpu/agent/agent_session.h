// One engine's connection to kvarve-agent (agent_server.h).
// THREADS: one.  BLOCKS: Run until the connection is over.
#ifndef KVARVE_GPU_AGENT_AGENT_SESSION_H_
#define KVARVE_GPU_AGENT_AGENT_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "gpu/agent/agent_messages.h"
#include "gpu/agent/agent_server.h"
#include "gpu/agent/kv_agent.h"
#include "gpu/agent/shared_memory.h"
#include "gpu/transfer/host_registry.h"

namespace kvarve {

class AgentSession {
 public:
  AgentSession(AgentServer* server, UniqueFd socket, UniqueFd pidfd)
      : server_(*server), socket_(std::move(socket)), pidfd_(std::move(pidfd)) {}
  ~AgentSession() { Drop(); }
  void Run();

 private:
  struct UnderWay {
    uint64_t ticket;
    std::unique_ptr<AgentMove> move;
  };
  // Not OK: the connection is over.
  absl::Status Handle(std::span<const uint8_t> packet, std::vector<UniqueFd> fds);
  absl::Status OnAttach(std::span<const uint8_t> packet);
  absl::Status OnMemory(std::span<const uint8_t> packet, std::vector<UniqueFd> fds);
  absl::Status OnMove(std::span<const uint8_t> packet);
  absl::Status OnDetach(std::span<const uint8_t> packet);
  absl::Status Whole();  // all memory is here
  absl::Status MakeStaging();
  void DropStaging();
  absl::Status Refuse(const absl::Status& why);
  absl::StatusOr<KvView> Translated() const;
  absl::Status Reap();
  void Drop();
  absl::Status Say(std::string_view bytes, std::span<const int> fds = {});

  AgentServer& server_;
  const UniqueFd socket_, pidfd_;
  // An attachment that is being made, or is there.
  AttachMessage wanted_;
  std::vector<AgentTensor> tensors_;
  std::vector<MemoryRange> ranges_;   // that came whole
  std::vector<DeviceMemory> memory_;  // of these
  std::vector<uint64_t> addresses_;   // of these, here
  std::unique_ptr<MemoryImporter> importer_;
  UniqueFd staging_fd_;
  std::span<std::byte> staging_;
  std::shared_ptr<HostRegistry> registry_;
  std::unique_ptr<KvAgent> agent_;
  uint64_t generation_ = 0;   // attached; 0: not
  uint64_t block_bytes_ = 0;  // of the last that was
  std::vector<UnderWay> moves_;
  bool is_attaching_ = false;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_AGENT_AGENT_SESSION_H_
