// Moves blocks between an engine's pages and host memory, on whatever device has the pages: gather
// takes pages to blocks (offload), scatter blocks to pages (onload). A Move is work under way; what
// it reads and writes, and whatever keeps that memory (leases, staging), must stay until it is
// done, also when nobody wants it any more: Move's destructor waits.
//
// Three ways, by the shape (MethodFor), or as Options says:
//   copies   batched copies by the copy engines: pieces that are contiguous on both sides are long
//   kernel   one launch reads or writes host memory through the bus: short pieces
//   staged   kernel to or from a ring in device memory, whole layers over the bus: very short ones
// What is moved is cut into groups of layers, each with an event: an engine's stream can wait for
// the first while the others are on their way, and in the staged way one group's copy runs beside
// the kernel of another.
//
// Bounded: kMaxMoves under way (fewer where the ring is smaller), kMaxBlocks each; one more is
// ResourceExhausted. A move's place is free as soon as its work is done, also before anybody asks.
//
// THREADS: any; a Move one at a time.  BLOCKS: Move::Wait and ~Move; Start on the CPU device for
// the copying.
#ifndef KVARVE_GPU_TRANSFER_TRANSFER_H_
#define KVARVE_GPU_TRANSFER_TRANSFER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/device/device.h"
#include "gpu/paged/kv_view.h"
#include "gpu/transfer/host_registry.h"
#include "gpu/transfer/move_places.h"
#include "storage/base/mutex.h"
#include "storage/base/units.h"
#include "storage/block/layout.h"

namespace kvarve {

enum class MoveMethod { kCopies, kKernel, kStaged };
inline constexpr size_t kMoveMethods = 3;
std::string_view MoveMethodName(MoveMethod method);

enum class MoveDirection { kGather, kScatter };

struct BlockMove {
  std::span<std::byte> block;         // in host memory, of BlockBytes(); only read by a scatter
  std::span<const int64_t> page_ids;  // of this block, in the order of the tokens
};

// How a move stands to what an engine computes.
struct EngineOrder {
  EngineStream stream = 0;
  // What comes before the move, from MarkEngine; null: all that the stream has when it starts.
  std::shared_ptr<DeviceEvent> after;
};

class Transfer;

// Work under way in a Transfer, which must outlive it.
class Move {
 public:
  ~Move();  // waits
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;
  // Internal: the device failed, and nothing of it moves any more.
  absl::StatusOr<bool> Done();
  absl::Status Wait();
  // What the engine's stream gets next comes after the rows of this layer, and of those before it.
  absl::Status EngineAfterLayer(EngineStream engine, uint32_t layer);

 private:
  friend class Transfer;
  explicit Move(Transfer* transfer) : transfer_(transfer) {}
  void End(const absl::Status& status);
  Transfer* const transfer_;
  MovePlaces::Place place_;
  bool ended_ = false;
  absl::Status status_;         // of its end
  std::vector<uint32_t> ends_;  // of each group: one past its last layer
  std::vector<std::shared_ptr<DeviceEvent>> events_;
};

struct TransferStats {  // since Create
  uint64_t moves = 0, blocks = 0, bytes = 0;
  std::array<uint64_t, kMoveMethods> by_method{};  // moves
  uint64_t exhausted = 0;                          // moves that found no room
  uint64_t in_flight = 0;                          // now, as far as somebody has looked
};

class Transfer {
 public:
  static constexpr size_t kMaxMoves = 32;
  static constexpr size_t kMaxBlocks = 16;                 // of one move
  static constexpr uint64_t kCopyPieceBytes = 28 * kKiB;   // below, copy engines collapse (H100)
  static constexpr uint64_t kKernelPieceBytes = 1 * kKiB;  // below, bus transactions are short

  struct Options {
    std::optional<MoveMethod> method;
    uint64_t ring_bytes = 64 * kMiB;  // of device memory, for the staged way
    uint32_t groups = 4;              // of layers, at most
  };
  // Allocates all that it will ever need. InvalidArgument: ValidateViewFor. On a CUDA device the
  // view's addresses are the device's. `registry` is that device's.
  static absl::StatusOr<std::unique_ptr<Transfer>> Create(std::shared_ptr<ComputeDevice> device,
                                                          std::shared_ptr<HostRegistry> registry,
                                                          KvView view, const BlockLayout& layout,
                                                          const Options& options);
  ~Transfer();

  const BlockLayout& layout() const { return layout_; }
  const ComputeDeviceInfo& device() const { return device_->info(); }
  MoveMethod method() const { return method_; }
  uint32_t pages_per_block() const { return layout_.tokens / view_.page_tokens; }
  size_t max_blocks() const { return max_blocks_; }  // of one move
  // What Start would say to one block's ids.
  absl::Status CheckPages(std::span<const int64_t> page_ids, uint32_t token_begin,
                          uint32_t token_end) const;

  // What the engine's stream has so far, for a move that starts later and on another thread: by
  // then the engine may be computing the next step, or capturing. Unavailable: it captures now.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> MarkEngine(EngineStream engine) {
    return device_->RecordEngine(engine);
  }
  // Starts moving tokens [token_begin, token_end), at least one, of up to max_blocks() blocks. A
  // gather holds up what the engine's stream gets later until the pages are read: it may write
  // them. Whatever the error, nothing moves (any more). InvalidArgument: the request.
  // ResourceExhausted: too many are under way, and nothing else. FailedPrecondition: host memory
  // that the device cannot reach. Unavailable: the engine captures. Internal: the device.
  absl::StatusOr<std::unique_ptr<Move>> Start(MoveDirection direction,
                                              std::span<const BlockMove> blocks,
                                              uint32_t token_begin, uint32_t token_end,
                                              const EngineOrder& engine = {});
  // Until another move may have a place.
  void AwaitRoom() { places_->AwaitRoom(); }
  TransferStats stats() const;

 private:
  friend class Move;
  // What one move uses: its own streams, tables on both sides, a piece of the ring.
  struct Slot {
    std::unique_ptr<DeviceStream> kernels, copies;
    std::byte* tables = nullptr;  // host
    uint64_t tables_at = 0;       // device
    uint64_t ring_at = 0;         // device; staged
  };
  struct Request;
  Transfer(std::shared_ptr<ComputeDevice> device, std::shared_ptr<HostRegistry> registry,
           KvView view, const BlockLayout& layout);
  absl::Status Prepare(const Options& options);
  absl::Status PrepareTables();
  absl::Status MakeTables(Request* request, Slot* slot) const;
  absl::Status Queue(const Request& request, Slot* slot, Move* move) const;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Staged(const Request& request, const Slot& slot,
                                                      uint32_t layer, uint32_t end) const;
  std::vector<CopyJob> Pieces(const Request& request, uint32_t layer, uint32_t end) const;
  uint64_t LongestPiece() const;
  size_t TensorsPerLayer() const { return layout_.v_dim > 0 ? 2 : 1; }
  uint64_t LayerOffset(uint32_t layer) const;

  const std::shared_ptr<ComputeDevice> device_;
  const std::shared_ptr<HostRegistry> registry_;
  const KvView view_;
  const BlockLayout layout_;
  const std::vector<MoveTensor> tensors_;
  MoveMethod method_ = MoveMethod::kKernel;
  size_t max_blocks_ = kMaxBlocks;
  uint32_t layers_per_group_ = 1;
  struct HostTables;  // of all slots, and the tensors'
  std::unique_ptr<HostTables> tables_;
  DeviceMemory device_tables_, ring_;
  uint64_t tensors_at_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<MovePlaces> places_;  // of slots_
  mutable Mutex mutex_;
  TransferStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_GPU_TRANSFER_TRANSFER_H_
