// What the two sides of the bare stream say to each other. THREADS: any.
#ifndef KVARVE_TESTS_PERF_BARE_STREAM_WIRE_H_
#define KVARVE_TESTS_PERF_BARE_STREAM_WIRE_H_

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"

namespace kvarve::perf {

inline constexpr char kBareMethod[] = "/kvarve.bench.Bare/Stream";
inline constexpr size_t kBareHeaderBytes = 64;  // in front of every block, in a slice of its own
inline constexpr size_t kBareCopyBytes = 16 << 10;

struct BareRequest {
  uint64_t is_read = 0;
  uint64_t block_bytes = 0;
  uint64_t count = 0;
};

inline grpc::ByteBuffer MakeMessage(const std::byte* block, size_t bytes) {
  static constexpr char kHeader[kBareHeaderBytes] = {};
  const grpc::Slice slices[] = {
      grpc::Slice(kHeader, sizeof(kHeader)),
      grpc::Slice(const_cast<std::byte*>(block), bytes, grpc::Slice::STATIC_SLICE)};
  return grpc::ByteBuffer(slices, 2);
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Copies the block to `to`; returns its CRC.
inline uint64_t TakeMessage(const grpc::ByteBuffer& message, std::byte* to, size_t bytes) {
  std::vector<grpc::Slice> slices;
  KV_CHECK(message.Dump(&slices).ok());
  size_t header = kBareHeaderBytes, at = 0;
  uint64_t crc = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t skipped = std::min(header, slice.size());
    header -= skipped;
    for (size_t from = skipped; from < slice.size();) {
      const size_t part = std::min(slice.size() - from, kBareCopyBytes);
      KV_CHECK(at + part <= bytes);
      std::memcpy(to + at, slice.begin() + from, part);
      crc = Crc64(crc, to + at, part);
      at += part;
      from += part;
    }
  }
  KV_CHECK(at == bytes);
  return crc;
}

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BARE_STREAM_WIRE_H_
