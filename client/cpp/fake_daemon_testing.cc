#include "client/cpp/fake_daemon_testing.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "client/local/socket.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"

namespace kvarve {

using local::Builder;
using local::Header;
using local::KeysView;
using local::Type;

UniqueFd MakeMemory(uint64_t bytes, bool sealed) {
  UniqueFd fd(::memfd_create("kvarve-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KV_CHECK(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (sealed) KV_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

namespace {

std::byte* MapShared(int fd, uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  KV_CHECK(data != MAP_FAILED);
  ::madvise(data, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

const bool kUseMailbox = std::getenv("KVARVE_TEST_MAILBOX") != nullptr;

NamespaceId IdFor(const NamespaceDigest& digest) { return IdOf(digest); }

template <typename Body>
std::string Plain(Type type, uint64_t request, const Body& body) {
  return std::move(Builder(type, request).Add(body)).Finish();
}

}  // namespace

FakeDaemon::Peer::~Peer() {
  if (staging != nullptr) ::munmap(staging, staging_bytes);
}

FakeDaemon::FakeDaemon(const std::string& path, Options options)
    : path_(path), options_(std::move(options)), chunk_id_(options_.incarnation * 10 + 1) {
  ::unlink(path_.c_str());
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KV_CHECK(path_.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path_.data(), path_.size());
  KV_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  KV_CHECK(::listen(listener_.get(), 16) == 0);
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  chunk_fd_ = MakeMemory(kChunkBytes, options_.seal);
  chunk_ = MapShared(chunk_fd_.get(), kChunkBytes);
  thread_ = std::thread([this] { Loop(); });
}

FakeDaemon::~FakeDaemon() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  KV_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  ::unlink(path_.c_str());
  ::munmap(chunk_, kChunkBytes);
}

void FakeDaemon::SetHook(Hook hook) {
  std::lock_guard<std::mutex> lock(mutex_);
  hook_ = std::move(hook);
}

void FakeDaemon::HangUp() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& peer : peers_) ::shutdown(peer->socket.get(), SHUT_RDWR);
}

void FakeDaemon::DropChunk() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& peer : peers_) {
    Reply(*peer, Plain(Type::kPoolDrop, 0, local::PoolDropBody{chunk_id_}));
  }
}

void FakeDaemon::FlipStoredByte(const BlockKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string_view bytes(reinterpret_cast<const char*>(key.bytes.data()), 32);
  for (const auto& [name, place] : blocks_) {
    if (name.ends_with(bytes)) chunk_[place.first + 17] ^= std::byte{1};
  }
}

void FakeDaemon::SetMaxStaging(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  options_.max_staging_bytes = bytes;
}

FakeDaemon::Seen FakeDaemon::seen() {
  std::lock_guard<std::mutex> lock(mutex_);
  return seen_;
}

bool FakeDaemon::WaitFor(const std::function<bool(const Seen&)>& done) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done(seen_); });
}

std::string FakeDaemon::TokenOf(uint64_t session) {
  return std::string(16, static_cast<char>('a' + session));
}

void FakeDaemon::Reply(Peer& peer, const std::string& message) {
  Header header;
  std::memcpy(&header, message.data(), std::min(message.size(), sizeof(header)));
  if (peer.call != 0 && header.request == peer.call) {
    peer.call = 0;
    if (peer.by_socket) return ReplyBySocket(peer, message);
    if (peer.mailbox->Answer(message, peer.packets)) return;
    peer.mailbox->AnswerOnSocket();
  }
  ++peer.packets;
  local::Send(peer.socket.get(), message).IgnoreError();
}

// At times the packet is seen before the word in the mailbox, at times after it.
void FakeDaemon::ReplyBySocket(Peer& peer, const std::string& message) {
  constexpr auto kLongerThanALook = std::chrono::milliseconds(50);
  const bool packet_first = ++peer.packets % 2 == 0;
  if (!packet_first) peer.mailbox->AnswerOnSocket();
  if (!packet_first) std::this_thread::sleep_for(kLongerThanALook);
  local::Send(peer.socket.get(), message).IgnoreError();
  if (packet_first) std::this_thread::sleep_for(kLongerThanALook);
  if (packet_first) peer.mailbox->AnswerOnSocket();
}

void FakeDaemon::Loop() {
  while (true) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) break;
      for (const auto& peer : peers_) polled.push_back({peer->socket.get(), POLLIN, 0});
    }
    // A mailbox rings no descriptor: it is looked at.
    ::poll(polled.data(), polled.size(), kUseMailbox ? 1 : -1);
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::unique_ptr<Peer>> alive;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (polled[i + 2].revents != 0 && !ReadOne(*peers_[i])) continue;
      if (peers_[i]->mailbox != nullptr) ReadMailbox(*peers_[i]);
      alive.push_back(std::move(peers_[i]));
    }
    peers_ = std::move(alive);
    if (polled[1].revents != 0) Accept();
    seen_.connections = static_cast<int>(peers_.size());
    changed_.notify_all();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  peers_.clear();
}

void FakeDaemon::Accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return;
  auto peer = std::make_unique<Peer>();
  peer->socket = std::move(socket);
  local::RaiseSendBuffer(peer->socket.get(), 1 << 20);
  peers_.push_back(std::move(peer));
}

bool FakeDaemon::ReadOne(Peer& peer) {
  static thread_local std::vector<uint8_t> buffer(local::kMaxMessageBytes);
  absl::StatusOr<size_t> size = local::Receive(peer.socket.get(), buffer);
  // A client that closes with answers unread resets the connection: told once, before what it had
  // sent. The daemon reads on, too.
  for (int again = 0; again < 2 && !size.ok(); ++again) {
    size = local::Receive(peer.socket.get(), buffer);
  }
  if (!size.ok()) return false;
  if (*size > 0) TakeIn(peer, std::span<const uint8_t>(buffer).first(*size), false);
  return true;
}

void FakeDaemon::ReadMailbox(Peer& peer) {
  static thread_local std::vector<uint8_t> buffer(local::Mailbox::kMaxMessageBytes);
  if (!peer.mailbox->ClaimCall()) return;
  const size_t size = peer.mailbox->ReadCall(buffer).value();
  TakeIn(peer, std::span<const uint8_t>(buffer).first(size), true);
}

void FakeDaemon::TakeIn(Peer& peer, std::span<const uint8_t> packet, bool by_mailbox) {
  const absl::StatusOr<Header> header = local::ParseHeader(packet);
  KV_CHECK(header.ok());
  if (by_mailbox) peer.call = header->request;
  ++seen_.packets[static_cast<Type>(header->type)];
  if (hook_ == nullptr || !hook_(peer, *header, packet)) Serve(peer, *header, packet);
}

void FakeDaemon::Hello(Peer& peer, const Header& header, std::span<const uint8_t> packet) {
  const absl::StatusOr<local::Hello> hello = local::ParseHello(packet);
  KV_CHECK(hello.ok());
  seen_.engine_id = hello->engine_id;
  ++seen_.hellos[hello->engine_id];
  peer.session = next_session_++;
  peer.staging_bytes = std::min(hello->body.staging_bytes, options_.max_staging_bytes);
  local::Welcome welcome;
  welcome.body = {.version = 1,
                  .incarnation = options_.incarnation,
                  .session = peer.session,
                  .staging_bytes = peer.staging_bytes,
                  .max_keys = local::kMaxKeysPerLookup,
                  .max_blocks = local::kMaxBlocksPerAcquire,
                  .max_message_bytes = local::kMaxMessageBytes};
  std::memcpy(welcome.body.session_token, TokenOf(peer.session).data(), 16);
  welcome.daemon_version = "fake";
  for (size_t i = 0; i < hello->namespaces.size(); ++i) {
    local::NamespaceOpenedBody opened;
    opened.handle = options_.first_handle + static_cast<uint32_t>(peer.namespaces.size());
    std::memcpy(opened.ns_id, IdFor(hello->digests[i]).bytes.data(), 16);
    opened.block_bytes = hello->namespaces[i].block_bytes;
    opened.key_bytes = hello->namespaces[i].key_bytes;
    peer.namespaces.push_back(hello->digests[i]);
    welcome.namespaces.push_back(opened);
  }
  if (options_.edit_welcome != nullptr) options_.edit_welcome(welcome);
  std::vector<int> fds;
  UniqueFd staging;
  if (peer.staging_bytes > 0) {
    staging = MakeMemory(peer.staging_bytes, options_.seal);
    peer.staging = MapShared(staging.get(), peer.staging_bytes);
    fds.push_back(staging.get());
  }
  UniqueFd mailbox;
  peer.by_socket = options_.answers_by_socket;
  if (kUseMailbox && (hello->body.flags & local::kTakesMailbox) != 0) {
    peer.mailbox = local::Mailbox::Create(&mailbox).value();
    welcome.body.mailbox_bytes = local::Mailbox::kBytes;
    fds.push_back(mailbox.get());
  }
  local::Send(peer.socket.get(), local::BuildWelcome(welcome, header.request), fds).IgnoreError();
  if (options_.announce) Announce(peer);
}

void FakeDaemon::Announce(Peer& peer) {
  ++peer.packets;
  const int fds[] = {chunk_fd_.get()};
  local::Send(peer.socket.get(),
              Plain(Type::kPoolAdd, 0, local::PoolAddBody{chunk_id_, kChunkBytes, 4096}), fds)
      .IgnoreError();
}

namespace {

std::string NameOf(const FakeDaemon::Peer& peer, uint32_t index, const BlockKey& key) {
  KV_CHECK(index < peer.namespaces.size());
  const NamespaceDigest& digest = peer.namespaces[index];
  std::string name(reinterpret_cast<const char*>(digest.bytes.data()), 32);
  name.append(reinterpret_cast<const char*>(key.bytes.data()), 32);
  return name;
}

}  // namespace

size_t FakeDaemon::Found(const Peer& peer, const KeysView& view) const {
  size_t found = 0;
  while (found < view.body.keys &&
         blocks_.contains(NameOf(peer, view.body.ns - options_.first_handle, view.Key(found)))) {
    ++found;
  }
  return found;
}

void FakeDaemon::Put(Peer& peer, uint64_t request, const KeysView& view) {
  Builder reply(Type::kPutReply, request);
  reply.Add(local::PutReplyBody{.blocks = view.body.keys});
  for (size_t i = 0; i < view.body.keys; ++i) {
    const std::string name = NameOf(peer, view.body.ns - options_.first_handle, view.Key(i));
    if (blocks_.contains(name)) {
      reply.Add(uint8_t{1});
      continue;
    }
    KV_CHECK(view.Extra(i) + kBlockBytes <= peer.staging_bytes);
    KV_CHECK(used_ + kBlockBytes <= kChunkBytes);
    const NamespaceId id = IdFor(peer.namespaces[view.body.ns - options_.first_handle]);
    const uint64_t seed = ChecksumSeed(id, view.Key(i), kBlockBytes);
    std::memcpy(chunk_ + used_, peer.staging + view.Extra(i), kBlockBytes);
    blocks_[name] = {used_, BlockChecksum(seed, chunk_ + used_, kBlockBytes)};
    used_ += kBlockBytes;
    reply.Add(uint8_t{0});
  }
  Reply(peer, std::move(reply).Finish());
}

void FakeDaemon::Acquire(Peer& peer, uint64_t request, const KeysView& view) {
  const uint32_t found = options_.over_cap ? 0 : static_cast<uint32_t>(Found(peer, view));
  Builder reply(Type::kGrant, request);
  reply.Add(local::GrantBody{.lease = found == 0 ? 0 : next_lease_++,
                             .incarnation = options_.incarnation,
                             .block_bytes = kBlockBytes,
                             .blocks = found,
                             .flags = options_.over_cap ? uint32_t{local::kOverLeaseCap} : 0});
  for (size_t i = 0; i < found; ++i) {
    const auto& place = blocks_.at(NameOf(peer, view.body.ns - options_.first_handle, view.Key(i)));
    reply.Add(local::GrantItem{chunk_id_, place.first, place.second});
  }
  Reply(peer, std::move(reply).Finish());
}

void FakeDaemon::Read(Peer& peer, uint64_t request, const KeysView& view) {
  const uint32_t found = static_cast<uint32_t>(Found(peer, view));
  Builder reply(Type::kReadReply, request);
  reply.Add(local::ReadReplyBody{.blocks = found});
  for (size_t i = 0; i < found; ++i) {
    const auto& place = blocks_.at(NameOf(peer, view.body.ns - options_.first_handle, view.Key(i)));
    KV_CHECK(view.Extra(i) + kBlockBytes <= peer.staging_bytes);
    std::memcpy(peer.staging + view.Extra(i), chunk_ + place.first, kBlockBytes);
    reply.Add(place.second);
  }
  Reply(peer, std::move(reply).Finish());
}

void FakeDaemon::Serve(Peer& peer, const Header& header, std::span<const uint8_t> packet) {
  const Type type = static_cast<Type>(header.type);
  const bool with_extra = type == Type::kPut || type == Type::kRead;
  KeysView keys;
  switch (type) {
    case Type::kLookup:
    case Type::kAcquire:
    case Type::kTouch:
    case Type::kReportCorrupt:
    case Type::kPut:
    case Type::kRead:
      keys = local::ParseKeys(packet, with_extra ? 1 : 0).value();
      break;
    default:
      break;
  }
  switch (type) {
    case Type::kHello:
      return Hello(peer, header, packet);
    case Type::kOpenNamespace: {
      const local::OpenNamespace open = local::ParseOpenNamespace(packet).value();
      local::NamespaceOpenedBody opened{
          .handle = options_.first_handle + static_cast<uint32_t>(peer.namespaces.size()),
          .block_bytes = open.descriptor.block_bytes,
          .key_bytes = open.descriptor.key_bytes};
      std::memcpy(opened.ns_id, IdFor(open.digest).bytes.data(), 16);
      peer.namespaces.push_back(open.digest);
      return Reply(peer, Plain(Type::kNamespaceOpened, header.request, opened));
    }
    case Type::kLookup: {
      const uint32_t found = static_cast<uint32_t>(Found(peer, keys));
      const uint64_t hold = keys.body.hold_ms > 0 && found > 0 ? next_lease_++ : 0;
      return Reply(peer, Plain(Type::kLookupReply, header.request,
                               local::LookupReplyBody{found, found, hold}));
    }
    case Type::kAcquire:
      return Acquire(peer, header.request, keys);
    case Type::kPut:
      return Put(peer, header.request, keys);
    case Type::kRead:
      return Read(peer, header.request, keys);
    case Type::kTouch:
      return Reply(
          peer, Plain(Type::kTouchReply, header.request, local::CountReplyBody{Found(peer, keys)}));
    case Type::kReportCorrupt:
      return Reply(peer,
                   Plain(Type::kReportCorruptReply, header.request, local::CountReplyBody{1}));
    case Type::kSync:
      Announce(peer);
      return Reply(peer, Plain(Type::kSyncReply, header.request, local::CountReplyBody{1}));
    case Type::kInvalidate: {
      const uint64_t count = blocks_.size();
      blocks_.clear();
      return Reply(peer,
                   Plain(Type::kInvalidateReply, header.request, local::CountReplyBody{count}));
    }
    case Type::kAdmin: {
      local::AdminBody body;
      std::span<const uint8_t> text;
      KV_CHECK(local::ParseBody(packet, &body, &text).ok());
      Builder reply(Type::kAdminReply, header.request);
      reply.Add(body).AddBytes(text.data(), text.size());
      return Reply(peer, std::move(reply).Finish());
    }
    case Type::kRelease: {
      local::ReleaseBody body;
      std::span<const uint8_t> items;
      KV_CHECK(local::ParseBody(packet, &body, &items).ok());
      for (uint32_t i = 0; i < body.leases; ++i) {
        seen_.released.push_back(local::ItemAt<uint64_t>(items, i));
      }
      return;
    }
    case Type::kBye: {
      local::ByeBody body;
      KV_CHECK(local::ParseBody(packet, &body).ok());
      seen_.byes.emplace_back(body.session,
                              std::string(reinterpret_cast<const char*>(body.token), 16));
      return;
    }
    case Type::kPoolDropped: {
      local::PoolDropBody body;
      KV_CHECK(local::ParseBody(packet, &body).ok());
      seen_.pool_dropped.push_back(body.chunk);
      return;
    }
    default:
      KV_CHECK(false);
  }
}

NamespaceDescriptor TestDescriptor(const std::string& model, uint32_t key_bytes) {
  NamespaceDescriptor descriptor;
  descriptor.model = model;
  descriptor.model_digest = "digest of " + model;
  descriptor.element_type = ElementType::kOpaque;
  descriptor.layer_count = descriptor.layer_total = 1;
  descriptor.kv_head_count = descriptor.kv_head_total = 1;
  descriptor.block_tokens = 16;
  descriptor.block_bytes = FakeDaemon::kBlockBytes;
  descriptor.key_bytes = key_bytes;
  descriptor.hash_version = "test";
  return descriptor;
}

BlockKey TestKey(uint64_t i, uint32_t key_bytes) {
  BlockKey key;
  std::mt19937_64 random(i + 1);
  for (uint32_t at = 0; at < key_bytes; ++at) key.bytes[at] = static_cast<uint8_t>(random());
  return key;
}

std::vector<BlockKey> TestKeys(uint64_t first, size_t count, uint32_t key_bytes) {
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(TestKey(first + i, key_bytes));
  return keys;
}

std::vector<std::byte> TestBlock(uint64_t i, uint64_t bytes) {
  std::vector<std::byte> block(bytes);
  std::mt19937_64 random(~i);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

}  // namespace kvarve
