// What is on the device: headers at Open, tables at Recover.
#include <algorithm>
#include <future>
#include <utility>

#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/io/aligned_buffer.h"
#include "storage/io/io_wait.h"
#include "storage/segment/log_rep.h"

namespace kvarve {
namespace {

constexpr size_t kHeaderDepth = 32;
constexpr size_t kHeadersAtOnce = 256;
constexpr uint64_t kVerifyBytes = 16ull << 20;  // read at once of a segment that was not sealed

std::span<const std::byte, kUnit> PageAt(const AlignedBuffer& buffer, size_t page) {
  return std::span<const std::byte, kUnit>(buffer.data() + page * kUnit, kUnit);
}

uint64_t FirstSeq(const SegmentTable& table) {
  uint64_t first = std::numeric_limits<uint64_t>::max();
  for (const BlockRecord& record : table.records) first = std::min(first, record.seq);
  return first;
}

}  // namespace

bool SegmentLog::Rep::Matches(const SegmentFacts& facts, uint32_t slot, const Slot& state) const {
  return facts.slot == slot && facts.segment_id == state.segment_id &&
         (!state.header_valid || facts.generation == state.generation);
}

// A slot without a good header may still have a good footer: only the header's page was hurt, or
// the power went while the slot was opened again.
absl::Status SegmentLog::Rep::ReadHeaders() {
  const size_t at_once = std::min(kHeadersAtOnce, slots.size());
  const AlignedBuffer heads(at_once * kUnit), tails(at_once * kUnit);
  for (size_t begin = 0; begin < slots.size(); begin += kHeadersAtOnce) {
    const size_t end = std::min(begin + kHeadersAtOnce, slots.size());
    IoWait wait(device);
    std::vector<std::atomic<bool>> unreadable(end - begin);
    const auto read = [&](size_t slot, uint64_t offset, std::byte* into) {
      wait.WaitBelow(kHeaderDepth);
      wait.Submit({IoOp::kRead,
                   IoClass::kDemand,
                   SlotOffset(static_cast<uint32_t>(slot)) + offset,
                   {{into, kUnit}},
                   [&unreadable, i = slot - begin](const IoResult& result) {
                     if (!result.status.ok()) unreadable[i].store(true);
                   }});
    };
    for (size_t slot = begin; slot < end; ++slot) {
      read(slot, 0, heads.data() + (slot - begin) * kUnit);
      read(slot, superblock.segment_bytes - kUnit, tails.data() + (slot - begin) * kUnit);
    }
    wait.Wait().IgnoreError();
    MutexLock lock(&gate.mutex);
    for (size_t i = begin; i < end; ++i) {
      Slot& slot = slots[i];
      if (unreadable[i - begin].load()) {  // whatever is there, it is not overwritten now
        slot.state = SlotState::kSuspect;
        slot.first_seq = 0;
        continue;
      }
      const auto header =
          ParseSegmentHeader(PageAt(heads, i - begin), key, superblock.uuid, &slot.header_crc);
      const auto facts =
          ParseTrailer(PageAt(tails, i - begin), key, superblock.uuid, superblock.segment_bytes);
      if (header && header->slot == i) {
        slot.header_valid = true;
        slot.segment_id = header->segment_id;
        slot.generation = header->generation;
        slot.stream = header->stream;
        slot.opened_at = header->opened_at;
      } else if (facts && facts->slot == i) {
        slot.segment_id = facts->segment_id;
        slot.generation = facts->generation;
        slot.stream = facts->stream;
        slot.opened_at = facts->opened_at;
      } else {
        continue;
      }
      const bool first = slot_of.try_emplace(slot.segment_id, static_cast<uint32_t>(i)).second;
      if (first) slot.state = SlotState::kUnrecovered;
      slot.first_seq = 0;  // unknown
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentTable> SegmentLog::Rep::TableFromFooter(uint32_t slot) {
  const absl::Status none = absl::NotFoundError("no footer");
  const uint64_t end = SlotOffset(slot) + superblock.segment_bytes;
  const AlignedBuffer trailer(kUnit);
  KV_RETURN_IF_ERROR(ReadNow(device, IoClass::kDemand, end - kUnit, trailer.span()));
  const auto facts =
      ParseTrailer(PageAt(trailer, 0), key, superblock.uuid, superblock.segment_bytes);
  if (!facts) return none;
  const AlignedBuffer pages(facts->table_pages * kUnit);
  const uint64_t begin = end - kUnit - pages.size();
  IoWait wait(device);
  for (uint64_t at = 0; at < pages.size(); at += kMaxIoBytes) {
    wait.Submit({IoOp::kRead,
                 IoClass::kDemand,
                 begin + at,
                 {{pages.data() + at, std::min<uint64_t>(kMaxIoBytes, pages.size() - at)}},
                 nullptr});
  }
  KV_RETURN_IF_ERROR(wait.Wait());
  auto table = ParseTable(pages.span(), *facts, key, superblock.segment_bytes);
  if (!table) return none;
  return *std::move(table);
}

// From the front to the first frame that is not whole, in its place and chained to the one before.
absl::StatusOr<SegmentTable> SegmentLog::Rep::TableFromFrames(uint32_t slot) {
  Slot state;
  {
    MutexLock lock(&gate.mutex);
    state = slots[slot];
  }
  SegmentTable table;
  table.facts.uuid = superblock.uuid;
  table.facts.segment_id = state.segment_id;
  table.facts.generation = state.generation;
  table.facts.slot = slot;
  table.facts.stream = state.stream;
  table.facts.opened_at = state.opened_at;
  FrameHead expected;
  expected.segment_id = state.segment_id;
  expected.generation = state.generation;
  expected.prev_crc = state.header_crc;
  std::map<NamespaceId, uint16_t> refs;
  std::vector<Frame> frames;
  uint64_t page = 1;
  while (page + 1 < EndPage()) {
    AlignedBuffer descriptor(kUnit);
    const uint64_t offset = SlotOffset(slot) + page * kUnit;
    KV_RETURN_IF_ERROR(ReadNow(device, IoClass::kDemand, offset, descriptor.span()));
    const size_t pages = ClaimedDescriptorPages(PageAt(descriptor, 0));
    if (pages == 0 || page + pages >= EndPage()) break;
    if (pages > 1) {
      descriptor = AlignedBuffer(pages * kUnit);
      KV_RETURN_IF_ERROR(ReadNow(device, IoClass::kDemand, offset, descriptor.span()));
    }
    std::optional<Frame> frame = ParseFrame(descriptor.span(), key, expected, page, EndPage() - 1);
    if (!frame) break;
    expected.frame_no += 1;
    expected.prev_crc = frame->crc;
    page += pages + frame->head.payload_pages;
    frames.push_back(*std::move(frame));
  }
  if (options.bug == PlantedBug::kWalkDropsLastFrame && !frames.empty()) frames.pop_back();
  if (frames.empty()) return absl::NotFoundError("no whole frame");
  for (const Frame& frame : frames) {
    for (BlockRecord record : frame.records) {
      const NamespaceId& ns = frame.namespaces[record.ns_ref];
      const auto [it, added] = refs.try_emplace(ns, static_cast<uint16_t>(table.namespaces.size()));
      if (added) table.namespaces.push_back(ns);
      record.ns_ref = it->second;
      table.records.push_back(record);
    }
    ++table.facts.frames;
  }
  return table;
}

std::optional<SegmentTable> SegmentLog::Rep::TableFromCatalogue(uint32_t slot, const Slot& state) {
  const auto value = catalogue->Get(superblock.uuid, state.segment_id);
  if (!value) return std::nullopt;
  auto table = ParseCatalogueValue(*value, key, superblock.uuid, superblock.segment_bytes);
  if (table && !Matches(table->facts, slot, state)) table.reset();
  return table;
}

absl::StatusOr<SegmentTable> SegmentLog::Rep::LoadTable(uint32_t slot) {
  Slot state;
  {
    MutexLock lock(&gate.mutex);
    state = slots[slot];
  }
  if (state.table != nullptr) return *state.table;
  if (auto table = TableFromCatalogue(slot, state)) return *std::move(table);
  auto table = TableFromFooter(slot);
  if (table.ok() && options.bug == PlantedBug::kFooterOfOldLife) {
    table->facts.segment_id = state.segment_id;
    table->facts.generation = state.generation;
  }
  if (table.ok() && !Matches(table->facts, slot, state))
    return absl::NotFoundError("the footer is of an older segment");
  return table;
}

// A segment that no footer closes yet: writes one, so that the next start need not walk.
bool SegmentLog::Rep::SealRecovered(uint32_t slot, SegmentTable* table) {
  const size_t pages = TablePages(table->namespaces.size(), table->records.size()) + 1;
  const AlignedBuffer footer(pages * kUnit);
  table->facts.sealed_at = Now();
  EncodeFooter(table, key, footer.span());
  for (const BlockRecord& record : table->records) {
    if (record.off4k + record.pages() + pages > EndPage()) return false;
  }
  const uint64_t end = SlotOffset(slot) + superblock.segment_bytes;
  if (!SyncNow(device, IoClass::kFlush).ok() ||
      !WriteNow(device, IoClass::kFlush, end - footer.size(), footer.span()).ok())
    return false;
  catalogue->Put(superblock.uuid, table->facts.segment_id, EncodeCatalogueValue(*table, key))
      .IgnoreError();
  return true;
}

// The power may have gone while they were written, or their frame failed and they were written once
// more elsewhere. The other copy, or the place that a survivor came from, is whole, and must not be
// hidden by a torn one that is newer.
void SegmentLog::Rep::DropTorn(uint32_t slot, SegmentTable* table) {
  const std::vector<BlockRecord> all = std::move(table->records);
  table->records.clear();
  for (size_t begin = 0; begin < all.size();) {
    uint64_t bytes = 0;
    size_t end = begin;
    for (; end < all.size(); ++end) {
      const uint64_t more = all[end].pages() * kUnit;
      if (end > begin && bytes + more > kVerifyBytes) break;
      bytes += more;
    }
    const AlignedBuffer memory(bytes);
    std::vector<BlockRead> reads;
    std::byte* into = memory.data();
    for (size_t i = begin; i < end; ++i) {
      const BlockRecord& record = all[i];
      if (record.is_erase()) continue;
      reads.push_back({{table->facts.segment_id, record.off4k},
                       table->namespaces[record.ns_ref],
                       record.key,
                       record.stored_len,
                       record.c64_stored,
                       into});
      into += record.pages() * kUnit;
    }
    const std::vector<absl::Status> statuses = ReadWait(std::move(reads), IoClass::kDemand);
    size_t read = 0;
    for (size_t i = begin; i < end; ++i) {
      if (all[i].is_erase() || !absl::IsDataLoss(statuses[read++]))
        table->records.push_back(all[i]);
    }
    begin = end;
  }
  MutexLock lock(&gate.mutex);
  slots[slot].strikes = 0;
}

std::optional<SegmentTable> SegmentLog::Rep::RecoverSlot(uint32_t slot) {
  Slot state;
  {
    MutexLock lock(&gate.mutex);
    state = slots[slot];
  }
  SlotState now = SlotState::kSealed;
  uint64_t LogStats::*source = &LogStats::from_catalogue;
  absl::StatusOr<SegmentTable> table = absl::NotFoundError("");
  if (auto known = TableFromCatalogue(slot, state)) {
    table = *std::move(known);
  } else if ((table = LoadTable(slot)).ok()) {
    source = &LogStats::from_footer;
    catalogue->Put(superblock.uuid, state.segment_id, EncodeCatalogueValue(*table, key))
        .IgnoreError();
  } else if (absl::IsNotFound(table.status()) && state.header_valid &&
             (table = TableFromFrames(slot)).ok()) {
    source = &LogStats::from_frames;
    DropTorn(slot, &*table);
    if (!table->records.empty() && !SealRecovered(slot, &*table)) now = SlotState::kUnsealed;
  }
  {
    MutexLock lock(&gate.mutex);
    if (table.ok() && table->records.empty()) table = absl::NotFoundError("nothing is whole");
    if (!table.ok()) {
      // What could not be read may be there at the next start: it is not overwritten.
      const bool empty = absl::IsNotFound(table.status());
      Vacate(slot, empty ? SlotState::kFree : SlotState::kSuspect);
      // first_seq stays unknown: behind a header without frames an older footer may lie.
      return std::nullopt;
    }
    stats.*source += 1;
    stats.recovered_records += table->records.size();
    slots[slot].first_seq = FirstSeq(*table);
    if (now == SlotState::kUnsealed) {
      slots[slot].table = std::make_shared<SegmentTable>(*table);
      slots[slot].stale_first_seq = 0;  // unknown
    }
    SetState(slot, now);
  }
  return *std::move(table);
}

absl::Status SegmentLog::Recover() {
  Rep& r = *rep_;
  std::vector<uint32_t> newest_first;
  {
    MutexLock lock(&r.gate.mutex);
    for (auto it = r.slot_of.rbegin(); it != r.slot_of.rend(); ++it) {
      if (r.slots[it->second].state == SlotState::kUnrecovered) newest_first.push_back(it->second);
    }
  }
  std::future<std::optional<SegmentTable>> next;
  for (size_t i = 0; i < newest_first.size(); ++i) {
    const std::optional<SegmentTable> table =
        next.valid() ? next.get() : r.RecoverSlot(newest_first[i]);
    if (r.options.recovery_thread && i + 1 < newest_first.size()) {
      next = std::async(std::launch::async, &SegmentLog::Rep::RecoverSlot, &r, newest_first[i + 1]);
    }
    if (table) r.owner->OnRecovered(*table);
  }
  r.recovered.store(true);
  for (const uint64_t id : r.catalogue->Segments(r.superblock.uuid)) {
    bool known = false;
    {
      MutexLock lock(&r.gate.mutex);
      known = r.slot_of.contains(id);
    }
    if (!known) r.catalogue->Delete(r.superblock.uuid, id).IgnoreError();
  }
  return absl::OkStatus();
}

}  // namespace kvarve
