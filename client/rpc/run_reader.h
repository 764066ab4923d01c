// Puts the frames of one ReadRun where they belong: checks each frame's place, copies its payload
// once and compares each block's checksum as its last byte comes.
//
// THREADS: one.  BLOCKS: never.
#ifndef KVARVE_CLIENT_RPC_RUN_READER_H_
#define KVARVE_CLIENT_RPC_RUN_READER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/namespace_info.h"
#include "client/frames/frames.h"
#include "storage/block/block_key.h"

namespace kvarve::client {

class RunReader {
 public:
  // One destination a key; what is passed outlives the reader.
  RunReader(const OpenNamespaceInfo& info, std::span<const BlockKey> keys,
            std::span<std::byte* const> destinations, bool verify)
      : info_(info), keys_(keys), destinations_(destinations), verify_(verify) {}

  // Internal: the frame is not what can come next. After an error or a mismatch nothing more may be
  // taken.
  absl::Status Take(const grpc::ByteBuffer& buffer);

  // Of the blocks that have come whole.
  const std::vector<uint64_t>& checksums() const { return checksums_; }
  // The block after them came with other bytes than its checksum says.
  bool mismatch() const { return mismatch_; }

 private:
  bool IsNext(const frames::Frame& frame) const;
  // Copies what is left of the next block, at most; returns how much. `checksum` is the block's.
  size_t TakePart(frames::Piece piece, uint64_t checksum);
  void Copy(frames::Piece piece, std::byte* to);

  const OpenNamespaceInfo& info_;
  const std::span<const BlockKey> keys_;
  const std::span<std::byte* const> destinations_;
  const bool verify_;
  std::vector<grpc::Slice> slices_;
  std::vector<frames::Piece> pieces_;
  std::vector<uint64_t> checksums_;
  uint64_t offset_ = 0;  // bytes of the next block that have come
  uint64_t crc_ = 0;
  bool mismatch_ = false;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_RUN_READER_H_
