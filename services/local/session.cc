#include "services/local/session.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/socket.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

using local::Type;

constexpr int kRoomPollMillis = 100;
constexpr int64_t kRoomNanos = 1'000'000;  // the same beside a mailbox
constexpr int kRingsInVain = 100, kInVainMillis = 1;
constexpr int kNoRoomMillis = 10;  // when the socket says that it has room and takes nothing

// Ends of the connection in a row that are believed. Packets may follow the first two, a BYE
// perhaps: a waiting receive may see the peer's close before its last packets, and a peer that
// closes with answers unread resets the connection, which is told before what it had sent.
constexpr int kEndsBelieved = 3;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

// Requests without an answer: an ERROR goes out only when the client numbered them.
bool IsOneWay(uint16_t type) {
  return type == static_cast<uint16_t>(Type::kRelease) ||
         type == static_cast<uint16_t>(Type::kPoolDropped) ||
         type == static_cast<uint16_t>(Type::kBye);
}

}  // namespace

Session::Session(const SessionContext& context, std::shared_ptr<SessionRecord> record)
    : options_(context.options),
      cache_(*context.cache),
      tenants_(*context.tenants),
      counters_(*context.counters),
      reaper_(*context.reaper),
      record_(std::move(record)),
      of_tenant_(counters_.Of(record_->tenant)),
      socket_(record_->socket.get()),
      outbox_(socket_, context.options.max_queued_bytes, context.options.max_stuck_nanos),
      poll_(context.options.poll_nanos),
      // Not touched before a packet is that long.
      buffer_(std::make_unique_for_overwrite<uint8_t[]>(local::kMaxMessageBytes)) {}

Session::~Session() = default;

void Session::Run() {
  if (!ServeHello()) {
    reaper_.End(record_, SessionEnd::kBye);  // it was given nothing
    return;
  }
  SetReceiveTimeout(options_.tick_nanos);
  Serve();
  const SessionEnd how = reaper_.End(record_, *end_);
  if (mailbox_ != nullptr) mailbox_->RingClient();  // it looks at its socket
  KvLog(LogLevel::kInfo, "session ended",
        {{"session", absl::StrCat(record_->id)}, {"how", std::string(SessionEndName(how))}});
}

void Session::Serve() {
  while (!end_.has_value()) {
    const Packet packet = NextPacket();
    if (!packet.empty()) ServePacket(packet);
    if (!end_.has_value()) AnnounceChunks(/*always=*/false);
  }
}

void Session::SetReceiveTimeout(int64_t nanos) {
  timeval timeout{};
  timeout.tv_sec = nanos / 1'000'000'000;
  timeout.tv_usec = nanos % 1'000'000'000 / 1000;
  if (timeout.tv_sec == 0 && timeout.tv_usec == 0) timeout.tv_usec = 1;  // 0 would be forever
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
}

Session::Packet Session::NextPacket() {
  if (!outbox_.empty() && !deaf_) {
    WaitForRoom();
    if (end_.has_value()) return Packet();
    bool came = false;
    const Packet packet = mailbox_ != nullptr ? LookAtMailbox(&came) : Packet();
    return packet.empty() ? ReceivePacket(local::Wait::kNo) : packet;
  }
  if (mailbox_ != nullptr) return AwaitMailbox();
  Packet packet;
  const bool came = poll_.Poll([&] {
    bool look = false;
    packet = ReceivePacket(local::Wait::kNo, &look);
    return look;
  });
  return came ? packet : ReceivePacket(local::Wait::kSocketTimeout);
}

Session::Packet Session::AwaitMailbox() {
  // The socket's end must be seen whatever the mailbox says: that is the client's to write. An end
  // is asked for again at once until it is believed.
  const int64_t now = Now();
  if (ends_seen_ > 0 || now >= next_look_nanos_) {
    next_look_nanos_ = now + options_.tick_nanos;
    const Packet packet = ReceivePacket(local::Wait::kNo);
    if (!packet.empty() || ends_seen_ > 0) return packet;
  }
  // One ring may have told of several things, of which the last look took the first.
  bool came = false;
  Packet packet = LookAtMailbox(&came);
  if (came) return packet;
  const auto look = [&] {
    packet = LookAtMailbox(&came);
    return came;
  };
  if (!mailbox_->client_is_here() && poll_.Poll(look)) return packet;
  if (!mailbox_->AwaitCall(options_.tick_nanos)) return Packet();
  packet = LookAtMailbox(&came);
  // A bell that rings for nothing costs a client its haste, and the host no processor.
  rings_in_vain_ = came ? 0 : rings_in_vain_ + 1;
  if (rings_in_vain_ > kRingsInVain) ::poll(nullptr, 0, kInVainMillis);
  return packet;
}

// What the client sent through the socket before a call comes before it. So the call is claimed
// first: a client that could still take it back might send a packet and post another one meanwhile.
Session::Packet Session::LookAtMailbox(bool* came) {
  claimed_ = claimed_ || mailbox_->ClaimCall();
  *came = claimed_;
  const uint32_t rings = mailbox_->rings_for_socket();
  if (rings != socket_rings_) {
    bool got = false;
    const Packet packet = ReceivePacket(local::Wait::kNo, &got);
    // Only a socket that has nothing proves that all was read that was rung for.
    if (!got) socket_rings_ = rings;
    if (got && ends_seen_ == 0) ++socket_rings_;
    *came = *came || got;
    if (got) return packet;
  }
  if (!std::exchange(claimed_, false)) return Packet();
  const absl::StatusOr<size_t> size =
      mailbox_->ReadCall(std::span(buffer_.get(), local::kMaxMessageBytes));
  answers_mailbox_ = true;
  if (size.ok()) return Packet(buffer_.get(), *size);
  NoteMalformed();
  SendError(0, size.status());
  return Packet();
}

void Session::WaitForRoom() {
  if (mailbox_ != nullptr) {
    // No descriptor tells of both, so room is asked for again and again.
    mailbox_->AwaitCall(kRoomNanos);
    CheckSent(outbox_.Flush(Now()));
    return;
  }
  pollfd poll{socket_, POLLIN | POLLOUT, 0};
  ::poll(&poll, 1, kRoomPollMillis);
  const size_t queued = outbox_.queued_bytes();
  CheckSent(outbox_.Flush(Now()));
  const bool stuck = (poll.revents & POLLOUT) != 0 && outbox_.queued_bytes() == queued;
  if (!stuck || end_.has_value()) return;
  poll.events = POLLIN;
  ::poll(&poll, 1, kNoRoomMillis);
}

Session::Packet Session::ReceivePacket(local::Wait wait, bool* came) {
  const std::span<uint8_t> buffer(buffer_.get(), local::kMaxMessageBytes);
  // Without room for descriptors: what a client attaches costs nothing here.
  const absl::StatusOr<size_t> size = local::Receive(socket_, buffer, nullptr, wait);
  if (came != nullptr) *came = !size.ok() || *size > 0;
  if (size.ok()) {
    if (*size > 0) ends_seen_ = 0;
    return buffer.first(*size);
  }
  if (absl::IsInvalidArgument(size.status())) {
    NoteMalformed();
    SendError(0, size.status());
  } else if (++ends_seen_ == kEndsBelieved) {
    end_ = SessionEnd::kHangup;
  }
  return Packet();
}

void Session::ServePacket(Packet packet) {
  const int64_t begin = Now();
  const absl::StatusOr<local::Header> header = Parsed(local::ParseHeader(packet));
  if (!header.ok()) {
    SendError(0, header.status());
    return;
  }
  const absl::Status status = Dispatch(*header, packet);
  if (!status.ok() && (!IsOneWay(header->type) || header->request != 0)) {
    SendError(header->request, status);
  }
  if (std::exchange(answers_mailbox_, false)) mailbox_->AnswerOnSocket();  // it has no answer
  NoteRequest(header->type, status.ok(), Now() - begin, packet.size());
}

absl::Status Session::Dispatch(const local::Header& header, Packet packet) {
  const uint64_t request = header.request;
  switch (static_cast<Type>(header.type)) {
    case Type::kOpenNamespace:
      return OnOpenNamespace(request, packet);
    case Type::kLookup:
      return OnLookup(request, packet);
    case Type::kAcquire:
      return OnAcquire(request, packet);
    case Type::kRelease:
      return OnRelease(packet);
    case Type::kPut:
      return OnPut(request, packet);
    case Type::kRead:
      return OnRead(request, packet);
    case Type::kTouch:
      return OnTouch(request, packet);
    case Type::kInvalidate:
      return OnInvalidate(request, packet);
    case Type::kReportCorrupt:
      return OnReportCorrupt(request, packet);
    case Type::kSync:
      return OnSync(request, packet);
    case Type::kAdmin:
      return OnAdmin(request, packet);
    case Type::kPoolDropped:
      return OnPoolDropped(packet);
    case Type::kBye:
      return OnBye(packet);
    case Type::kHello:
      return absl::FailedPreconditionError("HELLO was answered already");
    default:
      NoteMalformed();
      return absl::UnimplementedError(
          absl::StrCat("message type ", header.type, " is no request of this daemon"));
  }
}

void Session::NoteRequest(size_t type, bool ok, int64_t nanos, size_t bytes) {
  counters_.Request(type, ok, nanos);
  Counters::Add(ok ? of_tenant_.ok : of_tenant_.failed);
  if (options_.slow_request_nanos == 0 || nanos < options_.slow_request_nanos) return;
  Counters::Add(counters_.slow_requests);
  if (options_.on_slow_request) {
    options_.on_slow_request(
        {static_cast<Type>(type), nanos, record_->id, record_->process->uid, bytes});
  }
  KvLog(LogLevel::kWarning, "slow request",
        {{"type", std::string(RequestTypeName(type))},
         {"micros", absl::StrCat(nanos / 1000)},
         {"session", absl::StrCat(record_->id)},
         {"uid", absl::StrCat(record_->process->uid)},
         {"request_bytes", absl::StrCat(bytes)}});
}

void Session::Send(std::string message) {
  if (!std::exchange(answers_mailbox_, false)) return SendPacket(std::move(message));
  // Nothing may overtake what is queued for the socket.
  if (outbox_.empty() && mailbox_->Answer(message, packets_sent_)) return;
  // Told first: a client that does not wait there yet would take it for a late answer.
  mailbox_->AnswerOnSocket();
  SendPacket(std::move(message));
}

void Session::SendPacket(std::string message, Outbox::Fds fds) {
  if (end_.has_value() || deaf_) return;
  ++packets_sent_;
  CheckSent(outbox_.Send(std::move(message), std::move(fds), Now()));
}

void Session::CheckSent(const absl::Status& sent) {
  if (sent.ok()) return;
  if (absl::IsUnavailable(sent)) {
    deaf_ = true;
  } else if (absl::IsResourceExhausted(sent) || absl::IsDeadlineExceeded(sent)) {
    end_ = SessionEnd::kSlowReader;
  } else {
    KvLog(LogLevel::kError, "answer not sent", {{"why", std::string(sent.message())}});
    end_ = SessionEnd::kHangup;
  }
}

void Session::SendError(uint64_t request, const absl::Status& status) {
  Send(local::BuildError(request, status));
}

void Session::NoteMalformed() {
  Counters::Add(counters_.malformed);
  if (++malformed_ >= kMaxMalformedPerSession && !end_.has_value()) end_ = SessionEnd::kProtocol;
}

}  // namespace kvarve
