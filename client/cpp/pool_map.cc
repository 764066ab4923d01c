#include "client/cpp/pool_map.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/sealed_memory.h"
#include "storage/base/huge_pages.h"

namespace kvarve::client {

ChunkMapping::~ChunkMapping() {
  if (data_ == nullptr || stamp_.InChild()) return;  // a child has no such mapping
  if (observer_ != nullptr) observer_->OnUnmapping(const_cast<std::byte*>(data_));
  ::munmap(const_cast<std::byte*>(data_), bytes_);
  if (dropped_.load()) outbox_->Unmapped(session_.get(), chunk_);
}

absl::Status PoolMap::Add(uint64_t chunk, uint64_t bytes, int fd) {
  if (bytes == 0 || !local::IsSealedMemory(fd, bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk, " is not sealed memory of ", bytes, " bytes"));
  }
  MutexLock lock(&mutex_);
  if (chunks_.contains(chunk)) return absl::OkStatus();
  if (chunks_.size() >= kMaxChunks) return absl::ResourceExhaustedError("too many chunks");
  // A daemon that trusts this host's processes hands out memory that can be mapped writable.
  bool is_writable = observer_ != nullptr && observer_->WantsWritableChunks();
  void* data = MAP_FAILED;
  if (is_writable) data = MapShared(fd, bytes, PROT_READ | PROT_WRITE);
  if (data == MAP_FAILED) {
    is_writable = false;
    data = MapShared(fd, bytes, PROT_READ);
  }
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mmap of a chunk of ", bytes, " bytes: ", std::strerror(errno)));
  }
  ::madvise(data, bytes, MADV_DONTFORK);
  ::madvise(data, bytes, MADV_DONTDUMP);
  std::shared_ptr<ChunkMapping> mapping(new ChunkMapping);
  mapping->data_ = static_cast<const std::byte*>(data);
  mapping->bytes_ = bytes;
  mapping->chunk_ = chunk;
  mapping->outbox_ = outbox_;
  mapping->session_ = session_;
  mapping->observer_ = observer_;
  if (observer_ != nullptr) {
    observer_->OnMapped(
        {static_cast<std::byte*>(data), bytes},
        is_writable ? HostMemoryObserver::Kind::kWritableChunk : HostMemoryObserver::Kind::kChunk);
  }
  chunks_.emplace(chunk, std::move(mapping));
  return absl::OkStatus();
}

void PoolMap::Drop(uint64_t chunk) {
  std::shared_ptr<ChunkMapping> dropped;  // unmapped after the lock
  {
    MutexLock lock(&mutex_);
    const auto found = chunks_.find(chunk);
    if (found != chunks_.end()) {
      dropped = std::move(found->second);
      chunks_.erase(found);
    }
  }
  if (dropped == nullptr) {
    outbox_->Unmapped(session_.get(),
                      chunk);  // never mapped here: the daemon waits for the answer all the same
    return;
  }
  dropped->dropped_.store(true);
}

void PoolMap::Clear() {
  std::unordered_map<uint64_t, std::shared_ptr<ChunkMapping>> cleared;
  MutexLock lock(&mutex_);
  cleared.swap(chunks_);
}

std::shared_ptr<const ChunkMapping> PoolMap::Find(uint64_t chunk) const {
  MutexLock lock(&mutex_);
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return nullptr;
  return found->second;
}

}  // namespace kvarve::client
