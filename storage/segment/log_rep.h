// The log's state and the steps that its files share. Private to storage/segment.
//
// Invariants, under gate.mutex:
//  * slot_of has exactly the slots whose state is neither kFree nor kSuspect;
//  * a slot with readers is not used again.
// THREADS: as said at each part.
#ifndef KVARVE_STORAGE_SEGMENT_LOG_REP_H_
#define KVARVE_STORAGE_SEGMENT_LOG_REP_H_

#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "storage/segment/segment_log.h"

namespace kvarve {

inline constexpr int kStreams = 2;

struct Slot {
  SlotState state = SlotState::kFree;
  uint32_t generation = 0;
  uint64_t segment_id = 0;
  uint64_t header_crc = 0;
  uint64_t opened_at = 0;
  StreamClass stream = StreamClass::kFresh;
  bool header_valid = false;
  uint32_t readers = 0;
  uint32_t strikes = 0;
  // The least seq of its records, kept when the segment is gone: until the slot is written again a
  // later start finds it. Stale: of the segments before, as long as their footer lies in the slot:
  // where a header cannot be read, a start takes the footer that it finds.
  uint64_t first_seq = std::numeric_limits<uint64_t>::max();
  uint64_t stale_first_seq = std::numeric_limits<uint64_t>::max();
  std::shared_ptr<const SegmentTable> table;  // only while the device has no footer of it
};

struct SegmentLog::Rep {
  Device* device = nullptr;
  Catalogue* catalogue = nullptr;
  LogOwner* owner = nullptr;
  SegmentLog* log = nullptr;
  LogOptions options;
  Superblock superblock;
  uint64_t key = 0;

  mutable IoGate gate;
  // ---- Under gate.mutex.
  std::vector<Slot> slots;
  std::map<uint64_t, uint32_t> slot_of;  // segment id -> slot, oldest first
  LogStats stats;

  // ---- Of the flusher alone.
  std::array<std::unique_ptr<SegmentWriter>, kStreams> open;
  // The next segment for new blocks: opened while the one before fills, as a sync may take long.
  std::unique_ptr<SegmentWriter> ahead;
  std::vector<std::unique_ptr<SegmentWriter>> sealing;
  uint32_t next_segment = 1;
  uint64_t newest_written = 0;  // the newest segment that has a frame
  uint32_t next_slot = 0;       // where the search for a free one begins
  uint32_t failures_in_a_row = 0;
  std::set<uint64_t> evacuated;  // suspect segments whose blocks were moved

  uint64_t next_seq = 0;
  uint64_t moving_segment = 0;  // whose survivors are being written
  bool moves_unsynced = false;
  uint32_t reclaims_in_vain = 0;  // since one made room, or a segment was opened for new blocks
  std::array<std::atomic<uint64_t>, kStreams> erases_written{};  // new ones, carried ones
  std::atomic<bool> recovered{false};

  // Requests of Read under way; under gate.mutex.
  size_t reads = 0;

  uint64_t Now() const;
  uint64_t SlotOffset(uint32_t slot) const { return superblock.slot_offset(slot); }
  uint64_t EndPage() const { return superblock.segment_bytes / kUnit; }
  // Waits until pred() is true; pred runs under the gate's mutex. Runs the device if it has no
  // threads.
  template <typename Pred>
  void WaitFor(Pred pred) {
    for (;;) {
      {
        MutexLock lock(&gate.mutex);
        if (pred()) return;
      }
      if (device->RunOne()) continue;
      MutexLock lock(&gate.mutex);
      while (!pred()) gate.changed.wait(gate.mutex);
      return;
    }
  }
  void SetState(uint32_t slot, SlotState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate.mutex);
  uint64_t CountSlots(SlotState state) const;
  // The segment leaves its slot. Readers that are left keep the slot from use.
  void Vacate(uint32_t slot, SlotState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate.mutex);

  // ---- segment_log.cc: the flusher's.
  // A slot for `stream`: a free one, else one reclaimed, if there may be reclaiming.
  std::optional<uint32_t> TakeSlot(StreamClass stream, bool may_reclaim);
  // A segment in the slot that is not opened yet.
  std::unique_ptr<SegmentWriter> NewWriter(StreamClass stream, uint32_t slot);
  void OpenAhead();  // if there is a slot to spare
  bool TakeAhead();  // makes it the open one; false: there is none, or it cannot be written
  void DropAhead();
  // The open segment of the stream, if need be a new one. Null: no slot, or the device is off.
  SegmentWriter* Writer(StreamClass stream, bool may_reclaim);
  // Appends, and tries once more what a failed segment left behind.
  void AppendAll(StreamClass stream, std::span<const AppendBlock> blocks, int tries,
                 bool may_reclaim);
  void Refuse(std::span<const AppendBlock> blocks, const absl::Status& why);
  // Moves the open segment to the sealing ones.
  void Close(StreamClass stream);
  // Takes a broken segment out; returns what has to be written again.
  std::vector<SegmentWriter::Unwritten> Abandon(StreamClass stream);
  // Starts seals whose frames are all written and finishes those that are synced.
  void Pump(bool may_reclaim);
  void FinishSeal(SegmentWriter* writer);
  void DrainAll(bool may_reclaim);
  size_t FramesInFlightLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate.mutex);
  void WriteFailed();

  // ---- log_gc.cc: the flusher's.
  // Frees (or begins to free) the oldest segment that can be. False: there is none.
  bool ReclaimOldest();
  bool Reclaim(uint32_t slot, bool evacuate);
  // Writes what shall survive of the segment elsewhere. False: an erase could not be written.
  bool MoveSurvivors(const SegmentTable& table, const std::vector<bool>& keep);
  std::vector<AppendBlock> ReadSurvivors(const SegmentTable& table, std::span<const size_t> chosen,
                                         std::byte* memory);
  bool EraseIsNeeded(const BlockRecord& erase, uint64_t segment_id) const;
  void FreeClosed();

  // ---- log_recover.cc
  absl::Status ReadHeaders();
  // NotFound: there is none. Else the device's error, which says nothing about what is there.
  absl::StatusOr<SegmentTable> TableFromFooter(uint32_t slot);
  absl::StatusOr<SegmentTable> TableFromFrames(uint32_t slot);
  std::optional<SegmentTable> TableFromCatalogue(uint32_t slot, const Slot& state);
  // Of a segment that is known: from memory, the catalogue or the footer.
  absl::StatusOr<SegmentTable> LoadTable(uint32_t slot);
  // What the owner is to be told of the slot; none: nothing.
  std::optional<SegmentTable> RecoverSlot(uint32_t slot);
  // Of a segment that was never synced: takes out the blocks that are not whole.
  void DropTorn(uint32_t slot, SegmentTable* table);
  bool SealRecovered(uint32_t slot, SegmentTable* table);
  bool Matches(const SegmentFacts& facts, uint32_t slot, const Slot& state) const;

  // ---- log_read.cc
  void Strike(uint64_t segment_id, bool corrupt);
  std::vector<absl::Status> ReadWait(std::vector<BlockRead> wanted, IoClass io_class);
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_LOG_REP_H_
