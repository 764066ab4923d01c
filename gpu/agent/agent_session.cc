#include "gpu/agent/agent_session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/local/socket.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint32_t kMaxSlots = 1024;
constexpr int64_t kSayNanos = 1'000'000'000;  // an engine that reads no answer for so long is out
constexpr int64_t kRegisterNanos = 60'000'000'000;
constexpr int kMoveTickMillis = 1;

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("agent: %s", what));
}

}  // namespace

void AgentSession::Run() {
  std::vector<uint8_t> buffer(kMaxAgentMessage);
  absl::Status status;
  while (status.ok()) {
    pollfd watched[] = {
        {socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}, {server_.stop_.get(), POLLIN, 0}};
    ::poll(watched, std::size(watched), moves_.empty() ? -1 : kMoveTickMillis);
    if (watched[1].revents != 0 || watched[2].revents != 0) break;
    if (watched[0].revents != 0) {
      std::vector<UniqueFd> fds;
      const absl::StatusOr<size_t> n = local::Receive(socket_.get(), buffer, &fds);
      if (!n.ok()) break;
      if (*n > 0) status = Handle(std::span(buffer).first(*n), std::move(fds));
    }
    if (status.ok()) status = Reap();
  }
  Drop();
}

void AgentSession::Drop() {
  moves_.clear();  // waits for each
  if (generation_ != 0) agent_->Detach(generation_).IgnoreError();
  if (std::exchange(generation_, 0) != 0) {
    MutexLock lock(&server_.mutex_);
    --server_.stats_.attached;
  }
  DropStaging();
  importer_.reset();
  memory_.clear(), ranges_.clear(), addresses_.clear();
  is_attaching_ = false;
}

void AgentSession::DropStaging() {
  agent_.reset();
  if (registry_ != nullptr) registry_->Remove(staging_.data());
  registry_.reset();
  if (!staging_.empty()) ::munmap(staging_.data(), staging_.size());
  staging_ = {};
  staging_fd_.reset();
}

absl::Status AgentSession::Say(std::string_view bytes, std::span<const int> fds) {
  return SendWithin(socket_.get(), bytes, fds, NowNanos() + kSayNanos);
}

absl::Status AgentSession::Handle(std::span<const uint8_t> packet, std::vector<UniqueFd> fds) {
  switch (AgentWordOf(packet)) {
    case AgentWord::kAttach:
      return OnAttach(packet);
    case AgentWord::kMemory:
      return OnMemory(packet, std::move(fds));
    case AgentWord::kMove:
      return OnMove(packet);
    case AgentWord::kDetach:
      return OnDetach(packet);
    default:
      return Bad("no such word");
  }
}

absl::Status AgentSession::OnAttach(std::span<const uint8_t> packet) {
  const auto message = AgentMessage<AttachMessage>(packet);
  if (!message) return Bad("half a message");
  const auto tensors = AgentRest<AgentTensor>(packet, sizeof *message, message->tensors);
  if (!tensors || message->uuid[sizeof message->uuid - 1] != 0) return Bad("half a message");
  if (is_attaching_) return Bad("attaching twice");
  if (generation_ != 0) return Refuse(absl::FailedPreconditionError("attached already"));
  if (message->version != kAgentVersion) {
    return Refuse(absl::FailedPreconditionError(absl::StrFormat(
        "the engine's library speaks version %d, this agent %d", message->version, kAgentVersion)));
  }
  const uint32_t per_layer = message->layout.v_dim > 0 ? 2 : 1;
  if (message->layout.layers == 0 || message->layout.layers > kMaxAgentLayers ||
      message->tensors != message->layout.layers * per_layer || message->ranges == 0 ||
      message->ranges > kMaxAgentRanges)
    return Refuse(absl::InvalidArgumentError("layers, tensors and ranges that do not fit"));
  if (server_.device_->info().uuid != message->uuid) {
    return Refuse(absl::NotFoundError(absl::StrFormat(
        "this agent has %s, the engine %s", server_.device_->info().uuid, message->uuid)));
  }
  wanted_ = *message;
  tensors_ = *tensors;
  is_attaching_ = true;
  return absl::OkStatus();
}

absl::Status AgentSession::OnMemory(std::span<const uint8_t> packet, std::vector<UniqueFd> fds) {
  const auto message = AgentMessage<MemoryMessage>(packet);
  if (!message || (message->kind == MemoryKind::kVmm) != (fds.size() == 1))
    return Bad("half a piece of memory");
  if (!is_attaching_) return absl::OkStatus();  // sent before the engine read that it was refused
  if (importer_ == nullptr) {
    const MemoryRange range{message->kind, message->begin, message->end, message->pieces};
    auto importer = MemoryImporter::Create(server_.driver_, server_.device_->info().uuid, range);
    if (!importer.ok()) return Refuse(importer.status());
    importer_ = std::make_unique<MemoryImporter>(*std::move(importer));
  }
  MemoryPiece piece;
  piece.bytes = message->bytes;
  piece.handle = message->handle;
  if (!fds.empty()) piece.fd = std::move(fds.front());
  const absl::Status added = importer_->Add(piece);
  if (!added.ok()) return Refuse(added);
  if (!importer_->complete()) return absl::OkStatus();
  ranges_.push_back(importer_->range());
  auto memory = importer_->Finish();
  importer_.reset();
  if (!memory.ok()) return Refuse(memory.status());
  addresses_.push_back(memory->address());
  memory_.push_back(*std::move(memory));
  return ranges_.size() == wanted_.ranges ? Whole() : absl::OkStatus();
}

// The engine's view at this process's addresses.
absl::StatusOr<KvView> AgentSession::Translated() const {
  KvView view;
  view.pages = wanted_.pages, view.page_tokens = wanted_.page_tokens;
  view.kv_heads = wanted_.layout.kv_heads;
  view.k_dim = wanted_.layout.k_dim, view.v_dim = wanted_.layout.v_dim;
  view.element_bytes = wanted_.layout.element_bytes;
  const size_t per_layer = wanted_.layout.v_dim > 0 ? 2 : 1;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const AgentTensor& t = tensors_[i];
    const auto range = std::ranges::find_if(ranges_, [&](const MemoryRange& r) {
      return t.base >= r.begin && t.base <= r.end && t.bytes >= 0 &&
             static_cast<uint64_t>(t.bytes) <= r.end - t.base;
    });
    if (range == ranges_.end())
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %d lies in no memory that came", i));
    const uint64_t at =
        addresses_[static_cast<size_t>(range - ranges_.begin())] + (t.base - range->begin);
    const PagedTensor tensor{reinterpret_cast<std::byte*>(at), t.bytes, t.page_stride,
                             t.head_stride, t.token_stride};
    if (i % per_layer == 0) {
      view.layers.push_back({tensor, {}});
    } else {
      view.layers.back().v = tensor;
    }
  }
  return view;
}

absl::Status AgentSession::MakeStaging() {
  const uint64_t block = wanted_.layout.CappedBlockBytes();
  const uint64_t slots =
      block == 0 ? 0 : std::min<uint64_t>(server_.options_.staging_bytes / block, kMaxSlots);
  if (slots == 0)
    return absl::InvalidArgumentError(absl::StrFormat("blocks of %d bytes in a staging of %d",
                                                      block, server_.options_.staging_bytes));
  const uint64_t bytes = RoundUp(slots * block, 4096);
  UniqueFd fd(::memfd_create("kvarve-agent", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  void* at = MAP_FAILED;
  if (fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return absl::ResourceExhaustedError("no memory for staging");
  staging_ = {static_cast<std::byte*>(at), bytes};
  staging_fd_ = std::move(fd);
  registry_ = std::make_shared<HostRegistry>(server_.device_);
  registry_->Add(staging_, HostRegistry::Use::kReadWrite);
  if (!registry_->WaitIdle(kRegisterNanos) || registry_->stats().failed > 0)
    return absl::ResourceExhaustedError("registration of the staging: " +
                                        registry_->stats().last_error);
  agent_ = std::make_unique<KvAgent>(server_.device_, registry_);
  return absl::OkStatus();
}

absl::Status AgentSession::Whole() {
  auto view = Translated();
  if (!view.ok()) return Refuse(view.status());
  if (agent_ == nullptr) {
    const absl::Status made = MakeStaging();
    if (!made.ok()) {
      DropStaging();
      return Refuse(made);
    }
  }
  const uint64_t slots = staging_.size() / std::max<uint64_t>(1, wanted_.layout.CappedBlockBytes());
  if (slots == 0) return Refuse(absl::InvalidArgumentError("larger blocks than before"));
  const auto generation =
      agent_->Attach(*std::move(view), wanted_.layout, std::exchange(memory_, {}), {});
  if (!generation.ok()) return Refuse(generation.status());
  is_attaching_ = false;
  ranges_.clear(), addresses_.clear();
  generation_ = *generation;
  block_bytes_ = wanted_.layout.BlockBytes();
  {
    MutexLock lock(&server_.mutex_);
    ++server_.stats_.attached;
  }
  AttachedMessage attached;
  attached.generation = generation_;
  attached.slots = static_cast<uint32_t>(std::min<uint64_t>(slots, kMaxSlots));
  const int fd = staging_fd_.get();
  return Say(AgentBytes(attached), {&fd, 1});
}

absl::Status AgentSession::Refuse(const absl::Status& why) {
  importer_.reset();
  memory_.clear(), ranges_.clear(), addresses_.clear();
  is_attaching_ = false;
  {
    MutexLock lock(&server_.mutex_);
    ++server_.stats_.refused;
  }
  RefusedMessage message;
  message.code = static_cast<uint32_t>(why.code());
  return Say(
      AgentBytes(message, std::span<const char>(why.message().data(), why.message().size())));
}

absl::Status AgentSession::OnMove(std::span<const uint8_t> packet) {
  const auto message = AgentMessage<MoveMessage>(packet);
  if (!message) return Bad("half a message");
  const auto pages = AgentRest<int64_t>(packet, sizeof *message, message->pages);
  if (!pages || message->pages > kMaxAgentPages) return Bad("half a message");
  absl::Status status = absl::FailedPreconditionError("nothing is attached");
  if (block_bytes_ != 0 && message->slot >= staging_.size() / block_bytes_) {
    status = absl::InvalidArgumentError("no such slot");
  } else if (block_bytes_ != 0) {
    const BlockMove moved{staging_.subspan(message->slot * block_bytes_, block_bytes_), *pages};
    auto move = agent_->Start(
        message->generation,
        message->is_scatter != 0 ? MoveDirection::kScatter : MoveDirection::kGather, {&moved, 1});
    if (move.ok()) {
      moves_.push_back({message->ticket, *std::move(move)});
      return absl::OkStatus();
    }
    status = move.status();
  }
  {
    MutexLock lock(&server_.mutex_);
    ++(absl::IsFailedPrecondition(status) ? server_.stats_.stale_moves
                                          : server_.stats_.failed_moves);
  }
  MovedMessage moved;
  moved.ticket = message->ticket;
  moved.code = static_cast<uint32_t>(status.code());
  return Say(AgentBytes(moved));
}

// Answers for moves that are over.
absl::Status AgentSession::Reap() {
  for (size_t i = 0; i < moves_.size();) {
    const absl::StatusOr<bool> done = moves_[i].move->Done();
    if (done.ok() && !*done) {
      ++i;
      continue;
    }
    MovedMessage moved;
    moved.ticket = moves_[i].ticket;
    moved.code = static_cast<uint32_t>(done.status().code());
    moves_.erase(moves_.begin() + static_cast<ptrdiff_t>(i));
    {
      MutexLock lock(&server_.mutex_);
      ++(done.ok() ? server_.stats_.moves : server_.stats_.failed_moves);
      server_.stats_.device_failed |= absl::IsUnavailable(done.status());
    }
    KV_RETURN_IF_ERROR(Say(AgentBytes(moved)));
  }
  return absl::OkStatus();
}

absl::Status AgentSession::OnDetach(std::span<const uint8_t> packet) {
  const auto message = AgentMessage<DetachMessage>(packet);
  if (!message) return Bad("half a message");
  DetachedMessage detached;
  detached.generation = message->generation;
  if (generation_ == 0 || message->generation != generation_) {
    detached.code = static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition);
    return Say(AgentBytes(detached));
  }
  for (const UnderWay& under_way : moves_) under_way.move->Wait().IgnoreError();
  KV_RETURN_IF_ERROR(Reap());  // their answers come first
  KV_RETURN_IF_ERROR(agent_->Detach(std::exchange(generation_, 0)));
  {
    MutexLock lock(&server_.mutex_);
    --server_.stats_.attached;
  }
  return Say(AgentBytes(detached));
}

}  // namespace kvarve
