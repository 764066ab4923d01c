#include "storage/testing/sim_disk.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "storage/base/status_macros.h"

namespace kvarve::testing {
namespace {

constexpr uint64_t kSlowRequests = 300;  // others that a slow request lets pass
constexpr size_t kMaxPending = 4096;

// Calls fn(offset, bytes of memory, size) for each sector of a request, in order.
template <typename Fn>
void ForEachSector(uint64_t offset, std::span<const iovec> buffers, uint64_t bytes, Fn fn) {
  for (const iovec& buffer : buffers) {
    for (size_t at = 0; at < buffer.iov_len && bytes > 0; at += SimDisk::kSectorBytes) {
      fn(offset, static_cast<std::byte*>(buffer.iov_base) + at);
      offset += SimDisk::kSectorBytes;
      bytes -= SimDisk::kSectorBytes;
    }
  }
}

}  // namespace

SimDisk::SimDisk(uint64_t bytes, uint64_t seed, FaultPlan plan)
    : plan_(plan),
      state_(seed * 0x9e3779b97f4a7c15u + 0x853c49e6748fea9bu),
      now_(bytes),
      durable_(bytes),
      is_dirty_(bytes / kSectorBytes) {
  KV_CHECK(bytes % kIoUnit == 0);
  info_.path = "simulated disk";
  info_.bytes = bytes;
  info_.backend = IoBackend::kSimulated;
  info_.direct = true;
}

SimDisk::~SimDisk() { KV_CHECK(pending_.empty()); }

uint64_t SimDisk::Next() {  // splitmix64
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void SimDisk::Submit(IoRequest request) {
  IoResult refused;
  refused.status = CheckRequest(info_, request);
  if (refused.status.ok() && pending_.size() >= kMaxPending) {
    ++stats_.refused;
    refused.status = absl::ResourceExhaustedError("simulated disk: the I/O queue is full");
  }
  if (!refused.status.ok()) {
    request.done(refused);
    return;
  }
  Pending pending;
  stats_.queued_bytes[static_cast<int>(request.io_class)] += request.bytes();
  if (request.op == IoOp::kSync) pending.dirty_before = dirty_;
  if (OneIn(plan_.slow)) {
    pending.not_before = finished_ + kSlowRequests;
    ++faults_.slow;
  }
  pending.request = std::move(request);
  pending_.push_back(std::move(pending));
}

size_t SimDisk::PickPending() {
  const size_t first = Next() % pending_.size();
  for (size_t i = 0; i < pending_.size(); ++i) {
    const size_t at = (first + i) % pending_.size();
    if (pending_[at].not_before <= finished_) return at;
  }
  return first;
}

bool SimDisk::RunOne() {
  if (pending_.empty()) return false;
  const size_t at = PickPending();
  std::swap(pending_[at], pending_.back());
  Pending pending = std::move(pending_.back());
  pending_.pop_back();
  const IoRequest& request = pending.request;
  const int64_t result = Perform(&pending);
  const IoResult told = ResultOf(info_, request.op, request.offset, request.bytes(), result);
  const auto io_class = static_cast<int>(request.io_class);
  IoStats::Counters& of = stats_.of[io_class][static_cast<int>(request.op)];
  ++of.requests;
  of.bytes += told.bytes;
  of.errors += told.status.ok() ? 0 : 1;
  stats_.queued_bytes[io_class] -= request.bytes();
  ++finished_;
  if (!dead_ && dies_after_ >= 0 && dies_after_-- == 0) DieNow();
  request.done(told);
  return true;
}

int64_t SimDisk::Perform(Pending* pending) {
  if (dead_) return -EIO;
  const IoRequest& request = pending->request;
  switch (request.op) {
    case IoOp::kRead:
      return Read(request);
    case IoOp::kWrite:
      return Write(request);
    case IoOp::kSync:
      break;
  }
  if (OneIn(plan_.sync_error)) {
    ++faults_.errors;
    return -EIO;
  }
  for (uint32_t sector : pending->dirty_before) {
    if (!is_dirty_[sector]) continue;
    std::memcpy(durable_.data() + sector * kSectorBytes, now_.data() + sector * kSectorBytes,
                kSectorBytes);
    is_dirty_[sector] = false;
  }
  std::erase_if(dirty_, [&](uint32_t sector) { return !is_dirty_[sector]; });
  return 0;
}

int64_t SimDisk::Read(const IoRequest& request) {
  const uint64_t wanted = request.bytes();
  if (OneIn(plan_.read_error)) {
    ++faults_.errors;
    return -EIO;
  }
  uint64_t bytes = wanted;
  if (OneIn(plan_.short_read)) {
    ++faults_.shorts;
    bytes = Next() % (wanted / kSectorBytes) * kSectorBytes;
  }
  ForEachSector(request.offset, request.buffers, bytes, [&](uint64_t offset, std::byte* memory) {
    std::memcpy(memory, now_.data() + offset, kSectorBytes);
  });
  if (bytes > 0 && OneIn(plan_.flipped_read)) {
    ++faults_.lies;
    const iovec& buffer = request.buffers[Next() % request.buffers.size()];
    static_cast<std::byte*>(buffer.iov_base)[Next() % buffer.iov_len] ^= std::byte{0x10};
  }
  return static_cast<int64_t>(bytes);
}

int64_t SimDisk::Write(const IoRequest& request) {
  const uint64_t wanted = request.bytes();
  if (OneIn(plan_.write_error)) {
    ++faults_.errors;
    Put(request.offset, request.buffers, wanted, /*some=*/true);
    return -EIO;
  }
  if (OneIn(plan_.no_space)) {
    ++faults_.errors;
    return -ENOSPC;
  }
  if (OneIn(plan_.lost_write)) {
    ++faults_.lies;
    return static_cast<int64_t>(wanted);
  }
  uint64_t offset = request.offset;
  if (OneIn(plan_.misdirected_write)) {
    ++faults_.lies;
    offset = Next() % ((info_.bytes - wanted) / kIoUnit + 1) * kIoUnit;
  }
  uint64_t bytes = wanted;
  if (OneIn(plan_.short_write)) {
    ++faults_.shorts;
    bytes = Next() % (wanted / kSectorBytes) * kSectorBytes;
  }
  Put(offset, request.buffers, bytes, /*some=*/false);
  if (bytes > 0 && OneIn(plan_.flipped_write)) {
    ++faults_.lies;
    now_[offset + Next() % bytes] ^= std::byte{0x04};
  }
  return static_cast<int64_t>(bytes);
}

void SimDisk::Put(uint64_t offset, std::span<const iovec> buffers, uint64_t bytes, bool some) {
  ForEachSector(offset, buffers, bytes, [&](uint64_t at, const std::byte* memory) {
    if (some && Next() % 2 == 0) return;
    std::memcpy(now_.data() + at, memory, kSectorBytes);
    MarkDirty(static_cast<uint32_t>(at / kSectorBytes));
  });
}

void SimDisk::MarkDirty(uint32_t sector) {
  if (is_dirty_[sector]) return;
  is_dirty_[sector] = true;
  dirty_.push_back(sector);
}

void SimDisk::DieNow() {
  if (dead_) return;
  dead_ = true;
  for (const Pending& pending : pending_) {
    const IoRequest& request = pending.request;
    const uint64_t fate = Next() % 3;
    if (request.op != IoOp::kWrite || fate == 0) continue;
    Put(request.offset, request.buffers, request.bytes(), /*some=*/fate == 1);
  }
}

void SimDisk::Reboot(PowerLoss power_loss) {
  KV_CHECK(pending_.empty());
  if (power_loss == PowerLoss::kYes) {
    std::sort(dirty_.begin(), dirty_.end());
    for (uint32_t sector : dirty_) {
      std::byte* now = now_.data() + sector * kSectorBytes;
      const std::byte* old = durable_.data() + sector * kSectorBytes;
      const uint64_t fate = Next() % 16;
      if (fate >= 8) continue;
      ++(fate == 0 ? faults_.torn_sectors : faults_.lost_sectors);
      std::memcpy(now, old, fate == 0 ? Next() % kSectorBytes : kSectorBytes);
    }
  }
  for (uint32_t sector : dirty_) {
    is_dirty_[sector] = false;
    std::memcpy(durable_.data() + sector * kSectorBytes, now_.data() + sector * kSectorBytes,
                kSectorBytes);
  }
  dirty_.clear();
  dead_ = false;
  dies_after_ = -1;
}

}  // namespace kvarve::testing
