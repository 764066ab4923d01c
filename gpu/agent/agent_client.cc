#include "gpu/agent/agent_client.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/local/socket.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr size_t kMaxUnderWay = 256;
constexpr int kAwaitMillis = 100;

absl::Status Gone() { return absl::UnavailableError("no agent"); }

absl::Status FromCode(uint32_t code, std::string_view text) {
  if (code == 0) return absl::OkStatus();
  constexpr auto kLast = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return {code > kLast ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(code),
          absl::StrFormat("the agent: %s", text.empty() ? "refused" : text)};
}

AgentTensor Described(const PagedTensor& tensor) {
  return {reinterpret_cast<uint64_t>(tensor.base), tensor.bytes, tensor.page_stride,
          tensor.head_stride, tensor.token_stride};
}

std::vector<AgentTensor> TensorsOf(const KvView& view) {
  std::vector<AgentTensor> tensors;
  for (const LayerView& layer : view.layers) {
    tensors.push_back(Described(layer.k));
    if (view.v_dim > 0) tensors.push_back(Described(layer.v));
  }
  return tensors;
}

// The allocations that hold all tensors, each once.
absl::StatusOr<std::vector<MemoryExporter>> RangesOf(const cuda::Driver& driver,
                                                     std::string_view uuid,
                                                     std::vector<AgentTensor> tensors) {
  std::ranges::sort(tensors, {}, &AgentTensor::base);
  std::vector<MemoryExporter> ranges;
  for (const AgentTensor& tensor : tensors) {
    const uint64_t end = tensor.base + static_cast<uint64_t>(tensor.bytes);
    if (!ranges.empty() && tensor.base >= ranges.back().range().begin &&
        end <= ranges.back().range().end)
      continue;
    KV_ASSIGN_OR_RETURN(
        const MemoryExporter range,
        MemoryExporter::Create(driver, uuid, tensor.base, static_cast<uint64_t>(tensor.bytes)));
    ranges.push_back(range);
  }
  if (ranges.empty() || ranges.size() > kMaxAgentRanges)
    return absl::InvalidArgumentError(absl::StrFormat("%d allocations", ranges.size()));
  return ranges;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentClient>> AgentClient::Connect(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path)
    return absl::InvalidArgumentError("a path of a socket that is too long");
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Gone();
  KV_ASSIGN_OR_RETURN(UniqueFd pidfd, PeerProcess(socket.get()));
  return std::unique_ptr<AgentClient>(new AgentClient(std::move(socket), std::move(pidfd)));
}

AgentClient::~AgentClient() {
  if (!deadlines_.empty()) Kill();
  UnmapStaging();
}

void AgentClient::Kill() {
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  is_up_ = false;
}

AgentWord AgentClient::Read() {
  packet_ = 0;
  fds_.clear();
  const absl::StatusOr<size_t> n = local::Receive(socket_.get(), buffer_, &fds_);
  if (!n.ok()) is_up_ = false;
  packet_ = n.ok() ? *n : 0;
  return AgentWordOf(std::span(buffer_).first(packet_));
}

void AgentClient::TakeMoved() {
  const auto message = AgentMessage<MovedMessage>(std::span(buffer_).first(packet_));
  if (!message || deadlines_.erase(message->ticket) == 0) return;
  moved_.push_back({message->ticket, FromCode(message->code, "")});
}

absl::StatusOr<AgentWord> AgentClient::Await(AgentWord one, AgentWord other,
                                             int64_t deadline_nanos) {
  while (is_up_) {
    const AgentWord word = Read();
    if (word == one || word == other) return word;
    if (word == AgentWord::kMoved) TakeMoved();
    if (packet_ > 0) continue;
    const int64_t left = deadline_nanos - NowNanos();
    if (left <= 0) {
      Kill();  // it may still map memory that the engine gives back
      return absl::DeadlineExceededError("the agent does not answer");
    }
    pollfd watched[] = {{socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
    ::poll(watched, std::size(watched),
           static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, kAwaitMillis)));
    if (watched[0].revents == 0 && watched[1].revents != 0) is_up_ = false;
  }
  return Gone();
}

absl::Status AgentClient::SendMemory(const cuda::Driver& driver, std::string_view uuid,
                                     const KvView& view, std::string attach,
                                     int64_t deadline_nanos) {
  KV_ASSIGN_OR_RETURN(std::vector<MemoryExporter> ranges, RangesOf(driver, uuid, TensorsOf(view)));
  const auto count = static_cast<uint32_t>(ranges.size());
  std::memcpy(attach.data() + offsetof(AttachMessage, ranges), &count, sizeof count);
  KV_RETURN_IF_ERROR(SendWithin(socket_.get(), attach, {}, deadline_nanos));
  for (MemoryExporter& range : ranges) {
    for (;;) {
      KV_ASSIGN_OR_RETURN(const std::optional<MemoryPiece> piece, range.Next());
      if (!piece) break;
      MemoryMessage message;
      message.kind = range.range().kind;
      message.begin = range.range().begin, message.end = range.range().end;
      message.pieces = range.range().pieces;
      message.bytes = piece->bytes;
      message.handle = piece->handle;
      const int fd = piece->fd.get();
      KV_RETURN_IF_ERROR(
          SendWithin(socket_.get(), AgentBytes(message),
                     piece->fd.valid() ? std::span<const int>(&fd, 1) : std::span<const int>(),
                     deadline_nanos));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AgentClient::Attach(const cuda::Driver& driver, std::string_view uuid,
                                             const KvView& view, const BlockLayout& layout,
                                             int64_t timeout_nanos) {
  const int64_t deadline = NowNanos() + timeout_nanos;
  if (!is_up_) return Gone();
  if (generation_ != 0) return absl::FailedPreconditionError("attached already");
  KV_RETURN_IF_ERROR(ValidateViewFor(view, layout));
  AttachMessage message;
  if (uuid.size() >= sizeof message.uuid || layout.layers > kMaxAgentLayers)
    return absl::InvalidArgumentError("a UUID or layers that are too long");
  std::memcpy(message.uuid, uuid.data(), uuid.size());
  message.layout = layout;
  message.page_tokens = view.page_tokens, message.pages = view.pages;
  const std::vector<AgentTensor> tensors = TensorsOf(view);
  message.tensors = static_cast<uint32_t>(tensors.size());
  const absl::Status sent =
      SendMemory(driver, uuid, view, AgentBytes(message, std::span(tensors)), deadline);
  if (!sent.ok()) {
    // Half of an attachment is no use to anybody: the connection ends here.
    is_up_ = false;
    ::shutdown(socket_.get(), SHUT_RDWR);
    return sent;
  }
  KV_ASSIGN_OR_RETURN(const AgentWord word,
                      Await(AgentWord::kAttached, AgentWord::kRefused, deadline));
  const std::span<const uint8_t> packet = std::span(buffer_).first(packet_);
  if (word == AgentWord::kRefused) {
    const auto refused = AgentMessage<RefusedMessage>(packet);
    const size_t header = std::min(sizeof(RefusedMessage), packet.size());
    return FromCode(
        refused ? std::max(1u, refused->code) : 13,
        {reinterpret_cast<const char*>(packet.data()) + header, packet.size() - header});
  }
  const auto attached = AgentMessage<AttachedMessage>(packet);
  if (!attached) return absl::InternalError("half an answer of the agent");
  KV_RETURN_IF_ERROR(MapStaging(*attached, layout));
  generation_ = attached->generation;
  return generation_;
}

absl::Status AgentClient::MapStaging(const AttachedMessage& attached, const BlockLayout& layout) {
  UnmapStaging();
  struct stat status {};
  if (fds_.size() != 1 || ::fstat(fds_[0].get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < attached.slots * layout.BlockBytes())
    return absl::InternalError("the agent sent no staging");
  const auto bytes = static_cast<size_t>(status.st_size);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds_[0].get(), 0);
  if (at == MAP_FAILED) return absl::ResourceExhaustedError("no address space for the staging");
  ::madvise(at, bytes, MADV_DONTFORK);
  staging_ = {static_cast<std::byte*>(at), bytes};
  slots_ = attached.slots;
  block_bytes_ = layout.BlockBytes();
  fds_.clear();
  return absl::OkStatus();
}

void AgentClient::UnmapStaging() {
  if (!staging_.empty()) ::munmap(staging_.data(), staging_.size());
  staging_ = {};
  slots_ = 0;
}

absl::Status AgentClient::Detach(uint64_t generation, int64_t timeout_nanos) {
  const int64_t deadline = NowNanos() + timeout_nanos;
  if (!is_up_) return Gone();
  if (generation == 0 || generation != generation_)
    return absl::FailedPreconditionError("not the generation that is attached");
  generation_ = 0;
  DetachMessage message;
  message.generation = generation;
  const absl::Status sent = SendWithin(socket_.get(), AgentBytes(message), {}, deadline);
  if (absl::IsDeadlineExceeded(sent)) Kill();
  KV_RETURN_IF_ERROR(sent);
  KV_RETURN_IF_ERROR(Await(AgentWord::kDetached, AgentWord::kDetached, deadline).status());
  UnmapStaging();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AgentClient::Start(uint64_t generation, MoveDirection direction,
                                            size_t slot, std::span<const int64_t> page_ids,
                                            int64_t timeout_nanos) {
  if (!is_up_) return Gone();
  if (slots_ == 0) return absl::FailedPreconditionError("nothing is attached");
  if (slot >= slots_ || page_ids.size() > kMaxAgentPages)
    return absl::InvalidArgumentError("no such slot, or too many pages");
  if (deadlines_.size() >= kMaxUnderWay)
    return absl::ResourceExhaustedError("too many moves are under way");
  MoveMessage message;
  message.is_scatter = direction == MoveDirection::kScatter ? 1 : 0;
  message.generation = generation, message.ticket = next_ticket_;
  message.slot = static_cast<uint32_t>(slot);
  message.pages = static_cast<uint32_t>(page_ids.size());
  const absl::Status sent = local::Send(socket_.get(), AgentBytes(message, page_ids));
  if (absl::IsUnavailable(sent)) is_up_ = false;
  KV_RETURN_IF_ERROR(sent);
  deadlines_[next_ticket_] = NowNanos() + timeout_nanos;
  return next_ticket_++;
}

std::vector<AgentClient::Moved> AgentClient::Poll() {
  while (is_up_ && !deadlines_.empty()) {
    const AgentWord word = Read();
    if (word == AgentWord::kMoved) TakeMoved();
    if (packet_ == 0) break;
  }
  const int64_t now = NowNanos();
  if (is_up_ && std::ranges::any_of(deadlines_, [&](const auto& d) { return d.second <= now; }))
    Kill();
  if (!is_up_ && !deadlines_.empty()) {
    Kill();                      // it hung up, and may still be there
    if (IsGone(pidfd_.get())) {  // and so is its context, and whatever it had on a device
      for (const auto& [ticket, deadline] : deadlines_) moved_.push_back({ticket, Gone()});
      deadlines_.clear();
    }
  }
  return std::exchange(moved_, {});
}

}  // namespace kvarve
