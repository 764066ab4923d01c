// Writes one segment: header, frames in flight side by side, sync, footer. A frame is complete when
// its write and those of all earlier frames of the segment are done; only complete ones are told.
//
// THREADS: one owner calls; requests finish on the device's threads.  BLOCKS: Open only.
#ifndef KVARVE_STORAGE_SEGMENT_SEGMENT_WRITER_H_
#define KVARVE_STORAGE_SEGMENT_SEGMENT_WRITER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/mutex.h"
#include "storage/io/aligned_buffer.h"
#include "storage/io/device.h"
#include "storage/segment/format.h"
#include "storage/segment/planted_bug.h"

namespace kvarve {

inline constexpr uint64_t kFramePayloadBytes = 4ull << 20;  // of several blocks; one may be larger
inline constexpr size_t kFrameBlocks = 1000;  // descriptor and blocks fit in one request

// A block on its way to the device.
struct AppendBlock {
  NamespaceId ns;
  // Everything but off4k and ns_ref; seq is given when it is 0.
  BlockRecord record;
  // stored_len bytes, aligned to 4 KiB and readable to whole pages, unchanged until it is told what
  // became of the block. Null: an erase.
  const std::byte* data = nullptr;
  uint64_t cookie = 0;
};

// Who waits for writers waits here: one lock and condition for all of a log's.
struct IoGate {
  Mutex mutex;
  CondVar changed;
};

class SegmentWriter {
 public:
  // Called without a lock, on the device's threads, for each block of a complete frame.
  using Written = std::function<void(const AppendBlock&, const BlockRecord&, uint64_t segment_id)>;
  struct Place {
    Device* device = nullptr;
    IoGate* gate = nullptr;
    uint64_t offset = 0;  // of the slot
    uint64_t segment_bytes = 0;
    uint64_t key = 0;
    PlantedBug bug = PlantedBug::kNone;
  };

  SegmentWriter(const Place& place, const SegmentHeader& header, Written written);
  // REQUIRES: ios() == 0.
  ~SegmentWriter();

  // Writes the header over the old one, zeros over the old trailer, and makes both durable before
  // any frame is submitted: neither a power loss nor a failure may bring back the segment that was
  // here before, half overwritten.
  absl::Status Open();
  // The same without waiting: what became of it is known when ios() is 0.
  void OpenAhead();
  bool is_open() const;

  // How many leading blocks the next frame takes; 0: the segment is full.
  size_t Fitting(std::span<const AppendBlock> blocks) const;
  // REQUIRES: they fit, and not broken().
  void Submit(std::span<const AppendBlock> blocks, int tries);

  // Requests under way, callbacks included.
  size_t ios() const;
  size_t iosLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(place_.gate->mutex) { return ios_; }
  // A frame failed: what comes from it on is lost, and nothing more may be submitted.
  bool broken() const;
  struct Unwritten {
    std::vector<AppendBlock> blocks;
    int tries = 0;
  };
  // The blocks from the first failed frame on. REQUIRES: ios() == 0.
  std::vector<Unwritten> TakeUnwritten();

  // Sync, then the footer: where a footer is, all before it is durable. Should the footer be lost,
  // the frames tell the same. REQUIRES: ios() == 0, nothing unwritten.
  void StartSeal(uint64_t sealed_at);
  enum class SealState : uint8_t { kOpen, kSealing, kSealed, kFailed };
  SealState seal_state() const;

  const SegmentHeader& header() const { return header_; }
  uint64_t written_bytes() const { return next_page_ * kUnit; }
  bool empty() const;
  // What is complete. REQUIRES: ios() == 0.
  const SegmentTable& table() const { return table_; }

 private:
  enum class FrameState : uint8_t { kWriting, kDone, kFailed };
  struct FrameInFlight {
    Frame frame;
    std::vector<AppendBlock> blocks;
    AlignedBuffer descriptor;
    int tries = 0;
    FrameState state = FrameState::kWriting;
  };

  Frame BuildFrame(std::vector<AppendBlock>* blocks);
  void OnFrame(FrameInFlight* frame, bool ok);
  void AddToTable(const FrameInFlight& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(place_.gate->mutex);
  void SubmitIo(IoOp op, uint64_t offset, std::vector<iovec> buffers,
                std::function<void(bool ok)> done);

  const Place place_;
  const SegmentHeader header_;
  const Written written_;

  // Of the owner.
  uint64_t next_page_ = 1;
  uint32_t next_frame_ = 0;
  uint64_t last_crc_ = 0;
  uint64_t planned_records_ = 0;
  std::map<NamespaceId, uint16_t> planned_namespaces_;
  AlignedBuffer header_page_;
  AlignedBuffer no_trailer_;
  AlignedBuffer footer_;

  // Under the gate's mutex.
  size_t ios_ = 0;
  std::deque<FrameInFlight> frames_;  // not yet complete, in order; addresses are stable
  bool is_open_ = false;              // of OpenAhead
  bool broken_ = false;
  SealState seal_state_ = SealState::kOpen;
  SegmentTable table_;
  std::map<NamespaceId, uint16_t> table_refs_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_SEGMENT_WRITER_H_
