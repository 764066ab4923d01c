#include "services/local/outbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/socket.h"

namespace kvarve {
namespace {

absl::Status SendNow(int socket, const std::string& bytes, const Outbox::Fds& fds) {
  if (fds.empty()) return local::Send(socket, bytes);
  std::vector<int> numbers;
  for (const auto& fd : fds) numbers.push_back(fd->get());
  return local::Send(socket, bytes, numbers);
}

}  // namespace

absl::Status Outbox::Send(std::string message, Fds fds, int64_t now_nanos) {
  if (queue_.empty()) {
    const absl::Status sent = SendNow(socket_, message, fds);
    if (!absl::IsResourceExhausted(sent)) return sent;
    progress_nanos_ = now_nanos;
  }
  if (queued_bytes_ + message.size() > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the client leaves ", queued_bytes_, " bytes of answers unread"));
  }
  queued_bytes_ += message.size();
  queue_.push_back({std::move(message), std::move(fds)});
  return absl::OkStatus();
}

absl::Status Outbox::Flush(int64_t now_nanos) {
  while (!queue_.empty()) {
    const Message& front = queue_.front();
    const absl::Status sent = SendNow(socket_, front.bytes, front.fds);
    if (absl::IsResourceExhausted(sent)) break;
    if (!sent.ok()) return sent;
    queued_bytes_ -= front.bytes.size();
    queue_.pop_front();
    progress_nanos_ = now_nanos;
  }
  if (!queue_.empty() && now_nanos - progress_nanos_ >= max_stuck_nanos_) {
    return absl::DeadlineExceededError("the client reads no answers");
  }
  return absl::OkStatus();
}

}  // namespace kvarve
