#include "services/local/testing/raw_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/local/socket.h"
#include "storage/base/status_macros.h"
#include "storage/testing/block_generator.h"

namespace kvarve::testing {
namespace {

using local::Builder;
using local::Type;

constexpr int kPatienceMillis = 20'000;

}  // namespace

std::string RandomPacket(SeededRandom* random) {
  std::string packet(random->Below(400) + 1, '\0');
  for (char& byte : packet) byte = static_cast<char>(random->OneIn(2) ? 0 : random->Next());
  if (packet.size() >= sizeof(local::Header) && !random->OneIn(8)) {
    local::Header header;
    header.type = static_cast<uint16_t>(random->Below(31));
    header.body_bytes = static_cast<uint32_t>(packet.size() - sizeof(header));
    header.request = random->Next();
    std::memcpy(packet.data(), &header, sizeof(header));
  }
  return packet;
}

local::Header Packet::header() const {
  local::Header header;
  KV_CHECK(bytes.size() >= sizeof(header));
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

RawClient::RawClient(const std::string& path)
    : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KV_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  KV_CHECK(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  local::RaiseSendBuffer(socket_.get(), 2 * local::kMaxMessageBytes);
}

RawClient::~RawClient() {
  if (!staging_.empty()) ::munmap(staging_.data(), staging_.size());
  for (const auto& [id, chunk] : chunks_) {
    ::munmap(const_cast<std::byte*>(chunk.data()), chunk.size());
  }
}

bool RawClient::TrySend(std::string_view message) {
  const bool sent = ::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) >= 0;
  if (mailbox_ != nullptr) mailbox_->RingForSocket();
  return sent;
}

void RawClient::Send(std::string_view message) { KV_CHECK(TrySend(message)); }

std::optional<Packet> RawClient::Receive() {
  pollfd poll{socket_.get(), POLLIN, 0};
  KV_CHECK(::poll(&poll, 1, kPatienceMillis) == 1);
  Packet packet;
  packet.bytes.resize(local::kMaxMessageBytes);
  const auto size = local::Receive(socket_.get(), packet.bytes, &packet.fds);
  if (!size.ok() || *size == 0) return std::nullopt;
  packet.bytes.resize(*size);
  ++packets_;
  return packet;
}

std::optional<Packet> RawClient::CallByMailbox(std::string_view message) {
  constexpr int64_t kLookNanos = 1'000'000;
  mailbox_->Post(message);
  for (int looks = 0; !mailbox_->has_answer(); ++looks) {
    KV_CHECK(looks < kPatienceMillis);
    mailbox_->AwaitAnswer(kLookNanos);
    char byte;
    if (::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return std::nullopt;
  }
  while (mailbox_->has_answer_here() && packets_ < mailbox_->packets_before_answer()) {
    std::optional<Packet> packet = Receive();
    KV_CHECK(packet.has_value());
    TakeIn(*std::move(packet));
  }
  Packet packet;
  packet.bytes.resize(local::Mailbox::kMaxMessageBytes);
  const absl::StatusOr<size_t> size = mailbox_->TakeAnswer(packet.bytes);
  KV_CHECK(size.ok());
  packet.bytes.resize(*size);
  if (*size == 0) return std::nullopt;
  return packet;
}

bool RawClient::ReceiveEnd() {
  while (Receive().has_value()) {
  }
  return true;
}

absl::StatusOr<Packet> RawClient::Call(std::string_view message) {
  local::Header sent;
  KV_CHECK(message.size() >= sizeof(sent));
  std::memcpy(&sent, message.data(), sizeof(sent));
  const bool by_mailbox = mailbox_ != nullptr && mailbox_->is_free() &&
                          message.size() <= local::Mailbox::kMaxMessageBytes;
  if (!by_mailbox) TrySend(message);  // a daemon that refuses says why before it closes
  std::optional<Packet> answer = by_mailbox ? CallByMailbox(message) : std::nullopt;
  while (true) {
    std::optional<Packet> packet = answer.has_value() ? std::move(answer) : Receive();
    answer = std::nullopt;
    if (!packet.has_value()) return absl::UnavailableError("closed");
    const Type type = packet->type();
    if (type == Type::kPoolAdd || type == Type::kPoolDrop) {
      TakeIn(*std::move(packet));
      continue;
    }
    if (type == Type::kError) return local::ParseError(packet->bytes);
    KV_CHECK(packet->header().request == sent.request);
    return *std::move(packet);
  }
}

void RawClient::TakeIn(Packet packet) {
  if (packet.type() == Type::kPoolDrop) {
    local::PoolDropBody body;
    KV_CHECK(local::ParseBody(packet.bytes, &body).ok());
    dropped_.push_back(body.chunk);
    return;
  }
  local::PoolAddBody body;
  KV_CHECK(local::ParseBody(packet.bytes, &body).ok());
  KV_CHECK(packet.fds.size() == 1);
  void* base = ::mmap(nullptr, body.bytes, PROT_READ, MAP_SHARED, packet.fds[0].get(), 0);
  KV_CHECK(base != MAP_FAILED);
  KV_CHECK(
      chunks_.emplace(body.chunk, std::span(static_cast<std::byte*>(base), body.bytes)).second);
}

absl::StatusOr<local::Welcome> RawClient::Hello(const local::Hello& hello) {
  local::Hello mine = hello;
  if (std::getenv("KVARVE_TEST_MAILBOX") != nullptr) mine.body.flags |= local::kTakesMailbox;
  KV_ASSIGN_OR_RETURN(Packet packet, Call(local::BuildHello(mine, NextRequest())));
  KV_ASSIGN_OR_RETURN(local::Welcome welcome, local::ParseWelcome(packet.bytes));
  const bool has_staging = welcome.body.staging_bytes > 0;
  const bool has_mailbox = welcome.body.mailbox_bytes > 0;
  KV_CHECK(packet.fds.size() == (has_staging ? 1u : 0u) + (has_mailbox ? 1u : 0u));
  packets_ = 0;
  if (has_mailbox) {
    KV_CHECK((mine.body.flags & local::kTakesMailbox) != 0);
    mailbox_fd_ = std::move(packet.fds.back());
    mailbox_ = local::Mailbox::Map(mailbox_fd_.get()).value();
  }
  if (has_staging) {
    void* base = ::mmap(nullptr, welcome.body.staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        packet.fds[0].get(), 0);
    KV_CHECK(base != MAP_FAILED);
    staging_ = {static_cast<std::byte*>(base), welcome.body.staging_bytes};
  }
  return welcome;
}

absl::StatusOr<local::Welcome> RawClient::Hello(const std::vector<NamespaceDescriptor>& namespaces,
                                                uint64_t staging_bytes, std::string engine_id) {
  local::Hello hello;
  hello.body.send_buffer_bytes = 4 * local::kMaxMessageBytes;
  hello.body.staging_bytes = staging_bytes;
  hello.engine_id = std::move(engine_id);
  hello.client_name = "raw";
  hello.namespaces = namespaces;
  for (const NamespaceDescriptor& ns : namespaces) hello.digests.push_back(DigestOf(ns));
  return Hello(hello);
}

absl::StatusOr<local::NamespaceOpenedBody> RawClient::Open(const NamespaceDescriptor& descriptor) {
  const local::OpenNamespace open{descriptor, DigestOf(descriptor)};
  KV_ASSIGN_OR_RETURN(const Packet packet, Call(local::BuildOpenNamespace(open, NextRequest())));
  local::NamespaceOpenedBody body;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &body));
  return body;
}

namespace {

local::KeysBody BodyFor(uint32_t ns, std::span<const BlockKey> keys) {
  local::KeysBody body;
  body.ns = ns;
  body.keys = static_cast<uint32_t>(keys.size());
  body.key_bytes = BlockKey::kMaxBytes;
  return body;
}

std::string KeysMessage(Type type, uint64_t request, const local::KeysBody& body,
                        std::span<const BlockKey> keys, std::span<const uint64_t> extras = {}) {
  Builder builder(type, request);
  builder.Add(body).AddKeys(keys, body.key_bytes).AddBytes(extras.data(), extras.size_bytes());
  return std::move(builder).Finish();
}

}  // namespace

absl::StatusOr<local::LookupReplyBody> RawClient::Lookup(uint32_t ns,
                                                         std::span<const BlockKey> keys,
                                                         uint32_t hold_ms) {
  local::KeysBody body = BodyFor(ns, keys);
  body.hold_ms = hold_ms;
  KV_ASSIGN_OR_RETURN(const Packet packet,
                      Call(KeysMessage(Type::kLookup, NextRequest(), body, keys)));
  local::LookupReplyBody reply;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &reply));
  return reply;
}

absl::StatusOr<GrantReply> RawClient::Acquire(uint32_t ns, std::span<const BlockKey> keys) {
  KV_ASSIGN_OR_RETURN(const Packet packet,
                      Call(KeysMessage(Type::kAcquire, NextRequest(), BodyFor(ns, keys), keys)));
  GrantReply reply;
  std::span<const uint8_t> items;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &reply.body, &items));
  for (size_t i = 0; i < reply.body.blocks; ++i) {
    reply.items.push_back(local::ItemAt<local::GrantItem>(items, i));
  }
  return reply;
}

void RawClient::Release(std::span<const uint64_t> leases) {
  Builder builder(Type::kRelease, 0);
  builder.Add(local::ReleaseBody{static_cast<uint32_t>(leases.size()), 0})
      .AddBytes(leases.data(), leases.size_bytes());
  Send(std::move(builder).Finish());
}

absl::StatusOr<std::vector<uint8_t>> RawClient::PutBlocks(uint32_t ns, uint64_t block_bytes,
                                                          std::span<const BlockKey> keys) {
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < keys.size(); ++i) {
    KV_CHECK((i + 1) * block_bytes <= staging_.size());
    offsets.push_back(i * block_bytes);
    FillBlock(0, keys[i], staging_.subspan(offsets[i], block_bytes));
  }
  return Put(BodyFor(ns, keys), keys, offsets);
}

absl::StatusOr<std::vector<uint8_t>> RawClient::Put(const local::KeysBody& body,
                                                    std::span<const BlockKey> keys,
                                                    std::span<const uint64_t> offsets) {
  KV_ASSIGN_OR_RETURN(const Packet packet,
                      Call(KeysMessage(Type::kPut, NextRequest(), body, keys, offsets)));
  local::PutReplyBody reply;
  std::span<const uint8_t> results;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &reply, &results));
  return std::vector<uint8_t>(results.begin(), results.end());
}

absl::StatusOr<std::vector<uint64_t>> RawClient::Read(uint32_t ns, std::span<const BlockKey> keys,
                                                      std::span<const uint64_t> offsets) {
  KV_ASSIGN_OR_RETURN(const Packet packet, Call(KeysMessage(Type::kRead, NextRequest(),
                                                            BodyFor(ns, keys), keys, offsets)));
  local::ReadReplyBody reply;
  std::span<const uint8_t> items;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &reply, &items));
  std::vector<uint64_t> checksums;
  for (size_t i = 0; i < reply.blocks; ++i) checksums.push_back(local::ItemAt<uint64_t>(items, i));
  return checksums;
}

absl::StatusOr<uint64_t> RawClient::Count(Builder& message) {
  KV_ASSIGN_OR_RETURN(const Packet packet, Call(std::move(message).Finish()));
  local::CountReplyBody reply;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &reply));
  return reply.count;
}

absl::StatusOr<uint64_t> RawClient::Touch(uint32_t ns, std::span<const BlockKey> keys,
                                          uint64_t request_id) {
  local::KeysBody body = BodyFor(ns, keys);
  body.request_id = request_id;
  return Count(Builder(Type::kTouch, NextRequest()).Add(body).AddKeys(keys, body.key_bytes));
}

absl::StatusOr<uint64_t> RawClient::Invalidate(uint32_t ns, std::span<const BlockKey> keys) {
  const local::InvalidateBody body{ns, static_cast<uint32_t>(keys.size()), BlockKey::kMaxBytes, 0};
  return Count(Builder(Type::kInvalidate, NextRequest()).Add(body).AddKeys(keys, body.key_bytes));
}

absl::StatusOr<uint64_t> RawClient::ReportCorrupt(uint32_t ns, std::span<const BlockKey> keys) {
  const local::KeysBody body = BodyFor(ns, keys);
  return Count(
      Builder(Type::kReportCorrupt, NextRequest()).Add(body).AddKeys(keys, body.key_bytes));
}

absl::StatusOr<uint64_t> RawClient::Sync() {
  Builder builder(Type::kSync, NextRequest());
  return Count(builder);
}

absl::StatusOr<std::string> RawClient::Admin(std::string_view json) {
  Builder builder(Type::kAdmin, NextRequest());
  builder.Add(local::AdminBody{static_cast<uint32_t>(json.size()), 0})
      .AddBytes(json.data(), json.size());
  KV_ASSIGN_OR_RETURN(const Packet packet, Call(std::move(builder).Finish()));
  local::AdminBody reply;
  std::span<const uint8_t> text;
  KV_RETURN_IF_ERROR(local::ParseBody(packet.bytes, &reply, &text));
  return std::string(text.begin(), text.end());
}

void RawClient::PoolDropped(uint64_t chunk) {
  const auto mapped = chunks_.find(chunk);
  if (mapped != chunks_.end()) {
    ::munmap(const_cast<std::byte*>(mapped->second.data()), mapped->second.size());
    chunks_.erase(mapped);
  }
  Builder builder(Type::kPoolDropped, 0);
  builder.Add(local::PoolDropBody{chunk});
  Send(std::move(builder).Finish());
}

void RawClient::Bye(uint64_t session, const uint8_t* token) {
  local::ByeBody body;
  body.session = session;
  if (token != nullptr) std::memcpy(body.token, token, sizeof(body.token));
  Builder builder(Type::kBye, 0);
  builder.Add(body);
  Send(std::move(builder).Finish());
}

std::span<const std::byte> RawClient::Block(const GrantReply& grant, size_t i) const {
  const auto chunk = chunks_.find(grant.items[i].chunk);
  if (chunk == chunks_.end()) return {};
  return chunk->second.subspan(grant.items[i].offset, grant.body.block_bytes);
}

}  // namespace kvarve::testing
