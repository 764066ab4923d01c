// Goal: whatever a daemon sends instead of the frames of a run, cut into slices anywhere, no byte
// is written outside a block's memory, and a block that counts as read is the one that protobuf
// sees, with the checksum that it says. Method: any frames (two bytes of length each) over splits
// that the input chooses; protobuf, and a checksum over what was read. Under a sanitizer.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "client/rpc/run_reader.h"
#include "proto/kvarve/v1/cache.pb.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "tests/fuzz/fuzz.h"

namespace kvarve::client {
namespace {

constexpr size_t kKeys = 4, kBlock = 64;

struct Run {
  OpenNamespaceInfo info;
  std::vector<BlockKey> keys{kKeys};
  Run() {
    info.id.bytes.fill(1);
    info.block_bytes = kBlock;
    info.key_bytes = 32;
    for (size_t i = 0; i < kKeys; ++i) keys[i].bytes.fill(static_cast<uint8_t>(i));
  }
  uint64_t ChecksumOf(size_t i, const void* block) const {
    return BlockChecksum(ChecksumSeed(info.id, keys[i], kBlock), block, kBlock);
  }
};

grpc::ByteBuffer Sliced(std::string_view bytes, std::mt19937_64* random) {
  std::vector<grpc::Slice> slices;
  while (!bytes.empty()) {
    const size_t most = (*random)() % 4 == 0 ? 100 : 8;
    const std::string_view piece = bytes.substr(0, (*random)() % most);
    slices.emplace_back(piece.data(), piece.size());
    bytes.remove_prefix(piece.size());
  }
  return {slices.data(), slices.size()};
}

// Each frame behind its length.
std::vector<std::string_view> FramesOf(std::string_view input) {
  std::vector<std::string_view> frames;
  while (input.size() >= 2) {
    const size_t size = static_cast<uint8_t>(input[0]) | static_cast<uint8_t>(input[1]) << 8;
    frames.push_back(input.substr(2, size));
    input.remove_prefix(2 + frames.back().size());
  }
  return frames;
}

void CheckOne(std::string_view input, uint64_t seed, bool verify) {
  const Run run;
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<std::byte*> destinations;
  for (size_t i = 0; i < kKeys; ++i) {
    memory.push_back(std::make_unique<std::byte[]>(kBlock));
    destinations.push_back(memory.back().get());
  }
  RunReader reader(run.info, run.keys, destinations, verify);
  std::string sent;
  for (const std::string_view frame : FramesOf(input)) {
    if (!reader.Take(Sliced(frame, &random)).ok() || reader.mismatch()) break;
    v1::BlockFrame message;
    KV_CHECK(message.ParseFromArray(frame.data(), static_cast<int>(frame.size())));
    sent += message.payload();
  }
  const std::vector<uint64_t>& checksums = reader.checksums();
  KV_CHECK(checksums.size() <= kKeys);
  for (size_t i = 0; i < checksums.size() && (i + 1) * kBlock <= sent.size(); ++i) {
    KV_CHECK(std::memcmp(destinations[i], sent.data() + i * kBlock, kBlock) == 0);
  }
  for (size_t i = 0; verify && i < checksums.size(); ++i) {
    KV_CHECK(run.ChecksumOf(i, destinations[i]) == checksums[i]);
  }
}

}  // namespace
}  // namespace kvarve::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  kvarve::client::CheckOne(input, data[0], /*verify=*/true);
  kvarve::client::CheckOne(input, data[0], /*verify=*/false);
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  const client::Run run;
  std::vector<std::string> seeds = {std::string(1, '\0')};
  const auto text = [](size_t i) {
    return std::string(client::kBlock, static_cast<char>('a' + i));
  };
  const auto add = [](const v1::BlockFrame& frame, std::string* seed) {
    const std::string bytes = frame.SerializeAsString();
    *seed += {static_cast<char>(bytes.size() & 0xff), static_cast<char>(bytes.size() >> 8)};
    *seed += bytes;
  };
  // One block a frame, parts of blocks, all blocks in one frame.
  std::string each = "s", parts = "s", together = "s";
  v1::BlockFrame all;
  for (size_t i = 0; i < client::kKeys; ++i) {
    v1::BlockFrame frame;
    frame.set_index(static_cast<uint32_t>(i));
    frame.set_block_bytes(client::kBlock);
    frame.set_checksum(run.ChecksumOf(i, text(i).data()));
    frame.set_payload(text(i));
    add(frame, &each);
    for (const size_t offset : {0u, 1u, 40u}) {
      const size_t end = offset == 0 ? 1 : offset == 1 ? 40 : client::kBlock;
      frame.set_offset(offset);
      frame.set_payload(text(i).substr(offset, end - offset));
      add(frame, &parts);
    }
    if (i == 0) {
      all = frame;
      all.clear_payload();
      all.set_offset(0);
    } else {
      all.add_more_checksums(frame.checksum());
    }
    all.set_payload(all.payload() + text(i));
  }
  add(all, &together);
  for (std::string* const seed : {&each, &parts, &together}) seeds.push_back(std::move(*seed));
  return seeds;
}

}  // namespace kvarve::fuzz
