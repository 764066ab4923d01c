#include "storage/segment/segment_log.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/segment/device_format.h"
#include "storage/segment/log_rep.h"

namespace kvarve {
namespace {

constexpr int kOpenTries = 4;  // slots tried when header writes fail

}  // namespace

std::string_view SlotStateName(SlotState state) {
  constexpr std::string_view kNames[kSlotStates] = {"free",   "unrecovered", "open",    "sealing",
                                                    "sealed", "unsealed",    "closing", "suspect"};
  return kNames[static_cast<int>(state)];
}

SegmentLog::SegmentLog(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) { rep_->log = this; }

absl::StatusOr<std::unique_ptr<SegmentLog>> SegmentLog::Open(Device* device, Catalogue* catalogue,
                                                             LogOwner* owner,
                                                             const LogOptions& options,
                                                             const DeviceUuid* expected) {
  auto rep = std::make_unique<Rep>();
  rep->device = device;
  rep->catalogue = catalogue;
  rep->owner = owner;
  rep->options = options;
  KV_ASSIGN_OR_RETURN(rep->superblock, ReadSuperblock(device, expected));
  rep->key = FormatKey(rep->superblock);
  rep->slots.resize(rep->superblock.slots);
  rep->stats.segment_bytes = rep->superblock.segment_bytes;
  KV_RETURN_IF_ERROR(rep->ReadHeaders());
  uint64_t last_id = 0;
  {
    MutexLock lock(&rep->gate.mutex);
    if (!rep->slot_of.empty()) last_id = rep->slot_of.rbegin()->first;
  }
  const std::vector<uint64_t> known = catalogue->Segments(rep->superblock.uuid);
  if (!known.empty()) last_id = std::max(last_id, known.back());
  rep->superblock.incompat |= options.incompat;
  if (options.bug != PlantedBug::kEpochReused)
    KV_RETURN_IF_ERROR(BeginEpoch(device, &rep->superblock, last_id >> 32));
  rep->next_seq = rep->superblock.epoch << 36 | 1;
  return std::unique_ptr<SegmentLog>(new SegmentLog(std::move(rep)));
}

SegmentLog::~SegmentLog() {
  Rep& r = *rep_;
  r.WaitFor([&] {
    size_t pending = r.reads;
    for (const auto& writer : r.open) pending += writer ? writer->iosLocked() : 0;
    for (const auto& writer : r.sealing) pending += writer->iosLocked();
    if (r.ahead) pending += r.ahead->iosLocked();
    return pending == 0;
  });
}

const Superblock& SegmentLog::superblock() const { return rep_->superblock; }

std::optional<uint64_t> SegmentLog::OffsetOf(const BlockLocation& at) const {
  MutexLock lock(&rep_->gate.mutex);
  const auto it = rep_->slot_of.find(at.segment_id);
  if (it == rep_->slot_of.end()) return std::nullopt;
  return rep_->SlotOffset(it->second) + at.off4k * kUnit;
}

LogStats SegmentLog::Stats() const {
  LogStats stats;
  {
    MutexLock lock(&rep_->gate.mutex);
    stats = rep_->stats;
    stats.recovered = rep_->recovered.load();
    for (const Slot& slot : rep_->slots) ++stats.slots[static_cast<int>(slot.state)];
  }
  stats.catalogue_errors = rep_->catalogue->errors();
  return stats;
}

uint64_t SegmentLog::Rep::Now() const {
  return options.wall_seconds ? options.wall_seconds() : static_cast<uint64_t>(::time(nullptr));
}

void SegmentLog::Rep::SetState(uint32_t slot, SlotState state) { slots[slot].state = state; }

void SegmentLog::Rep::Vacate(uint32_t slot, SlotState state) {
  Slot& of = slots[slot];
  slot_of.erase(of.segment_id);
  of.table = nullptr;
  const bool busy = of.readers > 0 && options.bug != PlantedBug::kReclaimWhileRead;
  of.state = busy && state == SlotState::kFree ? SlotState::kClosing : state;
}

uint64_t SegmentLog::Rep::CountSlots(SlotState state) const {
  MutexLock lock(&gate.mutex);
  return static_cast<uint64_t>(std::count_if(
      slots.begin(), slots.end(), [&](const Slot& slot) { return slot.state == state; }));
}

// ---- Slots

std::optional<uint32_t> SegmentLog::Rep::TakeSlot(StreamClass stream, bool may_reclaim) {
  for (;;) {
    FreeClosed();
    // The last free slot is for survivors: without it nothing could be moved to make room.
    const uint64_t reserve = stream == StreamClass::kFresh ? 1 : 0;
    if (CountSlots(SlotState::kFree) > reserve) {
      MutexLock lock(&gate.mutex);
      for (size_t i = 0; i < slots.size(); ++i) {
        const auto slot = static_cast<uint32_t>((next_slot + i) % slots.size());
        if (slots[slot].state != SlotState::kFree) continue;
        next_slot = slot + 1;
        return slot;
      }
    }
    if (!may_reclaim) return std::nullopt;
    if (ReclaimOldest()) continue;
    if (!sealing.empty()) {
      SegmentWriter* oldest = sealing.front().get();
      WaitFor([&] { return oldest->iosLocked() == 0; });
      Pump(/*may_reclaim=*/false);
      continue;
    }
    if (CountSlots(SlotState::kClosing) == 0) return std::nullopt;
    WaitFor([&] {  // reads are bounded, so this is too
      return std::any_of(slots.begin(), slots.end(), [](const Slot& slot) {
        return slot.state == SlotState::kClosing && slot.readers == 0;
      });
    });
  }
}

std::unique_ptr<SegmentWriter> SegmentLog::Rep::NewWriter(StreamClass stream, uint32_t slot) {
  SegmentHeader header;
  header.uuid = superblock.uuid;
  header.slot = slot;
  header.segment_id = superblock.epoch << 32 | next_segment++;
  header.stream = stream;
  header.boot_id = superblock.epoch;
  header.opened_at = Now();
  {
    MutexLock lock(&gate.mutex);
    Slot& of = slots[slot];
    header.generation = ++of.generation;
    of.state = SlotState::kOpen;
    of.segment_id = header.segment_id;
    of.opened_at = header.opened_at;
    of.stream = stream;
    of.strikes = 0;
    of.stale_first_seq = std::min(of.stale_first_seq, of.first_seq);
    of.first_seq = std::numeric_limits<uint64_t>::max();
    slot_of[header.segment_id] = slot;
    stats.device_bytes += kUnit;
  }
  const SegmentWriter::Place place{device, &gate,      SlotOffset(slot), superblock.segment_bytes,
                                   key,    options.bug};
  return std::make_unique<SegmentWriter>(
      place, header,
      [this, stream](const AppendBlock& block, const BlockRecord& record, uint64_t segment_id) {
        {
          MutexLock lock(&gate.mutex);
          ++stats.appended_blocks;
          stats.appended_bytes += record.stored_len;
        }
        const BlockLocation at{segment_id, record.off4k};
        if (record.is_erase()) {
          erases_written[static_cast<int>(stream)].fetch_add(1);
        } else if (stream == StreamClass::kFresh) {
          AppendBlock told = block;
          told.record = record;
          owner->OnWritten(told, at);
        } else {
          const BlockLocation from{moving_segment, static_cast<uint32_t>(block.cookie)};
          owner->OnMoved(block.ns, record, from, at);
        }
      });
}

void SegmentLog::Rep::OpenAhead() {
  if (options.bug == PlantedBug::kFramesBeforeHeader) return;
  const auto slot = TakeSlot(StreamClass::kFresh, /*may_reclaim=*/false);
  if (!slot) return;
  ahead = NewWriter(StreamClass::kFresh, *slot);
  ahead->OpenAhead();
}

bool SegmentLog::Rep::TakeAhead() {
  if (ahead == nullptr) return false;
  WaitFor([&] { return ahead->iosLocked() == 0; });
  if (ahead->is_open()) {
    open[static_cast<int>(StreamClass::kFresh)] = std::move(ahead);
    return true;
  }
  KvLog(LogLevel::kWarning, "a segment cannot be opened",
        {{"reason", device->info().path + ": opening it ahead failed"}});
  WriteFailed();
  {
    MutexLock lock(&gate.mutex);
    Vacate(ahead->header().slot, SlotState::kSuspect);
  }
  ahead.reset();
  return false;
}

void SegmentLog::Rep::DropAhead() {
  if (ahead == nullptr) return;
  WaitFor([&] { return ahead->iosLocked() == 0; });
  {
    MutexLock lock(&gate.mutex);
    Vacate(ahead->header().slot, SlotState::kFree);
  }
  ahead.reset();
}

SegmentWriter* SegmentLog::Rep::Writer(StreamClass stream, bool may_reclaim) {
  std::unique_ptr<SegmentWriter>& writer = open[static_cast<int>(stream)];
  if (writer == nullptr && stream == StreamClass::kFresh && TakeAhead()) reclaims_in_vain = 0;
  for (int i = 0; writer == nullptr && i < kOpenTries; ++i) {
    const std::optional<uint32_t> slot = TakeSlot(stream, may_reclaim);
    // Reclaiming may have written, and failed at it or opened the stream's next segment.
    if (writer != nullptr) break;
    if (!slot || failures_in_a_row >= options.write_failures_max) return nullptr;
    std::unique_ptr<SegmentWriter> fresh = NewWriter(stream, *slot);
    const absl::Status opened = fresh->Open();
    if (opened.ok()) {
      writer = std::move(fresh);
      if (stream == StreamClass::kFresh) reclaims_in_vain = 0;
      break;
    }
    KvLog(LogLevel::kWarning, "a segment cannot be opened", {{"reason", opened.ToString()}});
    WriteFailed();
    MutexLock lock(&gate.mutex);
    Vacate(*slot, SlotState::kSuspect);
  }
  return writer.get();
}

void SegmentLog::Rep::WriteFailed() {
  ++failures_in_a_row;
  MutexLock lock(&gate.mutex);
  ++stats.write_failures;
  stats.write_off = failures_in_a_row >= options.write_failures_max;
}

// ---- Appending

void SegmentLog::Rep::Refuse(std::span<const AppendBlock> blocks, const absl::Status& why) {
  {
    MutexLock lock(&gate.mutex);
    stats.not_written_blocks += blocks.size();
  }
  for (const AppendBlock& block : blocks) {
    if (!block.record.is_erase()) owner->OnNotWritten(block, why);
  }
}

size_t SegmentLog::Rep::FramesInFlightLocked() const {
  size_t frames = 0;
  for (const auto& writer : open) frames += writer ? writer->iosLocked() : 0;
  for (const auto& writer : sealing) frames += writer->iosLocked();
  return frames;
}

void SegmentLog::Rep::AppendAll(StreamClass stream, std::span<const AppendBlock> blocks, int tries,
                                bool may_reclaim) {
  const auto index = static_cast<int>(stream);
  while (!blocks.empty()) {
    if (failures_in_a_row >= options.write_failures_max) {
      Refuse(blocks, absl::UnavailableError(device->info().path +
                                            ": switched off for writing after repeated failures"));
      return;
    }
    SegmentWriter* writer = Writer(stream, may_reclaim);
    if (writer == nullptr) {
      Refuse(blocks, absl::ResourceExhaustedError(device->info().path + ": no segment is free"));
      return;
    }
    WaitFor([&] { return FramesInFlightLocked() < options.depth; });
    if (writer->broken()) {
      WaitFor([&] { return writer->iosLocked() == 0; });
      for (const SegmentWriter::Unwritten& lost : Abandon(stream)) {
        if (lost.tries > 0) {
          Refuse(lost.blocks, absl::DataLossError(device->info().path + ": writing failed twice"));
        } else {
          AppendAll(stream, lost.blocks, lost.tries + 1, may_reclaim);
        }
      }
      continue;
    }
    const size_t count = writer->Fitting(blocks);
    if (count == 0) {
      if (writer->empty()) {
        Refuse(blocks.first(1), absl::InvalidArgumentError("the block is larger than a segment"));
        blocks = blocks.subspan(1);
      } else {
        Close(stream);
        Pump(may_reclaim);
      }
      continue;
    }
    std::vector<AppendBlock> frame(blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(count));
    uint64_t first_seq = std::numeric_limits<uint64_t>::max();
    for (AppendBlock& block : frame) {
      if (block.record.seq == 0) block.record.seq = next_seq++;
      first_seq = std::min(first_seq, block.record.seq);
    }
    const uint64_t before = writer->written_bytes();
    writer->Submit(frame, tries);
    {
      MutexLock lock(&gate.mutex);
      stats.device_bytes += open[index]->written_bytes() - before;
      uint64_t& first = slots[writer->header().slot].first_seq;
      first = std::min(first, first_seq);
    }
    newest_written = std::max(newest_written, writer->header().segment_id);
    const bool is_half_full = writer->written_bytes() > superblock.segment_bytes / 2;
    if (is_half_full && stream == StreamClass::kFresh && ahead == nullptr) OpenAhead();
    blocks = blocks.subspan(count);
    Pump(may_reclaim);
  }
}

void SegmentLog::Rep::Close(StreamClass stream) {
  sealing.push_back(std::move(open[static_cast<int>(stream)]));
  MutexLock lock(&gate.mutex);
  SetState(sealing.back()->header().slot, SlotState::kSealing);
}

std::vector<SegmentWriter::Unwritten> SegmentLog::Rep::Abandon(StreamClass stream) {
  std::vector<SegmentWriter::Unwritten> unwritten = open[static_cast<int>(stream)]->TakeUnwritten();
  WriteFailed();
  {
    MutexLock lock(&gate.mutex);
    ++stats.segments_abandoned;
  }
  Close(stream);
  return unwritten;
}

// What a closed segment's frames left unwritten is collected first: writing it again may close and
// pump in turn.
void SegmentLog::Rep::Pump(bool may_reclaim) {
  std::vector<std::pair<StreamClass, SegmentWriter::Unwritten>> again;
  for (size_t i = 0; i < sealing.size();) {
    SegmentWriter* writer = sealing[i].get();
    if (writer->ios() > 0) {
      ++i;
      continue;
    }
    if (writer->broken()) {
      for (SegmentWriter::Unwritten& lost : writer->TakeUnwritten()) {
        if (!lost.blocks.empty()) again.emplace_back(writer->header().stream, std::move(lost));
      }
    }
    if (writer->seal_state() == SegmentWriter::SealState::kOpen &&
        !writer->table().records.empty()) {
      writer->StartSeal(Now());
      ++i;
      continue;
    }
    FinishSeal(writer);
    sealing.erase(sealing.begin() + static_cast<ptrdiff_t>(i));
  }
  if (!again.empty()) WriteFailed();
  for (const auto& [stream, lost] : again) {
    if (lost.tries > 0) {
      Refuse(lost.blocks, absl::DataLossError(device->info().path + ": writing failed twice"));
    } else {
      AppendAll(stream, lost.blocks, lost.tries + 1, may_reclaim);
    }
  }
}

void SegmentLog::Rep::FinishSeal(SegmentWriter* writer) {
  const uint32_t slot = writer->header().slot;
  const uint64_t id = writer->header().segment_id;
  if (writer->seal_state() == SegmentWriter::SealState::kSealed) {
    failures_in_a_row = 0;
    // A failure is counted by the catalogue; the footer has the same table.
    catalogue->Put(superblock.uuid, id, EncodeCatalogueValue(writer->table(), key)).IgnoreError();
    {
      MutexLock lock(&gate.mutex);
      ++stats.segments_sealed;
      stats.device_bytes += (writer->table().facts.table_pages + 1) * kUnit;
      SetState(slot, SlotState::kSealed);
      slots[slot].stale_first_seq = std::numeric_limits<uint64_t>::max();
    }
    owner->OnSealed(id);
    return;
  }
  if (writer->table().records.empty()) {
    MutexLock lock(&gate.mutex);
    Vacate(slot, SlotState::kFree);
    return;
  }
  WriteFailed();
  MutexLock lock(&gate.mutex);
  slots[slot].table = std::make_shared<SegmentTable>(writer->table());
  SetState(slot, SlotState::kUnsealed);
}

void SegmentLog::Rep::DrainAll(bool may_reclaim) {
  for (;;) {
    WaitFor([&] { return FramesInFlightLocked() == 0; });
    bool quiet = true;
    for (int i = 0; i < kStreams; ++i) {
      if (open[i] == nullptr || !open[i]->broken()) continue;
      quiet = false;
      const auto stream = static_cast<StreamClass>(i);
      for (const SegmentWriter::Unwritten& lost : Abandon(stream)) {
        if (lost.tries > 0) {
          Refuse(lost.blocks, absl::DataLossError(device->info().path + ": writing failed twice"));
        } else {
          AppendAll(stream, lost.blocks, lost.tries + 1, may_reclaim);
        }
      }
    }
    Pump(may_reclaim);
    MutexLock lock(&gate.mutex);
    if (quiet && sealing.empty() && FramesInFlightLocked() == 0) return;
  }
}

void SegmentLog::Append(StreamClass stream, std::span<const AppendBlock> blocks) {
  rep_->AppendAll(stream, blocks, /*tries=*/0, rep_->recovered.load());
}

void SegmentLog::Drain() { rep_->DrainAll(rep_->recovered.load()); }

void SegmentLog::Seal() {
  rep_->DrainAll(rep_->recovered.load());
  for (int i = 0; i < kStreams; ++i) {
    if (rep_->open[i] != nullptr) rep_->Close(static_cast<StreamClass>(i));
  }
  rep_->DrainAll(rep_->recovered.load());
}

// Whoever reads segments from the newest sees the erase before every block that it takes away: it
// goes into the newest there is, and survivors, which are older blocks, into a later one. What was
// to be written again has been by then.
absl::Status SegmentLog::Erase(const NamespaceId& ns, std::span<const BlockKey> keys) {
  Rep& r = *rep_;
  r.DrainAll(r.recovered.load());
  const auto is_older = [&r](const std::unique_ptr<SegmentWriter>& writer) {
    return writer != nullptr && writer->header().segment_id < r.newest_written;
  };
  if (is_older(r.open[static_cast<int>(StreamClass::kFresh)])) r.Close(StreamClass::kFresh);
  if (is_older(r.ahead)) r.DropAhead();
  if (r.open[static_cast<int>(StreamClass::kSurvivor)] != nullptr) r.Close(StreamClass::kSurvivor);
  std::vector<AppendBlock> erases(std::max<size_t>(keys.size(), 1));
  for (AppendBlock& erase : erases) {
    erase.ns = ns;
    erase.record.depth_flags = uint32_t{BlockRecord::kErase} << 24;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    erases[i].record.key = keys[i];
    erases[i].record.key_len = BlockKey::kMaxBytes;
  }
  const uint64_t before = r.erases_written[0].load();
  r.AppendAll(StreamClass::kFresh, erases, 0, r.recovered.load());
  r.DrainAll(r.recovered.load());
  if (r.erases_written[0].load() != before + erases.size()) {
    return absl::UnavailableError(absl::StrFormat(
        "%s: the erase could not be written: blocks of the namespace may come back with the next "
        "start",
        r.device->info().path));
  }
  return SyncNow(r.device, IoClass::kFlush);
}

}  // namespace kvarve
