// The log of one device: a ring of segments that are written once, from front to end, and reclaimed
// oldest first. It knows where blocks were written and whether what it reads is what was written;
// which blocks exist is its owner's affair.
//
// No wrong byte is ever an answer, by checksum and not by order: a block that is read is compared
// with the checksum that binds its namespace, key and length. Order only keeps more: there are
// three syncs a segment, behind its header (so that the segment before does not come back half
// overwritten), before its footer (nothing sealed is lost with the power), and before the slot of a
// reclaimed segment whose survivors moved is used again.
//
// THREADS: Read, Stats: any. Recover: one, beside all others. Append, Drain, Seal, Maintain, Erase,
// Scrub: one at a time (the flusher). The owner is called without a lock, on the device's threads,
// the flusher's and Recover's; it must not call the flusher's methods.
// BLOCKS: the flusher's methods and Recover, on the device; Read, where the caller waits. Stats:
// never.
#ifndef KVARVE_STORAGE_SEGMENT_SEGMENT_LOG_H_
#define KVARVE_STORAGE_SEGMENT_SEGMENT_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/catalogue/catalogue.h"
#include "storage/io/device.h"
#include "storage/segment/format.h"
#include "storage/segment/planted_bug.h"
#include "storage/segment/segment_writer.h"

namespace kvarve {

// Where a block lies. A segment id is never used again, so an old location can never name another
// block's place.
struct BlockLocation {
  uint64_t segment_id = 0;
  uint32_t off4k = 0;
  friend bool operator==(const BlockLocation&, const BlockLocation&) = default;
};

// Who decides what exists. One that only looks needs no more than OnRecovered.
// What of a segment that is reclaimed is carried on.
enum class Keep : uint8_t {
  kAll,     // the segment is failing: whatever is still there
  kWorthy,  // what is worth a write
  kBest,    // carrying on what is worth it made no room of late: the best of it
};

class LogOwner {
 public:
  virtual ~LogOwner() = default;
  // A segment found by Recover, the newest first; of a block that is known already nothing is to be
  // done. Erases among the records take away others (erased_seqs.h).
  virtual void OnRecovered(const SegmentTable& table) = 0;
  // Complete: readable, and found again after the end of the process.
  virtual void OnWritten(const AppendBlock& block, const BlockLocation& at) {}
  // Given up after a second try; `why` says so.
  virtual void OnNotWritten(const AppendBlock& block, const absl::Status& why) {}
  // Sealed and synced: found again after a power loss.
  virtual void OnSealed(uint64_t segment_id) {}
  // Before a segment is reclaimed: sets keep[i] for the records to be carried on.
  virtual void ChooseSurvivors(const SegmentTable& table, Keep what, std::vector<bool>* keep) {}
  // A survivor lies elsewhere now. To be taken only if the owner still has it at `from`.
  virtual void OnMoved(const NamespaceId& ns, const BlockRecord& record, const BlockLocation& from,
                       const BlockLocation& to) {}
  // Every location in the segment is void; reads of them miss. The table has no records when it
  // could not be read any more.
  virtual void OnReclaimed(const SegmentTable& table) {}
};

struct LogOptions {
  uint32_t depth = 8;               // frames in flight
  uint32_t free_slots_goal = 4;     // what Maintain keeps ready; cut to a quarter of the slots
  uint32_t strikes_max = 3;         // failed reads or blocks until a segment is evacuated
  uint32_t write_failures_max = 8;  // in a row, until the device is switched off for writing
  uint64_t incompat = 0;            // features of what it will append: the superblock says so first
  bool recovery_thread = false;     // Recover reads a segment's table while the owner has the last
  // Runs the check of reads over 256 KiB; null: on the device's thread.
  std::function<void(std::function<void()>)> executor;
  std::function<uint64_t()> wall_seconds;  // null: the system's
  PlantedBug bug = PlantedBug::kNone;      // tests only
};

struct BlockRead {
  BlockLocation at;
  NamespaceId ns;
  BlockKey key;
  uint32_t stored_len = 0;
  uint64_t c64_stored = 0;
  std::byte* into = nullptr;  // aligned, with room for whole pages
};
// Tells what became of reads[first], reads[first + 1], ...: OK: the bytes are there and verified.
// NotFound: the segment was reclaimed. DataLoss: other bytes. Else the device's error. The memory
// of one that failed may hold anything.
using ReadDone = std::function<void(size_t index, const absl::Status& status)>;

enum class SlotState : uint8_t {
  kFree,
  kUnrecovered,  // has a segment that Recover has not come to
  kOpen,
  kSealing,
  kSealed,
  kUnsealed,  // complete, but its footer could not be written: walked at the next start
  kClosing,   // reclaimed, still read from
  kSuspect,   // failed too often: not used until the next start
};
inline constexpr int kSlotStates = 8;
std::string_view SlotStateName(SlotState state);

struct LogStats {
  uint64_t slots[kSlotStates] = {};  // by SlotState
  uint64_t segment_bytes = 0;
  bool recovered = false;
  bool write_off = false;  // too many failures: nothing is written any more
  // Since the start.
  uint64_t appended_blocks = 0, appended_bytes = 0;  // complete; payload
  uint64_t device_bytes = 0;                         // written: frames, headers, footers
  uint64_t not_written_blocks = 0;
  uint64_t write_failures = 0, segments_abandoned = 0;
  uint64_t segments_sealed = 0, segments_reclaimed = 0;
  uint64_t reinserted_blocks = 0, reinserted_bytes = 0;
  uint64_t read_blocks = 0, read_bytes = 0, read_ios = 0;  // begun
  uint64_t read_errors = 0, corrupt_blocks = 0, gone_blocks = 0;
  uint64_t scrubbed_bytes = 0, scrub_failures = 0;
  uint64_t catalogue_errors = 0;
  // Of Recover: segments by where their table came from, and records.
  uint64_t from_catalogue = 0, from_footer = 0, from_frames = 0, recovered_records = 0;
};

class SegmentLog {
 public:
  // Reads the superblock and every segment header, takes a new epoch. The log can be appended to
  // and read from at once; what older segments hold is known after Recover. All pointers outlive
  // the log. Fails as ReadSuperblock and BeginEpoch do.
  static absl::StatusOr<std::unique_ptr<SegmentLog>> Open(Device* device, Catalogue* catalogue,
                                                          LogOwner* owner,
                                                          const LogOptions& options,
                                                          const DeviceUuid* expected = nullptr);
  // Ends like a crash, but waits for requests under way: call Seal before for a polite stop.
  ~SegmentLog();

  // Tells the owner of every segment: from the catalogue, else from the footer, else frame by frame
  // to the first bad one, and then only of blocks that are whole. Other payloads are not read:
  // their checksums are compared when they are. Idempotent over starts. Internal: the device fails.
  absl::Status Recover();

  // Writes blocks (of one chain, in order, so that they lie side by side) into the stream; what
  // became of each the owner is told, before the next Drain returns. Waits while `depth` frames are
  // in flight. A block over what a segment holds is not written. Before Recover is done nothing is
  // reclaimed: without a free slot blocks are not written then.
  void Append(StreamClass stream, std::span<const AppendBlock> blocks);
  // Until all that was appended is told and no seal is under way.
  void Drain();
  // Drain, then seals what is open.
  void Seal();
  // Reclaims until the goal of free slots is met; evacuates suspect segments. Needs Recover.
  void Maintain();
  // What was appended until now of the namespace, or of these keys of it, stays away, in later
  // starts too. The owner has forgotten it before.
  absl::Status Erase(const NamespaceId& ns, std::span<const BlockKey> keys = {});
  // Verifies every block of the sealed segment after `segment_id`. Returns its id; 0: there is
  // none.
  uint64_t Scrub(uint64_t segment_id);

  // Reads and verifies. Neighbours are read together, up to 4 MiB over gaps of up to 64 KiB.
  // `done` is called once a block, on the device's threads, the executor's, or here. A caller that
  // waits for it says so: what is one short request it may carry out itself, then.
  void Read(std::vector<BlockRead> reads, IoClass io_class, ReadDone done,
            bool caller_waits = false);

  // Where on the device a block lies; none: its segment is gone. For inspection and benches.
  std::optional<uint64_t> OffsetOf(const BlockLocation& at) const;
  const Superblock& superblock() const;
  LogStats Stats() const;

  struct Rep;  // log_rep.h

 private:
  explicit SegmentLog(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

// Read, waited for.  BLOCKS.
std::vector<absl::Status> ReadBlocks(SegmentLog* log, Device* device, std::vector<BlockRead> reads,
                                     IoClass io_class);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_SEGMENT_LOG_H_
