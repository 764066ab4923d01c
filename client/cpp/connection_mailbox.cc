// The calls of a Connection that go through its mailbox.
#include <algorithm>

#include "client/cpp/connection.h"
#include "client/local/mailbox.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {

namespace {

// A daemon that dies rings nothing. The link's watcher sees the end of the socket and does it; this
// is how long a caller waits until it looks itself. Longer than a tick of the kernel: setting a
// timer that comes before the tick costs a virtual machine 10 µs a call.
constexpr int64_t kLookNanos = 20'000'000;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

}  // namespace

absl::StatusOr<std::span<const uint8_t>> Connection::CallByMailbox(std::string_view message,
                                                                   uint64_t request,
                                                                   local::Type expected,
                                                                   int64_t deadline_nanos,
                                                                   bool* withdrawn) {
  mailbox_->Post(message);
  const auto has_answer = [this] { return mailbox_->has_answer(); };
  if (!mailbox_->daemon_is_here()) poll_.Poll(has_answer);
  while (!mailbox_->has_answer()) {
    const int64_t left = deadline_nanos - Now();
    if (left <= 0) {
      // What the daemon has not begun by now it shall not do later, behind what is sent next.
      *withdrawn = mailbox_->Withdraw();
      return NoAnswer();
    }
    mailbox_->AwaitAnswer(std::min(left, kLookNanos));
    if (mailbox_->has_answer()) break;
    absl::StatusOr<std::span<const uint8_t>> answer = LookAtSocket(request, expected);
    if (!answer.ok() || !answer->empty()) return answer;
  }
  KV_ASSIGN_OR_RETURN(const std::span<const uint8_t> packet, TakeFromMailbox());
  if (packet.empty()) return Await(request, expected, deadline_nanos, /*wait=*/false);
  absl::StatusOr<std::span<const uint8_t>> answer = AnswerIn(packet, request, expected);
  if (answer.ok() && answer->empty()) return Garbage("another request's answer in the mailbox");
  return answer;
}

// The answer may be there before the mailbox says so. What it says is then read with the next call.
absl::StatusOr<std::span<const uint8_t>> Connection::LookAtSocket(uint64_t request,
                                                                  local::Type expected) {
  for (size_t i = 0; i < kMaxPacketsPerDrain; ++i) {
    const absl::StatusOr<std::span<const uint8_t>> packet = TakePacket(/*wait=*/false);
    if (!packet.ok()) return Broken(packet.status());
    if (packet->empty()) break;
    absl::StatusOr<std::span<const uint8_t>> answer = AnswerIn(*packet, request, expected);
    if (!answer.ok() || !answer->empty()) return answer;
  }
  return std::span<const uint8_t>();
}

absl::StatusOr<std::span<const uint8_t>> Connection::TakeFromMailbox() {
  const uint32_t before =
      mailbox_->has_answer_here() ? mailbox_->packets_before_answer() : packets_taken_;
  while (static_cast<int32_t>(before - packets_taken_) > 0) {
    const absl::StatusOr<std::span<const uint8_t>> packet = TakePacket(/*wait=*/false);
    if (!packet.ok()) return Broken(packet.status());
    if (packet->empty()) return Garbage("an answer that counts packets that are not there");
    KV_RETURN_IF_ERROR(TakeUnawaited(*packet));
  }
  const absl::StatusOr<size_t> size = mailbox_->TakeAnswer(buffer_);
  if (!size.ok()) return Broken(size.status());
  return std::span<const uint8_t>(buffer_).first(*size);
}

bool Connection::TakeLateAnswer() {
  const bool is_there = !broken_ && mailbox_ != nullptr && mailbox_->has_answer();
  if (is_there) FreeMailbox();
  return is_there;
}

bool Connection::FreeMailbox() {
  if (!mailbox_->has_answer()) return mailbox_->is_free();
  const absl::StatusOr<std::span<const uint8_t>> packet = TakeFromMailbox();
  return packet.ok() && (packet->empty() || TakeUnawaited(*packet).ok());
}

}  // namespace kvarve::client
