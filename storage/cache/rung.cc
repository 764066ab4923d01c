#include "storage/cache/rung.h"

#include <algorithm>
#include <utility>

#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"

namespace kvarve {
namespace {

constexpr size_t kSpareMax = 64;
constexpr size_t kSpareBytesMax = 4 << 20;  // larger ones are not kept

}  // namespace

// Memory that was used before costs neither zeros nor page faults.
AlignedBuffer Rung::Take(size_t bytes) {
  {
    MutexLock lock(&mutex_);
    const auto it = std::ranges::find_if(
        spare_, [bytes](const AlignedBuffer& memory) { return memory.size() >= bytes; });
    if (it != spare_.end()) {
      AlignedBuffer memory = std::move(*it);
      *it = std::move(spare_.back());
      spare_.pop_back();
      return memory;
    }
  }
  return AlignedBuffer(bytes);
}

void Rung::Give(AlignedBuffer memory) {
  if (memory.size() == 0 || memory.size() > kSpareBytesMax) return;
  MutexLock lock(&mutex_);
  if (spare_.size() < kSpareMax) spare_.push_back(std::move(memory));
}

void Rung::Encode(const BlockLayout& layout, AppendBlock* block) {
  BlockRecord& record = block->record;
  if (!CanEncode(writes_, layout) || layout.CappedBlockBytes() != record.raw_len) return;
  const uint64_t before = record.pages();
  AlignedBuffer memory = Take(before * kUnit);
  const auto bytes = kvarve::Encode(writes_, layout, {block->data, record.raw_len},
                                    memory.span().first((before - 1) * kUnit));
  if (!bytes.has_value()) {
    ++kept_raw_blocks_;
    return Give(std::move(memory));
  }
  record.repr = static_cast<uint8_t>(writes_);
  record.stored_len = static_cast<uint32_t>(*bytes);
  record.c64_stored =
      BlockChecksum(ChecksumSeed(block->ns, record.key, *bytes), memory.data(), *bytes);
  block->data = memory.data();
  ++encoded_blocks_;
  encoded_saved_bytes_ += (before - record.pages()) * kUnit;
  MutexLock lock(&mutex_);
  encoded_.emplace(block->data, std::move(memory));
}

void Rung::Told(const AppendBlock& block) {
  if (block.record.repr == static_cast<uint8_t>(Representation::kRaw)) return;
  AlignedBuffer memory;
  {
    MutexLock lock(&mutex_);
    const auto it = encoded_.find(block.data);
    KV_CHECK(it != encoded_.end());
    memory = std::move(it->second);
    encoded_.erase(it);
  }
  Give(std::move(memory));
}

std::vector<BlockRead> Rung::Begin(Reading* reading) {
  std::vector<BlockRead> reads;
  reading->stored.resize(reading->blocks.size());
  for (size_t i = 0; i < reading->blocks.size(); ++i) {
    const StoredRead& of = reading->blocks[i];
    BlockRead& read = reads.emplace_back();
    read.at = of.place.at;
    read.ns = reading->ns;
    read.key = of.key;
    read.c64_stored = of.stored.checksum;
    if (of.stored.form == Representation::kRaw) {
      read.stored_len = static_cast<uint32_t>(of.block.size());
      read.into = of.block.data();
      continue;
    }
    reading->stored[i] = Take(of.stored.pages_bytes());
    read.stored_len = of.stored.bytes;
    read.into = reading->stored[i].data();
  }
  return reads;
}

absl::Status Rung::Finish(Reading* reading, size_t i) {
  const StoredRead& of = reading->blocks[i];
  if (of.stored.form == Representation::kRaw) return absl::OkStatus();
  AlignedBuffer stored = std::move(reading->stored[i]);
  absl::Status status =
      reading->layout.CappedBlockBytes() == of.block.size()
          ? Decode(of.stored.form, reading->layout, stored.span().first(of.stored.bytes), of.block)
          : absl::DataLossError("a block of another size than its layout's");
  const uint64_t seed = ChecksumSeed(reading->ns, of.key, of.block.size());
  if (status.ok() && BlockChecksum(seed, of.block.data(), of.block.size()) != of.place.checksum) {
    status = absl::DataLossError("a decoded block's bytes do not match its checksum");
  }
  ++(status.ok() ? decoded_blocks_ : undecodable_blocks_);
  Give(std::move(stored));
  return status;
}

Rung::Counters Rung::counters() const {
  return {encoded_blocks_.load(), encoded_saved_bytes_.load(), kept_raw_blocks_.load(),
          decoded_blocks_.load(), undecodable_blocks_.load()};
}

}  // namespace kvarve
