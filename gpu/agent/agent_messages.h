// What an engine and kvarve-agent say to each other, over a Unix seqpacket socket on one host:
// plain structs, one a packet, both ends of one build (kAgentVersion is compared first).
//
//   engine                      agent
//   Attach [AgentTensor]…   →
//   Memory [fd]… (pieces)   →         until every range of Attach is whole
//                           ←   Attached [fd of the staging], or Refused
//   Move [page ids]         →
//                           ←   Moved
//   Detach                  →
//                           ←   Detached: nothing is mapped any more
//
// A value: THREADS: any.
#ifndef KVARVE_GPU_AGENT_AGENT_MESSAGES_H_
#define KVARVE_GPU_AGENT_AGENT_MESSAGES_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "gpu/agent/shared_memory.h"
#include "gpu/paged/kv_view.h"
#include "storage/block/layout.h"

namespace kvarve {

inline constexpr uint32_t kAgentVersion = 1;
inline constexpr size_t kMaxAgentMessage = 64 << 10;
inline constexpr uint32_t kMaxAgentLayers = 512;
inline constexpr uint32_t kMaxAgentRanges = 2 * kMaxAgentLayers;
inline constexpr uint32_t kMaxAgentPages = 4096;  // of a block

enum class AgentWord : uint32_t {
  kAttach = 1,
  kMemory,
  kAttached,
  kRefused,
  kMove,
  kMoved,
  kDetach,
  kDetached
};

struct AgentTensor {
  uint64_t base = 0;  // the engine's address
  int64_t bytes = 0, page_stride = 0, head_stride = 0, token_stride = 0;
};
// Followed by the tensors: each layer's K, then its V where it has one.
struct AttachMessage {
  AgentWord word = AgentWord::kAttach;
  uint32_t version = kAgentVersion;
  char uuid[48] = {};  // of the device
  BlockLayout layout;
  uint32_t page_tokens = 0, tensors = 0, ranges = 0;
  int64_t pages = 0;
};
struct MemoryMessage {  // a piece of the range that is not whole yet, or the first of the next
  AgentWord word = AgentWord::kMemory;
  MemoryKind kind = MemoryKind::kVmm;
  uint64_t begin = 0, end = 0;
  uint32_t pieces = 0, unused = 0;
  uint64_t bytes = 0;
  cuda::IpcMemoryHandle handle{};
};
struct AttachedMessage {
  AgentWord word = AgentWord::kAttached;
  uint32_t slots = 0;
  uint64_t generation = 0;
};
// Followed by text.
struct RefusedMessage {
  AgentWord word = AgentWord::kRefused;
  uint32_t code = 0;  // absl's
};
// Followed by int64 page ids of one block.
struct MoveMessage {
  AgentWord word = AgentWord::kMove;
  uint32_t is_scatter = 0;
  uint64_t generation = 0, ticket = 0;
  uint32_t slot = 0, pages = 0;
};
struct MovedMessage {
  AgentWord word = AgentWord::kMoved;
  uint32_t code = 0;
  uint64_t ticket = 0;
};
struct DetachMessage {
  AgentWord word = AgentWord::kDetach;
  uint32_t unused = 0;
  uint64_t generation = 0;
};
struct DetachedMessage {
  AgentWord word = AgentWord::kDetached;
  uint32_t code = 0;
  uint64_t generation = 0;
};

// A message's bytes, with what follows it.
template <typename Message, typename Element = char>
std::string AgentBytes(const Message& message, std::span<const Element> rest = {}) {
  std::string bytes(sizeof message + rest.size_bytes(), '\0');
  std::memcpy(bytes.data(), &message, sizeof message);
  if (!rest.empty()) std::memcpy(bytes.data() + sizeof message, rest.data(), rest.size_bytes());
  return bytes;
}

// The word of a packet; 0 when it has none.
inline AgentWord AgentWordOf(std::span<const uint8_t> packet) {
  uint32_t word = 0;
  if (packet.size() >= sizeof word) std::memcpy(&word, packet.data(), sizeof word);
  return static_cast<AgentWord>(word);
}

// The message at a packet's begin; nothing when it is shorter, or another.
template <typename Message>
std::optional<Message> AgentMessage(std::span<const uint8_t> packet) {
  Message message;
  if (packet.size() < sizeof message || AgentWordOf(packet) != message.word) return std::nullopt;
  std::memcpy(&message, packet.data(), sizeof message);
  return message;
}

// Exactly `count` elements behind a message; nothing when there are others.
template <typename Element>
std::optional<std::vector<Element>> AgentRest(std::span<const uint8_t> packet, size_t message_bytes,
                                              size_t count) {
  if (packet.size() < message_bytes || count > kMaxAgentMessage ||
      packet.size() - message_bytes != count * sizeof(Element))
    return std::nullopt;
  std::vector<Element> elements(count);
  if (count > 0)
    std::memcpy(elements.data(), packet.data() + message_bytes, count * sizeof(Element));
  return elements;
}

// Sends, and waits for room until the time is over. As local::Send, or DeadlineExceeded.
absl::Status SendWithin(int socket, std::string_view bytes, std::span<const int> fds,
                        int64_t deadline_nanos);
// The process at the other end: a pidfd, by the kernel's word. Unavailable: it is gone.
// PermissionDenied: another user's, and not root's.
absl::StatusOr<UniqueFd> PeerProcess(int socket);
bool IsGone(int pidfd);
int64_t NowNanos();

}  // namespace kvarve

#endif  // KVARVE_GPU_AGENT_AGENT_MESSAGES_H_
