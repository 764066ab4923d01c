#include "tests/perf/redis_client.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve::perf {
namespace {

constexpr size_t kMaxTextBytes = 64 * 1024;
constexpr int kBufferBytes = 1 << 20;
constexpr size_t kMaxParts = 1024;  // of one sendmsg or recvmsg

absl::Status Errno(const char* what) {
  return absl::UnavailableError(absl::StrFormat("redis: %s: %s", what, std::strerror(errno)));
}

// Leaves out the first `bytes` of the parts.
std::span<iovec> Advance(std::span<iovec> parts, size_t bytes) {
  while (!parts.empty() && bytes >= parts[0].iov_len) {
    bytes -= parts[0].iov_len;
    parts = parts.subspan(1);
  }
  if (!parts.empty()) {
    parts[0].iov_base = static_cast<char*>(parts[0].iov_base) + bytes;
    parts[0].iov_len -= bytes;
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::Connect(const std::string& socket_path) {
  const timeval timeout{kTimeoutSeconds, 0};
  redisContext* context = redisConnectUnixWithTimeout(socket_path.c_str(), timeout);
  if (context == nullptr || context->err != 0) {
    const std::string why = context ? context->errstr : "no memory";
    if (context) redisFree(context);
    return absl::UnavailableError(absl::StrFormat("redis: %s", why));
  }
  std::unique_ptr<RedisClient> client(new RedisClient(context));
  client->text_.reserve(kMaxTextBytes);
  redisSetTimeout(context, timeout);
  ::setsockopt(context->fd, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
  ::setsockopt(context->fd, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof(kBufferBytes));
  return client;
}

RedisClient::~RedisClient() { redisFree(context_); }

void RedisClient::AddText(std::string_view text) {
  KV_CHECK(text_.size() + text.size() <= kMaxTextBytes);
  const char* at = text_.data() + text_.size();
  text_.append(text);
  if (!message_.empty() &&
      static_cast<char*>(message_.back().iov_base) + message_.back().iov_len == at) {
    message_.back().iov_len += text.size();
  } else {
    AddBytes(at, text.size());
  }
}

void RedisClient::AddBytes(const void* data, size_t size) {
  message_.push_back({const_cast<void*>(data), size});
}

absl::Status RedisClient::SendMessage() {
  std::span<iovec> parts(message_);
  absl::Status status = absl::OkStatus();
  while (!parts.empty()) {
    msghdr header{};
    header.msg_iov = parts.data();
    header.msg_iovlen = std::min(parts.size(), kMaxParts);
    const ssize_t sent = ::sendmsg(context_->fd, &header, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      status = Errno("sendmsg");
      break;
    }
    parts = Advance(parts, static_cast<size_t>(sent));
  }
  message_.clear();
  text_.clear();
  return status;
}

absl::Status RedisClient::Receive(std::span<iovec> parts, size_t bytes) {
  while (bytes > 0) {
    msghdr header{};
    header.msg_iov = parts.data();
    header.msg_iovlen = std::min(parts.size(), kMaxParts);
    const ssize_t got = ::recvmsg(context_->fd, &header, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Errno("recvmsg");
    bytes -= static_cast<size_t>(got);
    parts = Advance(parts, static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::Status RedisClient::Put(std::span<const BlockKey> keys,
                              std::span<const std::byte* const> sources, size_t block_bytes) {
  const bool many = keys.size() > 1;
  AddText(absl::StrFormat("*%d\r\n$%d\r\n%s\r\n", 1 + 2 * keys.size(), many ? 4 : 3,
                          many ? "MSET" : "SET"));
  const std::string length = absl::StrFormat("\r\n$%d\r\n", block_bytes);
  for (size_t i = 0; i < keys.size(); ++i) {
    AddText("$32\r\n");
    AddText({reinterpret_cast<const char*>(keys[i].bytes.data()), BlockKey::kMaxBytes});
    AddText(length);
    AddBytes(sources[i], block_bytes);
    AddText("\r\n");
  }
  KV_RETURN_IF_ERROR(SendMessage());
  char answer[5] = {};
  iovec part{answer, sizeof(answer)};
  KV_RETURN_IF_ERROR(Receive({&part, 1}, sizeof(answer)));
  if (std::memcmp(answer, "+OK\r\n", sizeof(answer)) != 0)
    return absl::DataLossError("redis: not stored");
  return absl::OkStatus();
}

absl::Status RedisClient::Get(std::span<const BlockKey> keys,
                              std::span<std::byte* const> destinations, size_t block_bytes) {
  const bool many = keys.size() > 1;
  AddText(absl::StrFormat("*%d\r\n$%d\r\n%s\r\n", 1 + keys.size(), many ? 4 : 3,
                          many ? "MGET" : "GET"));
  for (const BlockKey& key : keys) {
    AddText("$32\r\n");
    AddText({reinterpret_cast<const char*>(key.bytes.data()), BlockKey::kMaxBytes});
    AddText("\r\n");
  }
  KV_RETURN_IF_ERROR(SendMessage());

  // "*32\r\n", then "$262144\r\n", the value and "\r\n" of each.
  const std::string count = many ? absl::StrFormat("*%d\r\n", keys.size()) : "";
  const std::string length = absl::StrFormat("$%d\r\n", block_bytes);
  const size_t frame_bytes = length.size() + 2;
  std::string frames(count.size() + keys.size() * frame_bytes, '\0');
  std::vector<iovec> parts;
  char* frame = frames.data();
  if (many) parts.push_back({frame, count.size()});
  frame += count.size();
  for (std::byte* destination : destinations) {
    parts.push_back({frame, length.size()});
    parts.push_back({destination, block_bytes});
    parts.push_back({frame + length.size(), 2});
    frame += frame_bytes;
  }
  KV_RETURN_IF_ERROR(Receive(parts, frames.size() + keys.size() * block_bytes));
  std::string expected = count;
  for (size_t i = 0; i < keys.size(); ++i) expected += length + "\r\n";
  if (frames != expected) return absl::DataLossError("redis: a value is missing");
  return absl::OkStatus();
}

absl::Status RedisClient::FlushAll() {
  auto* reply = static_cast<redisReply*>(redisCommand(context_, "FLUSHALL SYNC"));
  if (reply == nullptr)
    return absl::UnavailableError(absl::StrFormat("redis: %s", context_->errstr));
  freeReplyObject(reply);
  return absl::OkStatus();
}

std::string RedisClient::Version() {
  auto* reply = static_cast<redisReply*>(redisCommand(context_, "INFO server"));
  std::string version = "unknown";
  if (reply != nullptr && reply->type == REDIS_REPLY_STRING) {
    const std::string_view text(reply->str, reply->len);
    const std::string_view field = "redis_version:";
    const size_t at = text.find(field);
    if (at != std::string_view::npos) {
      version = text.substr(at + field.size(), text.find('\r', at) - at - field.size());
    }
  }
  if (reply != nullptr) freeReplyObject(reply);
  return version;
}

}  // namespace kvarve::perf
