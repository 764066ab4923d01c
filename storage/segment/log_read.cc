// Reads: neighbours together, each block verified before anybody sees it.
#include <algorithm>
#include <utility>

#include "storage/block/checksum.h"
#include "storage/io/aligned_buffer.h"
#include "storage/segment/log_rep.h"

namespace kvarve {
namespace {

constexpr uint64_t kMergeBytes = 4ull << 20;
constexpr uint64_t kGapPages = 16;
constexpr uint64_t kInlineCheckBytes = 256ull << 10;
// A block of so many bytes that lies elsewhere in memory than behind the one before it is read by
// itself: into one piece of memory that the device knows, which is half as dear as several pieces.
constexpr uint64_t kOwnRequestBytes = 256ull << 10;

uint64_t PagesOf(const BlockRead& read) { return (uint64_t{read.stored_len} + kUnit - 1) / kUnit; }

// One call of Read, kept until its last block is told.
struct ReadCall {
  std::vector<BlockRead> reads;
  ReadDone done;
};

// Reads that become one request: blocks of one segment, ascending, close to each other.
struct ReadGroup {
  std::shared_ptr<ReadCall> call;
  std::vector<size_t> members;
  uint32_t slot = 0;
  uint64_t begin_page = 0;
  uint64_t end_page = 0;
  AlignedBuffer gap;  // what lies between the blocks goes here

  bool Takes(const BlockRead& read) const {
    const BlockRead& last = call->reads[members.back()];
    const bool adjoins =
        read.at.off4k == end_page && last.into + PagesOf(last) * kUnit == read.into;
    if (!adjoins && PagesOf(read) * kUnit >= kOwnRequestBytes) return false;
    return read.at.off4k >= end_page && read.at.off4k - end_page <= kGapPages &&
           (read.at.off4k + PagesOf(read) - begin_page) * kUnit <= kMergeBytes &&
           2 * members.size() + 2 <= kMaxIoBuffers;
  }
  std::vector<iovec> Buffers() {
    std::vector<iovec> buffers;
    uint64_t widest = 0;
    uint64_t page = begin_page;
    for (const size_t i : members) {
      widest = std::max(widest, call->reads[i].at.off4k - page);
      page = call->reads[i].at.off4k + PagesOf(call->reads[i]);
    }
    gap = AlignedBuffer(widest * kUnit);
    page = begin_page;
    for (const size_t i : members) {
      const BlockRead& read = call->reads[i];
      if (read.at.off4k > page) buffers.push_back({gap.data(), (read.at.off4k - page) * kUnit});
      const uint64_t bytes = PagesOf(read) * kUnit;
      if (!buffers.empty() &&
          static_cast<std::byte*>(buffers.back().iov_base) + buffers.back().iov_len == read.into) {
        buffers.back().iov_len += bytes;
      } else {
        buffers.push_back({read.into, bytes});
      }
      page = read.at.off4k + PagesOf(read);
    }
    return buffers;
  }
};

absl::Status Verify(const BlockRead& read) {
  const uint64_t seed = ChecksumSeed(read.ns, read.key, read.stored_len);
  if (BlockChecksum(seed, read.into, read.stored_len) == read.c64_stored) return absl::OkStatus();
  return absl::DataLossError("a block's bytes do not match its checksum");
}

}  // namespace

void SegmentLog::Rep::Strike(uint64_t segment_id, bool corrupt) {
  MutexLock lock(&gate.mutex);
  ++(corrupt ? stats.corrupt_blocks : stats.read_errors);
  const auto it = slot_of.find(segment_id);
  if (it != slot_of.end()) ++slots[it->second].strikes;
}

void SegmentLog::Read(std::vector<BlockRead> reads, IoClass io_class, ReadDone done,
                      bool caller_waits) {
  Rep& r = *rep_;
  auto call = std::make_shared<ReadCall>();
  call->reads = std::move(reads);
  call->done = std::move(done);
  const std::vector<BlockRead>& all = call->reads;
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(all[a].at.segment_id, all[a].at.off4k) <
           std::pair(all[b].at.segment_id, all[b].at.off4k);
  });
  std::vector<std::shared_ptr<ReadGroup>> groups;
  std::vector<size_t> gone;
  uint64_t wanted_bytes = 0;
  {
    MutexLock lock(&r.gate.mutex);
    for (const size_t i : order) {
      const BlockRead& read = all[i];
      const auto it = r.slot_of.find(read.at.segment_id);
      if (it == r.slot_of.end() || read.at.off4k == 0 ||
          read.at.off4k + PagesOf(read) > r.EndPage()) {
        gone.push_back(i);
        continue;
      }
      if (groups.empty() || groups.back()->slot != it->second || !groups.back()->Takes(read)) {
        groups.push_back(std::make_shared<ReadGroup>());
        groups.back()->call = call;
        groups.back()->slot = it->second;
        groups.back()->begin_page = read.at.off4k;
      }
      groups.back()->members.push_back(i);
      groups.back()->end_page = read.at.off4k + PagesOf(read);
      wanted_bytes += read.stored_len;
    }
    // Counted here: who is told that a read is done finds it counted.
    r.stats.gone_blocks += gone.size();
    r.stats.read_blocks += all.size() - gone.size();
    r.stats.read_bytes += wanted_bytes;
    r.stats.read_ios += groups.size();
    for (const auto& group : groups) ++r.slots[group->slot].readers;
    r.reads += groups.size();
  }
  for (const size_t i : gone)
    call->done(i, absl::NotFoundError("the segment of the block was reclaimed"));
  for (const auto& group : groups) {
    IoRequest request{IoOp::kRead, io_class, r.SlotOffset(group->slot) + group->begin_page * kUnit,
                      group->Buffers(), nullptr};
    const uint64_t bytes = (group->end_page - group->begin_page) * kUnit;
    request.in_callers_thread = caller_waits && groups.size() == 1 && bytes <= kInlineCheckBytes;
    request.done = [&r, group, bytes](const IoResult& result) {
      auto finish = [&r, group, status = result.status] {
        const ReadCall& of = *group->call;
        for (const size_t i : group->members) {
          const BlockRead& read = of.reads[i];
          absl::Status told = status;
          if (told.ok() && r.options.bug != PlantedBug::kReadUnverified) told = Verify(read);
          if (!told.ok()) r.Strike(read.at.segment_id, status.ok());
          of.done(i, told);
        }
        MutexLock lock(&r.gate.mutex);
        --r.slots[group->slot].readers;
        --r.reads;
        r.gate.changed.notify_all();
      };
      if (r.options.executor && bytes > kInlineCheckBytes) {
        r.options.executor(finish);
      } else {
        finish();
      }
    };
    r.device->Submit(std::move(request));
  }
}

std::vector<absl::Status> SegmentLog::Rep::ReadWait(std::vector<BlockRead> wanted,
                                                    IoClass io_class) {
  return ReadBlocks(log, device, std::move(wanted), io_class);
}

std::vector<absl::Status> ReadBlocks(SegmentLog* log, Device* device, std::vector<BlockRead> reads,
                                     IoClass io_class) {
  Mutex mutex;
  CondVar changed;
  size_t left = reads.size();
  std::vector<absl::Status> statuses(reads.size());
  log->Read(
      std::move(reads), io_class,
      [&](size_t i, const absl::Status& status) {
        MutexLock lock(&mutex);
        statuses[i] = Unshared(status);
        --left;
        changed.notify_all();
      },
      /*caller_waits=*/true);
  for (;;) {
    {
      MutexLock lock(&mutex);
      if (left == 0) return statuses;
    }
    if (device->RunOne()) continue;
    MutexLock lock(&mutex);
    while (left > 0) changed.wait(mutex);
  }
}

}  // namespace kvarve
