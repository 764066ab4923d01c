// The rung of the NVMe tier: the representation that blocks get on their way to a device, and their
// way back from whatever one they lie there in. Policies know nothing of it. Private to
// storage/cache.
//
// A block is kept in another form only where that saves a page of the device. What comes back is
// compared twice: the stored bytes with their checksum before a decoder sees them (by the log), and
// the block with its own behind it.
//
// THREADS: any.  BLOCKS: never; Encode and Finish compute (storage/codec).
#ifndef KVARVE_STORAGE_CACHE_RUNG_H_
#define KVARVE_STORAGE_CACHE_RUNG_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "storage/base/mutex.h"
#include "storage/cache/device_index.h"
#include "storage/codec/codec.h"
#include "storage/io/aligned_buffer.h"
#include "storage/segment/segment_log.h"

namespace kvarve {

// A block that is to be brought from a device into `block`.
struct StoredRead {
  DeviceIndex::Place place;
  DeviceIndex::Stored stored;
  BlockKey key;
  std::span<std::byte> block;
};

class Rung {
 public:
  explicit Rung(Representation writes) : writes_(writes) {}

  Representation writes() const { return writes_; }
  // What the superblock of a device has to say before blocks of it are written there.
  uint64_t incompat() const {
    return writes_ == Representation::kRaw ? 0 : kIncompatRepresentations;
  }

  // Gives the block the rung's form, where it has one and that is smaller; its bytes lie here,
  // then, until Told. REQUIRES: the block is raw, or was told of by Encode before.
  void Encode(const BlockLayout& layout, AppendBlock* block);
  // The log has no more use for the block's bytes.
  void Told(const AppendBlock& block);

  // Reads of one namespace, and where their stored bytes go meanwhile.
  struct Reading {
    NamespaceId ns;
    BlockLayout layout;
    std::vector<StoredRead> blocks;
    std::vector<AlignedBuffer> stored;  // as many; empty of those that are read in place
  };
  // What the log has to read. REQUIRES: ns, layout and blocks are filled in.
  std::vector<BlockRead> Begin(Reading* reading);
  // The log has read blocks[i] well: it is in its place now, or DataLoss.
  absl::Status Finish(Reading* reading, size_t i);

  struct Counters {
    uint64_t encoded_blocks = 0, encoded_saved_bytes = 0;  // in whole pages
    uint64_t kept_raw_blocks = 0;                          // would not have saved a page
    uint64_t decoded_blocks = 0, undecodable_blocks = 0;
  };
  Counters counters() const;

 private:
  AlignedBuffer Take(size_t bytes);
  void Give(AlignedBuffer memory);

  const Representation writes_;
  std::atomic<uint64_t> encoded_blocks_{0}, encoded_saved_bytes_{0}, kept_raw_blocks_{0};
  std::atomic<uint64_t> decoded_blocks_{0}, undecodable_blocks_{0};
  Mutex mutex_;
  // On their way to a device, by address. As many as are dirty, at most.
  absl::flat_hash_map<const std::byte*, AlignedBuffer> encoded_ ABSL_GUARDED_BY(mutex_);
  std::vector<AlignedBuffer> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_RUNG_H_
