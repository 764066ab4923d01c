// The daemon's memory as this process sees it: chunks mapped read-only, known by id. A View holds
// the mappings that it reads, so a chunk stays mapped as long as one lives, whatever the daemon
// does; without views it is unmapped when the daemon drops it or the connection ends. Not inherited
// by a forked child, not in core dumps.
//
// THREADS: any.  BLOCKS: for mmap and munmap.
#ifndef KVARVE_CLIENT_CPP_POOL_MAP_H_
#define KVARVE_CLIENT_CPP_POOL_MAP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "absl/status/status.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/host_memory.h"
#include "client/cpp/outbox.h"
#include "storage/base/mutex.h"

namespace kvarve::client {

// One mapped chunk; unmaps itself, and tells the daemon when it was dropped before.
class ChunkMapping {
 public:
  ~ChunkMapping();
  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  friend class PoolMap;
  ChunkMapping() = default;
  ForkStamp stamp_;
  const std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t chunk_ = 0;
  std::shared_ptr<Outbox> outbox_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<HostMemoryObserver> observer_;
  std::atomic<bool> dropped_{false};
};

class PoolMap {
 public:
  static constexpr size_t kMaxChunks = 65536;

  // `observer`, or null, is told of each mapping.
  PoolMap(std::shared_ptr<Outbox> outbox, std::shared_ptr<Session> session,
          std::shared_ptr<HostMemoryObserver> observer = nullptr)
      : outbox_(std::move(outbox)), session_(std::move(session)), observer_(std::move(observer)) {}

  // Maps a chunk; one that is known already is left alone. InvalidArgument: the memory is shorter
  // than `bytes` or could shrink (reading it could kill this process). ResourceExhausted: too many,
  // or no address space.
  absl::Status Add(uint64_t chunk, uint64_t bytes, int fd);
  // The daemon wants the chunk back: unmapped as soon as no view holds it.
  void Drop(uint64_t chunk);
  // The connection ended: what no view holds is unmapped now.
  void Clear();
  // Null when unknown.
  std::shared_ptr<const ChunkMapping> Find(uint64_t chunk) const;

 private:
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<HostMemoryObserver> observer_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<ChunkMapping>> chunks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_POOL_MAP_H_
