// A redis client at its best for blocks: values go out with sendmsg from where they lie, and come
// in with recvmsg to where they shall lie; nothing is copied or parsed on the way. hiredis opens
// the connection. Every value has the size that the constructor is told, so an answer's bytes are
// known beforehand.
//
// THREADS: one owner.  BLOCKS: for the answers, at most kTimeoutSeconds.
#ifndef KVARVE_TESTS_PERF_REDIS_CLIENT_H_
#define KVARVE_TESTS_PERF_REDIS_CLIENT_H_

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/block/block_key.h"

struct redisContext;

namespace kvarve::perf {

class RedisClient {
 public:
  static constexpr int kTimeoutSeconds = 10;

  static absl::StatusOr<std::unique_ptr<RedisClient>> Connect(const std::string& socket_path);
  ~RedisClient();

  // SET for one key, MSET for more.
  absl::Status Put(std::span<const BlockKey> keys, std::span<const std::byte* const> sources,
                   size_t block_bytes);
  // GET for one key, MGET for more. DataLoss unless all are there with this size.
  absl::Status Get(std::span<const BlockKey> keys, std::span<std::byte* const> destinations,
                   size_t block_bytes);
  absl::Status FlushAll();
  std::string Version();

 private:
  explicit RedisClient(redisContext* context) : context_(context) {}
  // Appends to the message under way.
  void AddText(std::string_view text);
  void AddBytes(const void* data, size_t size);
  absl::Status SendMessage();
  absl::Status Receive(std::span<iovec> parts, size_t bytes);

  redisContext* context_;
  std::string text_;  // the framing of the message under way; reserved, so that it stays in place
  std::vector<iovec> message_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_REDIS_CLIENT_H_
