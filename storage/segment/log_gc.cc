// Reclaiming: the oldest segment goes, what its owner still wants of it moves to the survivors'.
#include <algorithm>
#include <utility>

#include "storage/base/log.h"
#include "storage/io/aligned_buffer.h"
#include "storage/segment/log_rep.h"

namespace kvarve {
namespace {

// Survivors read and written together. A block of 16 MiB still fits.
constexpr uint64_t kMoveBytes = 32ull << 20;

}  // namespace

void SegmentLog::Rep::FreeClosed() {
  MutexLock lock(&gate.mutex);
  for (Slot& slot : slots) {
    if (slot.state == SlotState::kClosing && slot.readers == 0) slot.state = SlotState::kFree;
  }
}

bool SegmentLog::Rep::ReclaimOldest() {
  uint32_t oldest = 0;
  size_t segments = 0;
  {
    MutexLock lock(&gate.mutex);
    segments = slot_of.size();
    const auto it = std::find_if(slot_of.begin(), slot_of.end(), [&](const auto& entry) {
      const SlotState state = slots[entry.second].state;
      return state == SlotState::kSealed || state == SlotState::kUnsealed;
    });
    if (it == slot_of.end()) return false;
    oldest = it->second;
  }
  ++reclaims_in_vain;
  if (!Reclaim(oldest, /*evacuate=*/false)) return false;
  MutexLock lock(&gate.mutex);
  if (slot_of.size() < segments) reclaims_in_vain = 0;
  return true;
}

bool SegmentLog::Rep::Reclaim(uint32_t slot, bool evacuate) {
  absl::StatusOr<SegmentTable> table = LoadTable(slot);
  if (!table.ok()) {
    KvLog(LogLevel::kWarning, "a segment cannot be read any more and is given up",
          {{"device", device->info().path}, {"reason", table.status().ToString()}});
    table = SegmentTable();
    MutexLock lock(&gate.mutex);
    table->facts.segment_id = slots[slot].segment_id;
  }
  std::vector<bool> keep(table->records.size(), false);
  if (!keep.empty()) {
    // Where everything is worth keeping, moving it makes no room: then only the best of the oldest
    // is kept, and at last it goes all the same.
    const size_t patience = slots.size() / 4 + 1;
    const Keep what = evacuate                       ? Keep::kAll
                      : reclaims_in_vain <= patience ? Keep::kWorthy
                                                     : Keep::kBest;
    if (evacuate || reclaims_in_vain <= 2 * patience) owner->ChooseSurvivors(*table, what, &keep);
    for (size_t i = 0; i < keep.size(); ++i) {
      const BlockRecord& record = table->records[i];
      if (record.is_erase()) keep[i] = EraseIsNeeded(record, table->facts.segment_id);
    }
    if (!MoveSurvivors(*table, keep)) return false;
  }
  // A sealed block that moved, now or in a try before, must not be lost with the power because its
  // old place is used again.
  if (moves_unsynced && options.bug != PlantedBug::kFreeBeforeMoved) {
    if (!SyncNow(device, IoClass::kGc).ok()) {
      WriteFailed();
      return false;
    }
    moves_unsynced = false;
  }
  owner->OnReclaimed(*table);
  {
    MutexLock lock(&gate.mutex);
    ++stats.segments_reclaimed;
    Vacate(slot, evacuate ? SlotState::kSuspect : SlotState::kFree);
  }
  catalogue->Delete(superblock.uuid, table->facts.segment_id).IgnoreError();  // counted there
  return true;
}

// As long as a segment may hold older blocks of the namespace, a later start must see the erase.
bool SegmentLog::Rep::EraseIsNeeded(const BlockRecord& erase, uint64_t segment_id) const {
  if (options.bug == PlantedBug::kErasesForgotten) return false;
  MutexLock lock(&gate.mutex);
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.stale_first_seq < erase.seq ||
           (slot.segment_id != segment_id && slot.first_seq < erase.seq);
  });
}

bool SegmentLog::Rep::MoveSurvivors(const SegmentTable& table, const std::vector<bool>& keep) {
  std::vector<size_t> chosen;
  uint64_t erases = erases_written[1].load();
  for (size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    chosen.push_back(i);
    erases += table.records[i].is_erase() ? 1 : 0;
  }
  if (chosen.empty()) return true;
  std::sort(chosen.begin(), chosen.end(),
            [&](size_t a, size_t b) { return table.records[a].off4k < table.records[b].off4k; });
  moving_segment = table.facts.segment_id;
  moves_unsynced = true;
  const std::span<const size_t> all = chosen;
  size_t begin = 0;
  while (begin < all.size()) {
    uint64_t bytes = 0;
    size_t end = begin;
    while (end < all.size()) {
      const uint64_t more = table.records[all[end]].pages() * kUnit;
      if (end > begin && bytes + more > kMoveBytes) break;
      bytes += more;
      ++end;
    }
    const AlignedBuffer memory(bytes);
    const std::vector<AppendBlock> blocks =
        ReadSurvivors(table, all.subspan(begin, end - begin), memory.data());
    AppendAll(StreamClass::kSurvivor, blocks, /*tries=*/0, /*may_reclaim=*/false);
    DrainAll(/*may_reclaim=*/false);
    begin = end;
  }
  return erases_written[1].load() == erases;
}

// Those that read well, ready to be appended.
std::vector<AppendBlock> SegmentLog::Rep::ReadSurvivors(const SegmentTable& table,
                                                        std::span<const size_t> chosen,
                                                        std::byte* memory) {
  std::vector<AppendBlock> blocks;
  std::vector<BlockRead> reads;
  std::vector<size_t> block_of_read;
  for (const size_t i : chosen) {
    AppendBlock block;
    block.record = table.records[i];
    block.ns = table.namespaces[block.record.ns_ref];
    block.cookie = block.record.off4k;
    if (block.record.lives < 255) ++block.record.lives;
    if (!block.record.is_erase()) {
      block.data = memory;
      reads.push_back({{table.facts.segment_id, block.record.off4k},
                       block.ns,
                       block.record.key,
                       block.record.stored_len,
                       block.record.c64_stored,
                       memory});
      block_of_read.push_back(blocks.size());
      memory += block.record.pages() * kUnit;
    }
    blocks.push_back(block);
  }
  const std::vector<absl::Status> statuses = ReadWait(std::move(reads), IoClass::kGc);
  std::vector<bool> good(blocks.size(), true);
  for (size_t i = 0; i < statuses.size(); ++i) good[block_of_read[i]] = statuses[i].ok();
  std::vector<AppendBlock> out;
  uint64_t bytes = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!good[i]) continue;
    bytes += blocks[i].record.stored_len;
    out.push_back(blocks[i]);
  }
  MutexLock lock(&gate.mutex);
  stats.reinserted_blocks += out.size();
  stats.reinserted_bytes += bytes;
  return out;
}

void SegmentLog::Maintain() {
  Rep& r = *rep_;
  r.Pump(r.recovered.load());
  r.FreeClosed();
  if (!r.recovered.load()) return;
  for (;;) {
    std::optional<uint32_t> failing;
    {
      MutexLock lock(&r.gate.mutex);
      for (uint32_t slot = 0; slot < r.slots.size() && !failing; ++slot) {
        const Slot& of = r.slots[slot];
        if (of.state == SlotState::kSealed && of.strikes >= r.options.strikes_max) failing = slot;
      }
    }
    if (!failing) break;
    KvLog(LogLevel::kWarning, "a segment fails and is evacuated",
          {{"device", r.device->info().path}, {"slot", std::to_string(*failing)}});
    if (!r.Reclaim(*failing, /*evacuate=*/true)) break;
  }
  const uint64_t goal = std::min<uint64_t>(r.options.free_slots_goal, r.slots.size() / 4);
  const auto ready = [&r] { return r.CountSlots(SlotState::kFree) + (r.ahead ? 1 : 0); };
  while (ready() < goal && r.ReclaimOldest()) {
  }
}

uint64_t SegmentLog::Scrub(uint64_t segment_id) {
  Rep& r = *rep_;
  uint32_t slot = 0;
  {
    MutexLock lock(&r.gate.mutex);
    auto it = r.slot_of.upper_bound(segment_id);
    while (it != r.slot_of.end() && r.slots[it->second].state != SlotState::kSealed) ++it;
    if (it == r.slot_of.end()) return 0;
    segment_id = it->first;
    slot = it->second;
  }
  const absl::StatusOr<SegmentTable> table = r.LoadTable(slot);
  if (!table.ok()) {
    r.Strike(segment_id, /*corrupt=*/true);
    return segment_id;
  }
  uint64_t all_bytes = 0;
  for (const BlockRecord& record : table->records) all_bytes += record.pages() * kUnit;
  const AlignedBuffer memory(std::min(all_bytes, kMaxBlockBytes));
  for (size_t begin = 0; begin < table->records.size();) {
    std::vector<BlockRead> reads;
    uint64_t bytes = 0;
    size_t end = begin;
    for (; end < table->records.size(); ++end) {
      const BlockRecord& record = table->records[end];
      if (record.is_erase()) continue;
      if (bytes + record.pages() * kUnit > memory.size()) break;
      reads.push_back({{segment_id, record.off4k},
                       table->namespaces[record.ns_ref],
                       record.key,
                       record.stored_len,
                       record.c64_stored,
                       memory.data() + bytes});
      bytes += record.pages() * kUnit;
    }
    uint64_t failures = 0;
    for (const absl::Status& status : r.ReadWait(std::move(reads), IoClass::kScrub))
      failures += status.ok() ? 0 : 1;
    begin = end;
    MutexLock lock(&r.gate.mutex);
    r.stats.scrubbed_bytes += bytes;
    r.stats.scrub_failures += failures;
  }
  return segment_id;
}

}  // namespace kvarve
