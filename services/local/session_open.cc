// HELLO, namespaces, and the announcing of chunks.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/socket.h"
#include "services/local/session.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

using local::Builder;
using local::Type;

// What the kernel keeps of a send buffer for itself, with room to spare.
constexpr size_t kSendBufferOverhead = 1024;
// Of a stock kernel: assumed when a client does not say.
constexpr size_t kDefaultSendBuffer = 212992;
constexpr size_t kFixedBytes = sizeof(local::Header) + sizeof(local::KeysBody);

absl::StatusOr<uint16_t> Negotiate(const local::HelloBody& hello,
                                   const LocalServerOptions& options) {
  const uint16_t low = std::max(hello.version_min, options.version_min);
  const uint16_t high = std::min(hello.version_max, options.version_max);
  if (low <= high) return high;
  return absl::FailedPreconditionError(
      absl::StrCat("no common version: the client speaks ", hello.version_min, " to ",
                   hello.version_max, ", the daemon (", options.daemon_version, ") ",
                   options.version_min, " to ", options.version_max, "; update the ",
                   hello.version_max < options.version_min ? "client" : "daemon"));
}

size_t MessageRoom(size_t send_buffer) {
  const size_t room = send_buffer > 2 * kSendBufferOverhead ? send_buffer - kSendBufferOverhead
                                                            : kSendBufferOverhead;
  return std::min(room, local::kMaxMessageBytes);
}

}  // namespace

bool Session::ServeHello() {
  SetReceiveTimeout(options_.hello_timeout_nanos);
  uint64_t request = 0;
  Refusal refusal = Refusal::kBadHello;
  const absl::StatusOr<local::Hello> hello = ReadHello(&request, &refusal);
  const absl::StatusOr<uint16_t> version = [&]() -> absl::StatusOr<uint16_t> {
    if (!hello.ok()) return hello.status();
    refusal = Refusal::kVersion;
    return Negotiate(hello->body, options_);
  }();
  if (!version.ok()) {
    counters_.Refused(refusal);
    KvLog(LogLevel::kWarning, "client refused",
          {{"uid", absl::StrCat(record_->process->uid)},
           {"why", std::string(version.status().message())}});
    SendError(request, version.status());
    return false;
  }
  Welcome(*hello, request, *version);
  counters_.Request(static_cast<size_t>(Type::kHello), true, 0);
  KvLog(LogLevel::kInfo, "session opened",
        {{"session", absl::StrCat(record_->id)},
         {"uid", absl::StrCat(record_->process->uid)},
         {"pid", absl::StrCat(record_->process->pid)},
         {"client", hello->client_name},
         {"engine", hello->engine_id},
         {"tenant", record_->tenant}});
  return true;
}

absl::StatusOr<local::Hello> Session::ReadHello(uint64_t* request, Refusal* refusal) {
  Packet packet = ReceivePacket(local::Wait::kSocketTimeout);
  while (ends_seen_ > 0 && !end_.has_value() && packet.empty()) {
    packet = ReceivePacket(local::Wait::kNo);
  }
  if (end_.has_value()) return absl::UnavailableError("the client left before HELLO");
  if (packet.empty()) {
    *refusal = Refusal::kHelloTimeout;
    return absl::DeadlineExceededError("no HELLO in time");
  }
  KV_ASSIGN_OR_RETURN(const local::Header header, Parsed(local::ParseHeader(packet)));
  *request = header.request;
  if (header.type != static_cast<uint16_t>(Type::kHello)) {
    return absl::FailedPreconditionError("the first message must be HELLO");
  }
  return Parsed(local::ParseHello(packet));
}

void Session::Welcome(const local::Hello& hello, uint64_t request, uint16_t version) {
  reaper_.SetEngine(record_.get(), hello.engine_id);
  record_->welcomed = true;
  Counters::Add(counters_.sessions_opened);
  max_reply_bytes_ = MessageRoom(local::RaiseSendBuffer(socket_, 2 * local::kMaxMessageBytes));
  const size_t client_buffer =
      hello.body.send_buffer_bytes != 0 ? hello.body.send_buffer_bytes : kDefaultSendBuffer;
  const size_t client_room = MessageRoom(client_buffer);

  local::Welcome welcome;
  welcome.body.version = version;
  welcome.body.incarnation = cache_.incarnation();
  welcome.body.session = record_->id;
  std::memcpy(welcome.body.session_token, record_->token.data(), record_->token.size());
  welcome.body.max_message_bytes = static_cast<uint32_t>(client_room);
  const size_t keys = (client_room - kFixedBytes) / BlockKey::kMaxBytes;
  welcome.body.max_keys = static_cast<uint32_t>(std::min(keys, local::kMaxKeysPerLookup));
  // A PUT carries a key and an offset a block, a GRANT an item.
  const size_t blocks =
      std::min((client_room - kFixedBytes) / (BlockKey::kMaxBytes + sizeof(uint64_t)),
               (max_reply_bytes_ - sizeof(local::Header) - sizeof(local::GrantBody)) /
                   sizeof(local::GrantItem));
  welcome.body.max_blocks = static_cast<uint32_t>(std::min(blocks, local::kMaxBlocksPerAcquire));

  Outbox::Fds fds;
  GiveStaging(hello, &welcome, &fds);
  GiveMailbox(hello, &welcome, &fds);
  welcome.daemon_version = options_.daemon_version;
  for (size_t i = 0; i < hello.namespaces.size(); ++i) {
    absl::Status status;
    welcome.namespaces.push_back(OpenNamespace(hello.namespaces[i], hello.digests[i], &status));
  }
  SendPacket(local::BuildWelcome(welcome, request), std::move(fds));
  packets_sent_ = 0;  // counted from here on, as the client does
  AnnounceChunks(/*always=*/true);
}

void Session::GiveStaging(const local::Hello& hello, local::Welcome* welcome, Outbox::Fds* fds) {
  const uint64_t wanted = std::min(hello.body.staging_bytes, options_.staging_bytes_per_session);
  absl::StatusOr<std::unique_ptr<SessionStaging>> staging =
      SessionStaging::Create(wanted, &record_->process->staging);
  if (!staging.ok()) {
    KvLog(LogLevel::kWarning, "no staging", {{"why", std::string(staging.status().message())}});
  } else if (*staging != nullptr) {
    record_->staging = std::move(*staging);
    welcome->body.staging_bytes = record_->staging->bytes();
    fds->push_back(record_->staging->TakeFd());
  }
  if (staging.ok() && welcome->body.staging_bytes < wanted) {
    KvLog(LogLevel::kWarning, "no staging",
          {{"got", FormatBytes(welcome->body.staging_bytes)},
           {"wanted", FormatBytes(wanted)},
           {"client", hello.client_name},
           {"why", absl::StrCat(FormatBytes(record_->process->staging.used()),
                                " of its process, of limits.staging_process_bytes, and ",
                                FormatBytes(record_->process->staging.parent()->used()),
                                " of all, of limits.staging_total_bytes, are in use")}});
  }
}

void Session::GiveMailbox(const local::Hello& hello, local::Welcome* welcome, Outbox::Fds* fds) {
  if ((hello.body.flags & local::kTakesMailbox) == 0 || !options_.offers_mailbox) return;
  UniqueFd fd;
  absl::StatusOr<std::unique_ptr<local::Mailbox>> made = local::Mailbox::Create(&fd);
  if (!made.ok()) {
    KvLog(LogLevel::kWarning, "no mailbox", {{"why", std::string(made.status().message())}});
    return;
  }
  mailbox_ = *std::move(made);
  reaper_.SetMailbox(record_.get(), mailbox_);
  welcome->body.mailbox_bytes = local::Mailbox::kBytes;
  fds->push_back(std::make_shared<const UniqueFd>(std::move(fd)));
}

local::NamespaceOpenedBody Session::OpenNamespace(const NamespaceDescriptor& descriptor,
                                                  const NamespaceDigest& digest,
                                                  absl::Status* status) {
  const absl::StatusOr<NamespaceInfo> info = [&]() -> absl::StatusOr<NamespaceInfo> {
    if (namespaces_.size() >= kMaxNamespacesPerSession) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a session opens at most ", kMaxNamespacesPerSession, " namespaces"));
    }
    KV_ASSIGN_OR_RETURN(const NamespaceDescriptor complete,
                        tenants_.Complete(record_->tenant, descriptor, digest));
    return cache_.OpenNamespace(complete);
  }();
  local::NamespaceOpenedBody opened;
  *status = info.status();
  opened.code = static_cast<uint32_t>(info.status().code());
  if (!info.ok()) return opened;
  const auto known =
      std::find_if(namespaces_.begin(), namespaces_.end(),
                   [&](const NamespaceInfo& other) { return other.handle == info->handle; });
  opened.handle = static_cast<uint32_t>(known - namespaces_.begin());
  if (known == namespaces_.end()) namespaces_.push_back(*info);
  pools_.insert(info->pool);
  std::memcpy(opened.ns_id, info->id.bytes.data(), info->id.bytes.size());
  opened.block_bytes = info->block_bytes;
  opened.key_bytes = info->key_bytes;
  return opened;
}

absl::Status Session::OnOpenNamespace(uint64_t request, Packet packet) {
  KV_ASSIGN_OR_RETURN(const local::OpenNamespace open, Parsed(local::ParseOpenNamespace(packet)));
  absl::Status status;
  const local::NamespaceOpenedBody opened = OpenNamespace(open.descriptor, open.digest, &status);
  KV_RETURN_IF_ERROR(status);
  Send(Builder(Type::kNamespaceOpened, request).Add(opened));
  AnnounceChunks(/*always=*/true);
  return absl::OkStatus();
}

std::map<uint64_t, ChunkInfo> Session::PresentChunks() const {
  std::map<uint64_t, ChunkInfo> present;
  for (const PoolId pool : pools_) {
    for (ChunkInfo& chunk : cache_.Chunks(pool)) present.emplace(chunk.id, std::move(chunk));
  }
  return present;
}

void Session::AnnounceChunks(bool always) {
  const uint64_t epoch = cache_.chunk_epoch();
  if (!always && announced_epoch_ == epoch) return;
  announced_epoch_ = epoch;
  std::map<uint64_t, ChunkInfo> present = PresentChunks();
  std::vector<uint64_t> added;
  for (const auto& [id, chunk] : present) {
    if (!told_.contains(id)) added.push_back(id);
  }
  if (!added.empty()) {
    // Counted first, then looked at again: a chunk that is dropped after this waits for this
    // client.
    reaper_.AddChunks(record_.get(), added);
    present = PresentChunks();
  }
  for (const uint64_t id : added) {
    const auto chunk = present.find(id);
    if (chunk == present.end()) {
      reaper_.RemoveChunk(record_.get(), id);
      continue;
    }
    told_.emplace(id, Told::kAdded);
    Counters::Add(counters_.pool_adds);
    const local::PoolAddBody body{id, chunk->second.bytes, chunk->second.page_bytes};
    SendPacket(std::move(Builder(Type::kPoolAdd, 0).Add(body)).Finish(), {chunk->second.fd});
  }
  for (auto& [id, told] : told_) {
    if (told != Told::kAdded || present.contains(id)) continue;
    told = Told::kDropping;
    Counters::Add(counters_.pool_drops);
    SendPacket(std::move(Builder(Type::kPoolDrop, 0).Add(local::PoolDropBody{id})).Finish());
  }
}

absl::Status Session::OnSync(uint64_t request, Packet packet) {
  if (packet.size() != sizeof(local::Header)) {
    NoteMalformed();
    return absl::InvalidArgumentError("SYNC has no body");
  }
  AnnounceChunks(/*always=*/true);
  SendCount(Type::kSyncReply, request, told_.size());
  return absl::OkStatus();
}

absl::Status Session::OnPoolDropped(Packet packet) {
  local::PoolDropBody body;
  KV_RETURN_IF_ERROR(Parsed(local::ParseBody(packet, &body)));
  const auto told = told_.find(body.chunk);
  if (told == told_.end() || told->second != Told::kDropping) {
    return absl::InvalidArgumentError("POOL_DROPPED for a chunk that was not withdrawn");
  }
  told_.erase(told);
  reaper_.RemoveChunk(record_.get(), body.chunk);
  return absl::OkStatus();
}

}  // namespace kvarve
