#include "client/cpp/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/socket.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {

using local::Header;
using local::Type;

namespace {

constexpr size_t kSendBufferBytes = 1 << 20;
// What a sequenced packet costs of SO_SNDBUF beside its bytes.
constexpr size_t kPacketOverheadBytes = 64;
// SO_RCVTIMEO counts in ticks of the kernel, up to 10 ms: the last part of a wait is polled.
constexpr int64_t kPolledPartNanos = 12'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

absl::Status Protocol(const char* what) {
  return absl::UnavailableError(absl::StrCat("kvarved sent ", what));
}

// Waits for `events` on `fd`. False: not by the deadline, or `cancel_fd` became readable.
bool PollUntil(int fd, short events, int64_t deadline_nanos, int cancel_fd) {
  pollfd polled[2] = {{fd, events, 0}, {cancel_fd, POLLIN, 0}};
  while (true) {
    const int64_t left = deadline_nanos - Now();
    if (left <= 0) return false;
    const timespec wait = {left / 1'000'000'000, left % 1'000'000'000};
    const int ready = ::ppoll(polled, cancel_fd >= 0 ? 2 : 1, &wait, nullptr);
    if (ready < 0 && errno != EINTR) return false;
    if (ready > 0) return polled[1].revents == 0;
  }
}

absl::Status ConnectError(const std::string& path) {
  const char* hint = "";
  switch (errno) {
    case ENOENT:
      hint = "; no such socket: is kvarved running, and is the endpoint its socket?";
      break;
    case ECONNREFUSED:
      hint = "; the socket is there, but no kvarved listens: start it";
      break;
    case EACCES:
    case EPERM:
      hint = "; this user may not: it needs the socket's group (kvarve)";
      break;
    case EAGAIN:
      hint = "; kvarved does not accept connections now";
      break;
  }
  return absl::UnavailableError(
      absl::StrCat("connect to ", path, ": ", std::strerror(errno), hint));
}

absl::StatusOr<ForkClosedSocket> Dial(const Endpoint& endpoint) {
  ForkClosedSocket socket = ForkClosedSocket::Open(AF_UNIX, SOCK_SEQPACKET);
  if (!socket.valid()) {
    return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, endpoint.path.data(), endpoint.path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ConnectError(endpoint.path);
  }
  return socket;
}

}  // namespace

Connection::Connection(ForkClosedSocket socket, std::shared_ptr<Outbox> outbox,
                       const Params& params)
    : socket_(std::move(socket)),
      outbox_(std::move(outbox)),
      session_(std::make_shared<Session>()),
      observer_(params.memory),
      pools_(outbox_, session_, observer_),
      buffer_(local::kMaxMessageBytes),
      poll_(params.poll_nanos) {}

Connection::~Connection() {
  // A forked child has no such mapping.
  if (stamp_.InChild()) static_cast<void>(mailbox_.release());
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Connect(const Params& params,
                                                                std::shared_ptr<Outbox> outbox) {
  KV_ASSIGN_OR_RETURN(ForkClosedSocket socket, Dial(params.endpoint));
  const size_t send_buffer = local::RaiseSendBuffer(socket.get(), kSendBufferBytes);
  std::unique_ptr<Connection> connection(
      new Connection(std::move(socket), std::move(outbox), params));
  const absl::Status opened = connection->Open(params, send_buffer);
  if (!opened.ok()) {
    connection->Shutdown();
    return opened;
  }
  return connection;
}

absl::Status Connection::Open(const Params& params, size_t send_buffer_bytes) {
  const int64_t deadline = Now() + params.timeout_nanos;
  local::Hello hello = params.hello;
  hello.body.send_buffer_bytes = static_cast<uint32_t>(send_buffer_bytes);
  const uint64_t request = NextRequest();
  // A daemon that refuses a process says why and closes, perhaps before it got HELLO: then sending
  // fails, or the first receive tells of a reset, and the reason can be read all the same.
  const absl::Status sent = SendBy(local::BuildHello(hello, request), deadline);
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  absl::StatusOr<std::span<const uint8_t>> received = NextPacket(deadline, params.cancel_fd);
  if (!received.ok()) received = NextPacket(deadline, params.cancel_fd);
  if (!received.ok()) return received.status();
  const std::span<const uint8_t> packet = *received;
  if (packet.empty()) {
    Leave();  // given up; what the daemon made for HELLO meanwhile is given back
    return absl::UnavailableError("kvarved does not answer HELLO");
  }
  const absl::StatusOr<Header> header = local::ParseHeader(packet);
  if (!header.ok()) return Protocol("no answer to HELLO");
  if (header->type == static_cast<uint16_t>(Type::kError)) return local::ParseError(packet);
  if (header->request != request) return Protocol("no answer to HELLO");
  if (header->type != static_cast<uint16_t>(Type::kWelcome)) return Protocol("no WELCOME");
  return TakeWelcome(packet, hello.namespaces.size(), send_buffer_bytes);
}

absl::Status Connection::TakeWelcome(std::span<const uint8_t> packet, size_t namespaces,
                                     size_t send_buffer_bytes) {
  absl::StatusOr<local::Welcome> welcome = local::ParseWelcome(packet);
  if (!welcome.ok()) return Protocol("a WELCOME that does not parse");
  welcome_ = std::move(*welcome);
  const local::WelcomeBody& body = welcome_.body;
  if (body.version < local::kVersionMin || body.version > local::kVersionMax) {
    return absl::FailedPreconditionError(absl::StrCat(
        "kvarved ", welcome_.daemon_version, " speaks version ", body.version,
        " of the data plane, this client ", local::kVersionMin, " to ", local::kVersionMax));
  }
  if (welcome_.namespaces.size() != namespaces) return Protocol("other namespaces");
  if (body.max_keys == 0 || body.max_blocks == 0) return Protocol("a WELCOME with empty limits");
  const size_t wanted_fds = (body.staging_bytes > 0 ? 1 : 0) + (body.mailbox_bytes > 0 ? 1 : 0);
  if (fds_.size() != wanted_fds) return Protocol("a WELCOME without its memory");
  if (body.staging_bytes > 0) {
    absl::StatusOr<std::shared_ptr<StagingMemory>> staging =
        StagingMemory::Map(fds_[0].get(), body.staging_bytes, observer_);
    if (!staging.ok()) return absl::UnavailableError(staging.status().message());
    staging_ = std::move(*staging);
  }
  if (body.mailbox_bytes > 0) {
    if (body.mailbox_bytes != local::Mailbox::kBytes) return Protocol("a mailbox of another form");
    absl::StatusOr<std::unique_ptr<local::Mailbox>> mailbox =
        local::Mailbox::Map(fds_.back().get());
    if (!mailbox.ok()) return absl::UnavailableError(mailbox.status().message());
    mailbox_ = *std::move(mailbox);
  }
  const size_t sendable = send_buffer_bytes - std::min(send_buffer_bytes, kPacketOverheadBytes);
  max_message_bytes_ =
      std::min({sendable, size_t{body.max_message_bytes}, local::kMaxMessageBytes});
  fds_.clear();
  packets_taken_ = 0;
  session_->id = body.session;
  session_->incarnation = body.incarnation;
  std::memcpy(session_->token.data(), body.session_token, session_->token.size());
  // From here on a caller waits in the receive itself.
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
  return absl::OkStatus();
}

size_t Connection::MaxKeys(uint32_t key_bytes, size_t extra_bytes, size_t limit) const {
  constexpr size_t kFixed = sizeof(Header) + sizeof(local::KeysBody);
  if (max_message_bytes_ <= kFixed) return 0;
  return std::min(limit, (max_message_bytes_ - kFixed) / (key_bytes + extra_bytes));
}

void Connection::SetReceiveTimeout(int64_t timeout_nanos) {
  if (timeout_nanos == receive_timeout_nanos_) return;
  const timeval timeout = {timeout_nanos / 1'000'000'000, timeout_nanos / 1000 % 1'000'000};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  receive_timeout_nanos_ = timeout_nanos;
}

absl::StatusOr<std::span<const uint8_t>> Connection::TakePacket(bool wait) {
  fds_.clear();
  KV_ASSIGN_OR_RETURN(const size_t size,
                      local::Receive(socket_.get(), buffer_, &fds_,
                                     wait ? local::Wait::kSocketTimeout : local::Wait::kNo));
  if (size > 0) ++packets_taken_;
  return std::span<const uint8_t>(buffer_).first(size);
}

absl::StatusOr<std::span<const uint8_t>> Connection::NextPacket(int64_t deadline_nanos,
                                                                int cancel_fd) {
  while (true) {
    KV_ASSIGN_OR_RETURN(const std::span<const uint8_t> packet, TakePacket(false));
    if (!packet.empty()) return packet;
    if (!PollUntil(socket_.get(), POLLIN, deadline_nanos, cancel_fd)) return packet;
  }
}

absl::Status Connection::SendBy(std::string_view message, int64_t deadline_nanos) {
  while (true) {
    const absl::Status sent = SendPacket(message);
    if (sent.code() != absl::StatusCode::kResourceExhausted) return sent;
    if (!PollUntil(socket_.get(), POLLOUT, deadline_nanos, -1)) {
      return absl::DeadlineExceededError("kvarved does not read its messages");
    }
  }
}

absl::Status Connection::SendPacket(std::string_view message) {
  absl::Status sent = local::Send(socket_.get(), message);
  if (sent.ok() && mailbox_ != nullptr) mailbox_->RingForSocket();
  return sent;
}

absl::Status Connection::Broken(const absl::Status& cause) {
  cause_ = std::string(ToStd(cause.message()));
  Shutdown();
  return Ended();
}

absl::Status Connection::Garbage(std::string_view what) {
  return Broken(absl::UnavailableError(absl::StrCat("kvarved sent ", ToAbsl(what))));
}

absl::StatusOr<std::span<const uint8_t>> Connection::Call(std::string_view message, Type expected,
                                                          int64_t timeout_nanos,
                                                          std::shared_ptr<StagingRegion> region) {
  timed_out_ = false;
  if (broken_) return Ended();
  const int64_t deadline = Now() + timeout_nanos;
  uint64_t request = 0;
  std::memcpy(&request, message.data() + offsetof(Header, request), sizeof(request));
  const bool by_mailbox =
      mailbox_ != nullptr && message.size() <= local::Mailbox::kMaxMessageBytes && FreeMailbox();
  if (broken_) return Ended();
  bool withdrawn = false;
  absl::StatusOr<std::span<const uint8_t>> answer =
      by_mailbox ? CallByMailbox(message, request, expected, deadline, &withdrawn)
                 : CallBySocket(message, request, expected, timeout_nanos, deadline, &withdrawn);
  if (timed_out_ && !withdrawn && region != nullptr) {
    unanswered_.emplace(request, std::move(region));
  }
  return answer;
}

absl::StatusOr<std::span<const uint8_t>> Connection::CallBySocket(std::string_view message,
                                                                  uint64_t request, Type expected,
                                                                  int64_t timeout_nanos,
                                                                  int64_t deadline_nanos,
                                                                  bool* withdrawn) {
  const absl::Status sent = SendBy(message, deadline_nanos);
  timed_out_ = *withdrawn = sent.code() == absl::StatusCode::kDeadlineExceeded;
  if (sent.code() == absl::StatusCode::kUnavailable) return Broken(sent);
  if (!sent.ok()) return sent;
  const int64_t unpolled = timeout_nanos - kPolledPartNanos;
  if (unpolled > 0) SetReceiveTimeout(unpolled);
  return Await(request, expected, deadline_nanos, /*wait=*/unpolled > 0);
}

absl::StatusOr<std::span<const uint8_t>> Connection::Await(uint64_t request, Type expected,
                                                           int64_t deadline_nanos, bool wait) {
  while (true) {
    absl::StatusOr<std::span<const uint8_t>> packet = std::span<const uint8_t>();
    const bool came = poll_.Poll([&] {
      packet = TakePacket(false);
      return !packet.ok() || !packet->empty();
    });
    if (!came) packet = wait ? TakePacket(true) : NextPacket(deadline_nanos, -1);
    if (!packet.ok()) return Broken(packet.status());
    if (packet->empty()) {
      if (!wait) return NoAnswer();
      wait = false;
      continue;
    }
    wait = false;
    absl::StatusOr<std::span<const uint8_t>> answer = AnswerIn(*packet, request, expected);
    if (!answer.ok() || !answer->empty()) return answer;
  }
}

absl::Status Connection::Ended() const {
  return absl::UnavailableError(
      absl::StrCat("the connection to kvarved ended", cause_.empty() ? "" : ": ", cause_));
}

absl::Status Connection::NoAnswer() {
  timed_out_ = true;
  return absl::DeadlineExceededError("kvarved did not answer in time");
}

absl::StatusOr<std::span<const uint8_t>> Connection::AnswerIn(std::span<const uint8_t> packet,
                                                              uint64_t request, Type expected) {
  const absl::StatusOr<Header> header = local::ParseHeader(packet);
  if (!header.ok()) return Broken(header.status());
  if (header->request != request) {
    const absl::Status taken = TakeOther(*header, packet);
    if (!taken.ok()) return Broken(taken);
    return std::span<const uint8_t>();
  }
  if (header->type == static_cast<uint16_t>(Type::kError)) return local::ParseError(packet);
  if (header->type != static_cast<uint16_t>(expected)) {
    return Broken(Protocol("an answer of another type"));
  }
  return packet;
}

absl::Status Connection::TakeOther(const Header& header, std::span<const uint8_t> packet) {
  switch (static_cast<Type>(header.type)) {
    case Type::kPoolAdd: {
      local::PoolAddBody body;
      KV_RETURN_IF_ERROR(local::ParseBody(packet, &body));
      if (fds_.size() != 1) return Protocol("a chunk without its memory");
      const absl::Status added = pools_.Add(body.chunk, body.bytes, fds_[0].get());
      fds_.clear();  // it would keep the memory beyond the mapping
      // Without address space the chunk stays unknown: its blocks are misses here.
      return added.code() == absl::StatusCode::kInvalidArgument ? added : absl::OkStatus();
    }
    case Type::kPoolDrop: {
      local::PoolDropBody body;
      KV_RETURN_IF_ERROR(local::ParseBody(packet, &body));
      pools_.Drop(body.chunk);
      return absl::OkStatus();
    }
    default:
      if (header.request == 0 && header.type == static_cast<uint16_t>(Type::kError)) {
        return local::ParseError(packet);  // of a message that the daemon could not read
      }
      if (header.request == 0 || header.request > last_request_) {
        return Protocol("an answer to no request");
      }
      GiveBackLate(header, packet);
      return absl::OkStatus();
  }
}

absl::Status Connection::TakeUnawaited(std::span<const uint8_t> packet) {
  const absl::StatusOr<Header> header = local::ParseHeader(packet);
  const absl::Status taken = header.ok() ? TakeOther(*header, packet) : header.status();
  return taken.ok() ? taken : Broken(taken);
}

void Connection::GiveBackLate(const Header& header, std::span<const uint8_t> packet) {
  unanswered_.erase(header.request);
  if (header.type == static_cast<uint16_t>(Type::kGrant)) {
    local::GrantBody body;
    if (local::ParseBody(packet, &body).ok()) outbox_->EndLease(session_.get(), body.lease);
  } else if (header.type == static_cast<uint16_t>(Type::kLookupReply)) {
    local::LookupReplyBody body;
    if (local::ParseBody(packet, &body).ok()) outbox_->EndLease(session_.get(), body.hold);
  }
}

absl::Status Connection::SendOnly(std::string_view message) {
  if (broken_) return Ended();
  const absl::Status sent = SendPacket(message);
  if (sent.code() == absl::StatusCode::kUnavailable) return Broken(sent);
  return sent;
}

bool Connection::Drain() {
  const bool late = TakeLateAnswer();
  return DrainSocket() || late;
}

bool Connection::DrainSocket() {
  bool answered = false;
  for (size_t i = 0; i < kMaxPacketsPerDrain && !broken_; ++i) {
    const absl::StatusOr<std::span<const uint8_t>> packet = TakePacket(false);
    if (packet.ok() && packet->empty()) break;
    const absl::StatusOr<Header> header =
        packet.ok() ? local::ParseHeader(*packet) : absl::StatusOr<Header>(packet.status());
    const absl::Status taken = header.ok() ? TakeOther(*header, *packet) : header.status();
    if (!taken.ok()) {
      Broken(taken).IgnoreError();
      break;
    }
    answered = answered || header->request != 0;
  }
  return answered;
}

void Connection::Leave() {
  SendPacket(std::move(local::Builder(Type::kBye, 0).Add(local::ByeBody())).Finish()).IgnoreError();
  Shutdown();
}

void Connection::Shutdown() {
  if (broken_) return;
  broken_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (mailbox_ != nullptr && !stamp_.InChild()) {
    mailbox_->Withdraw();
    mailbox_->RingForSocket();
  }
  fds_.clear();
  pools_.Clear();
  // What is unanswered stays busy as long as anybody can stage here: the daemon may still read it.
}

}  // namespace kvarve::client
