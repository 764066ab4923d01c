// An engine's end of kvarve-agent (agent_server.h). The engine's pages are given by descriptors;
// its blocks lie in slots of the staging memory that came back, to be filled before a scatter and
// read after a gather. What wrote the pages must be over when a gather is asked for.
//
// The agent may die or hang at any time, and the engine goes on: only Attach and Detach wait, as
// long as they are told; a move that is not over at its deadline has the agent killed, and is over
// when the process is gone, because until then it could still write the pages. Then every call is
// Unavailable, a miss, until the engine connects anew.
//
// THREADS: one.  BLOCKS: Connect, Attach and Detach as they say; nothing else.
#ifndef KVARVE_GPU_AGENT_AGENT_CLIENT_H_
#define KVARVE_GPU_AGENT_AGENT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/agent/agent_messages.h"
#include "gpu/device/driver.h"
#include "gpu/paged/kv_view.h"
#include "gpu/transfer/transfer.h"
#include "storage/base/unique_fd.h"
#include "storage/block/layout.h"

namespace kvarve {

class AgentClient {
 public:
  // Unavailable: nobody listens there. PermissionDenied: another user does.
  static absl::StatusOr<std::unique_ptr<AgentClient>> Connect(const std::string& socket_path);
  // Kills an agent whose moves are under way: see above. Does not wait for its end.
  ~AgentClient();

  // The engine's pages, at its own addresses; `uuid` is their device's. The generation.
  // FailedPrecondition: attached already, or memory that cannot be shared. Else what the agent
  // says.
  absl::StatusOr<uint64_t> Attach(const cuda::Driver& driver, std::string_view uuid,
                                  const KvView& view, const BlockLayout& layout,
                                  int64_t timeout_nanos);
  // Moves are over when it returns OK, and nothing of the engine's memory is mapped by the agent.
  // Moves' ends are still to be polled. DeadlineExceeded: the agent hangs, and was killed.
  absl::Status Detach(uint64_t generation, int64_t timeout_nanos);

  size_t slots() const { return slots_; }
  std::span<std::byte> slot(size_t i) const {
    return staging_.subspan(i * block_bytes_, block_bytes_);
  }

  // Starts moving a block between a slot and its pages; its ticket comes out of Poll once.
  // ResourceExhausted: too much is under way. Unavailable: no agent. FailedPrecondition: nothing is
  // attached.
  absl::StatusOr<uint64_t> Start(uint64_t generation, MoveDirection direction, size_t slot,
                                 std::span<const int64_t> page_ids, int64_t timeout_nanos);
  struct Moved {
    uint64_t ticket = 0;
    absl::Status status;  // FailedPrecondition: the generation is retired
  };
  // Moves that ended: neither their pages nor their slots are touched any more.
  std::vector<Moved> Poll();
  size_t under_way() const { return deadlines_.size(); }
  bool connected() const { return is_up_; }

 private:
  AgentClient(UniqueFd socket, UniqueFd pidfd)
      : socket_(std::move(socket)), pidfd_(std::move(pidfd)), buffer_(kMaxAgentMessage) {}
  absl::Status SendMemory(const cuda::Driver& driver, std::string_view uuid, const KvView& view,
                          std::string attach, int64_t deadline_nanos);
  // Reads one packet, if there is one; its word, or 0.
  AgentWord Read();
  // Until a packet of one of these words; moves that end meanwhile are kept for Poll.
  absl::StatusOr<AgentWord> Await(AgentWord one, AgentWord other, int64_t deadline_nanos);
  void TakeMoved();
  void Kill();
  absl::Status MapStaging(const AttachedMessage& attached, const BlockLayout& layout);
  void UnmapStaging();

  const UniqueFd socket_, pidfd_;
  std::vector<uint8_t> buffer_;
  size_t packet_ = 0;
  std::vector<UniqueFd> fds_;
  bool is_up_ = true;
  uint64_t generation_ = 0, next_ticket_ = 1, block_bytes_ = 0;
  size_t slots_ = 0;
  std::span<std::byte> staging_;
  std::map<uint64_t, int64_t> deadlines_;  // of moves under way, by ticket
  std::vector<Moved> moved_;
};

}  // namespace kvarve

#endif  // KVARVE_GPU_AGENT_AGENT_CLIENT_H_
