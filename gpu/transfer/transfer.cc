#include "gpu/transfer/transfer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "gpu/kernels/plan.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint64_t kTableAlignment = 256;

uint64_t Aligned(uint64_t bytes) { return RoundUp(bytes, kTableAlignment); }

}  // namespace

// Page-aligned, so that a registration has nothing else on its pages.
struct Transfer::HostTables {
  static constexpr size_t kPage = 4096;
  HostTables(ComputeDevice* its_device, uint64_t its_bytes)
      : device(its_device), bytes(RoundUp(its_bytes, kPage)) {
    data = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes));
    KV_CHECK(data != nullptr);
  }
  ~HostTables() {
    if (registered) device->Unregister(data).IgnoreError();
    std::free(data);
  }
  HostTables(const HostTables&) = delete;
  HostTables& operator=(const HostTables&) = delete;
  ComputeDevice* const device;
  const uint64_t bytes;
  std::byte* data = nullptr;
  bool registered = false;
};

// One Start, checked.
struct Transfer::Request {
  MoveDirection direction{};
  std::span<const BlockMove> blocks;
  uint32_t token_begin = 0, token_end = 0;
  EngineOrder engine;
  std::vector<uint64_t> addresses;  // the blocks', for the device
  std::vector<int64_t> page_ids;    // of all of them
  MoveRequest plan;                 // its spans are of this and of the slot
  Launch launch;
};

std::string_view MoveMethodName(MoveMethod method) {
  switch (method) {
    case MoveMethod::kCopies:
      return "copies";
    case MoveMethod::kKernel:
      return "kernel";
    case MoveMethod::kStaged:
      return "staged";
  }
  return "";
}

Move::~Move() { Wait().IgnoreError(); }

void Move::End(const absl::Status& status) {
  ended_ = true;
  status_ = status;
  transfer_->places_->Release(place_);
}

// Groups run on one stream, in order: the last one's event is the move's.
absl::StatusOr<bool> Move::Done() {
  if (!ended_ && !events_.empty()) {
    const absl::StatusOr<bool> done = events_.back()->Done();
    if (done.ok() && !*done) return false;
    End(done.status());
  }
  if (!status_.ok()) return status_;
  return true;
}

absl::Status Move::Wait() {
  if (!ended_ && !events_.empty()) End(events_.back()->Wait());
  return status_;
}

absl::Status Move::EngineAfterLayer(EngineStream engine, uint32_t layer) {
  for (size_t i = 0; i < events_.size(); ++i) {
    if (layer < ends_[i])
      return transfer_->slots_[place_.number].kernels->EngineAfter(engine, *events_[i]);
  }
  return absl::InvalidArgumentError(absl::StrFormat("a move has no layer %d", layer));
}

Transfer::Transfer(std::shared_ptr<ComputeDevice> device, std::shared_ptr<HostRegistry> registry,
                   KvView view, const BlockLayout& layout)
    : device_(std::move(device)),
      registry_(std::move(registry)),
      view_(std::move(view)),
      layout_(layout),
      tensors_(MoveTensors(view_, layout_)) {}

Transfer::~Transfer() = default;

absl::StatusOr<std::unique_ptr<Transfer>> Transfer::Create(std::shared_ptr<ComputeDevice> device,
                                                           std::shared_ptr<HostRegistry> registry,
                                                           KvView view, const BlockLayout& layout,
                                                           const Options& options) {
  KV_RETURN_IF_ERROR(ValidateViewFor(view, layout));
  if (options.groups == 0) return absl::InvalidArgumentError("a move of no groups of layers");
  std::unique_ptr<Transfer> transfer(
      new Transfer(std::move(device), std::move(registry), std::move(view), layout));
  KV_RETURN_IF_ERROR(transfer->Prepare(options));
  return transfer;
}

// Bytes that lie together on both sides, a whole page's rows of one head or of all heads.
uint64_t Transfer::LongestPiece() const {
  uint64_t longest = 0;
  for (const MoveTensor& t : tensors_) {
    auto piece = static_cast<uint64_t>(t.row_bytes);
    if (t.token_stride == t.row_bytes) {
      piece *= view_.page_tokens;
      const bool block_is_page = view_.page_tokens == layout_.tokens;
      if (block_is_page && t.head_stride == static_cast<int64_t>(piece)) piece *= view_.kv_heads;
    }
    longest = std::max(longest, piece);
  }
  return longest;
}

uint64_t Transfer::LayerOffset(uint32_t layer) const {
  return layer == layout_.layers ? layout_.BlockBytes() : layout_.KOffset(layer, 0, 0);
}

absl::Status Transfer::Prepare(const Options& options) {
  const bool is_cpu = device_->info().is_cpu;
  const uint64_t piece = LongestPiece();
  method_ = is_cpu                       ? MoveMethod::kKernel
            : options.method.has_value() ? *options.method
            : piece >= kCopyPieceBytes   ? MoveMethod::kCopies
            : piece >= kKernelPieceBytes ? MoveMethod::kKernel
                                         : MoveMethod::kStaged;
  layers_per_group_ = is_cpu ? layout_.layers : (layout_.layers - 1) / options.groups + 1;
  size_t moves = kMaxMoves;
  if (method_ == MoveMethod::kStaged) {
    const uint64_t blocks = options.ring_bytes / layout_.BlockBytes();
    if (blocks == 0) {
      return absl::InvalidArgumentError(absl::StrFormat("a ring of %d bytes for blocks of %d",
                                                        options.ring_bytes, layout_.BlockBytes()));
    }
    // At least two moves side by side, where that leaves each a block.
    max_blocks_ = std::min<uint64_t>(kMaxBlocks, std::max<uint64_t>(1, blocks / 2));
    moves = std::min<uint64_t>(kMaxMoves, blocks / max_blocks_);
    KV_ASSIGN_OR_RETURN(ring_, device_->Allocate(moves * max_blocks_ * layout_.BlockBytes()));
  }
  slots_.resize(moves);
  for (size_t i = 0; i < moves; ++i) {
    Slot& slot = slots_[i];
    KV_ASSIGN_OR_RETURN(slot.kernels, device_->NewStream());
    if (method_ == MoveMethod::kStaged) {
      KV_ASSIGN_OR_RETURN(slot.copies, device_->NewStream());
    }
    slot.ring_at = ring_.address() + i * max_blocks_ * layout_.BlockBytes();
  }
  places_ = std::make_unique<MovePlaces>(moves);
  return PrepareTables();
}

// [tensors][slot: page ids, block addresses] once on the host and once on the device.
absl::Status Transfer::PrepareTables() {
  const uint64_t tensors = Aligned(tensors_.size() * sizeof(MoveTensor));
  const uint64_t slot_bytes =
      Aligned(max_blocks_ * pages_per_block() * sizeof(int64_t) + max_blocks_ * sizeof(uint64_t));
  tables_ = std::make_unique<HostTables>(device_.get(), tensors + slots_.size() * slot_bytes);
  std::memcpy(tables_->data, tensors_.data(), tensors_.size() * sizeof(MoveTensor));
  tensors_at_ = reinterpret_cast<uint64_t>(tables_->data);
  if (!device_->info().is_cpu) {
    KV_ASSIGN_OR_RETURN(device_tables_, device_->Allocate(tables_->bytes));
    KV_ASSIGN_OR_RETURN(const uint64_t host_at,
                        device_->Register({tables_->data, tables_->bytes}, HostAccess::kReadWrite));
    tables_->registered = true;
    tensors_at_ = device_tables_.address();
    const CopyJob job{host_at, tensors_at_, tensors};
    KV_RETURN_IF_ERROR(slots_[0].kernels->Copy({&job, 1}, CopyOrder::kAny));
    KV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> there, slots_[0].kernels->Record());
    KV_RETURN_IF_ERROR(there->Wait());
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].tables = tables_->data + tensors + i * slot_bytes;
    slots_[i].tables_at = tensors_at_ + tensors + i * slot_bytes;
  }
  return absl::OkStatus();
}

absl::Status Transfer::CheckPages(std::span<const int64_t> page_ids, uint32_t token_begin,
                                  uint32_t token_end) const {
  if (page_ids.size() != pages_per_block()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d page ids for a block of %d pages", page_ids.size(), pages_per_block()));
  }
  if (token_begin > token_end || token_end > layout_.tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("tokens [%d, %d) of a block of %d",
                                                      token_begin, token_end, layout_.tokens));
  }
  if (token_begin == token_end) return absl::OkStatus();
  const size_t first = token_begin / view_.page_tokens, last = (token_end - 1) / view_.page_tokens;
  for (size_t i = first; i <= last; ++i) {
    if (page_ids[i] < 0 || page_ids[i] >= view_.pages) {
      return absl::InvalidArgumentError(
          absl::StrFormat("page %d of the block: id %d of %d pages", i, page_ids[i], view_.pages));
    }
    if (std::find(page_ids.begin() + first, page_ids.begin() + i, page_ids[i]) !=
        page_ids.begin() + i) {
      return absl::InvalidArgumentError(
          absl::StrFormat("page id %d stands twice in one block", page_ids[i]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Move>> Transfer::Start(MoveDirection direction,
                                                      std::span<const BlockMove> blocks,
                                                      uint32_t token_begin, uint32_t token_end,
                                                      const EngineOrder& engine) {
  Request request{direction, blocks, token_begin, token_end, engine};
  for (const BlockMove& block : blocks) {
    KV_RETURN_IF_ERROR(CheckPages(block.page_ids, token_begin, token_end));
    if (block.block.size() != layout_.BlockBytes()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a block of %d bytes where the layout has %d", block.block.size(), layout_.BlockBytes()));
    }
    const std::optional<uint64_t> at =
        registry_->AddressOf(block.block.data(), layout_.BlockBytes());
    if (!at) return absl::FailedPreconditionError("host memory that the device cannot reach");
    request.addresses.push_back(*at);
    request.page_ids.insert(request.page_ids.end(), block.page_ids.begin(), block.page_ids.end());
  }
  if (blocks.empty() || blocks.size() > max_blocks_ || token_begin == token_end) {
    return absl::InvalidArgumentError(absl::StrFormat("a move of %d blocks, tokens [%d, %d)",
                                                      blocks.size(), token_begin, token_end));
  }
  const std::optional<MovePlaces::Place> place = places_->Take();
  if (!place) {
    MutexLock lock(&mutex_);
    ++stats_.exhausted;
    return absl::ResourceExhaustedError("too many moves are under way");
  }
  Slot& slot = slots_[place->number];
  std::unique_ptr<Move> move(new Move(this));
  absl::Status status = MakeTables(&request, &slot);
  if (status.ok()) status = Queue(request, &slot, move.get());
  if (!status.ok()) {
    // Something may be on the streams: the place, and the caller's memory, are free only behind it.
    for (DeviceStream* stream : {slot.kernels.get(), slot.copies.get()})
      if (stream != nullptr) stream->Synchronize().IgnoreError();
    places_->Release(*place);
    // No room is what the caller can wait for; a driver's want of memory is not.
    return absl::IsResourceExhausted(status) ? absl::InternalError(status.message()) : status;
  }
  move->place_ = *place;
  places_->Queued(*place, move->events_.back());
  MutexLock lock(&mutex_);
  ++stats_.moves;
  ++stats_.by_method[static_cast<int>(method_)];
  stats_.blocks += blocks.size();
  stats_.bytes +=
      blocks.size() * (layout_.BlockBytes() / layout_.tokens) * (token_end - token_begin);
  return move;
}

absl::Status Transfer::MakeTables(Request* planned, Slot* slot) const {
  Request& request = *planned;
  const uint64_t ids_bytes = request.page_ids.size() * sizeof(int64_t);
  std::vector<uint64_t> ring;
  if (method_ == MoveMethod::kStaged) {
    for (size_t i = 0; i < request.blocks.size(); ++i)
      ring.push_back(slot->ring_at + i * layout_.BlockBytes());
  }
  const std::vector<uint64_t>& blocks = method_ == MoveMethod::kStaged ? ring : request.addresses;
  request.plan.page_ids = request.page_ids;
  request.plan.blocks = blocks;
  request.plan.token_begin = request.token_begin;
  request.plan.token_end = request.token_end;
  request.plan.tensors_at = tensors_at_;
  request.plan.page_ids_at = slot->tables_at;
  request.plan.blocks_at = slot->tables_at + ids_bytes;
  KV_ASSIGN_OR_RETURN(request.launch, request.direction == MoveDirection::kGather
                                          ? PlanGather(view_, layout_, request.plan)
                                          : PlanScatter(view_, layout_, request.plan));
  if (method_ == MoveMethod::kCopies) return absl::OkStatus();  // has no tables
  std::memcpy(slot->tables, request.page_ids.data(), ids_bytes);
  std::memcpy(slot->tables + ids_bytes, blocks.data(), blocks.size() * sizeof(uint64_t));
  if (device_->info().is_cpu) return absl::OkStatus();
  const CopyJob job{reinterpret_cast<uint64_t>(slot->tables), slot->tables_at,
                    ids_bytes + blocks.size() * sizeof(uint64_t)};
  return slot->kernels->Copy({&job, 1}, CopyOrder::kAny);
}

// Copies of the pieces that are contiguous on both sides, of layers [layer, end).
std::vector<CopyJob> Transfer::Pieces(const Request& request, uint32_t layer, uint32_t end) const {
  std::vector<CopyJob> jobs;
  auto add = [&](uint64_t page, uint64_t block, uint64_t bytes) {
    const bool gather = request.direction == MoveDirection::kGather;
    const CopyJob job = gather ? CopyJob{page, block, bytes} : CopyJob{block, page, bytes};
    if (!jobs.empty() && jobs.back().from + jobs.back().bytes == job.from &&
        jobs.back().to + jobs.back().bytes == job.to) {
      jobs.back().bytes += bytes;
    } else {
      jobs.push_back(job);
    }
  };
  for (size_t i = 0; i < request.blocks.size(); ++i) {
    for (size_t n = layer * TensorsPerLayer(); n < end * TensorsPerLayer(); ++n) {
      const MoveTensor& t = tensors_[n];
      for (uint32_t head = 0; head < view_.kv_heads; ++head) {
        for (uint32_t token = request.token_begin; token < request.token_end; ++token) {
          const int64_t page = request.blocks[i].page_ids[token / view_.page_tokens];
          add(t.base + static_cast<uint64_t>(page * t.page_stride + head * t.head_stride +
                                             token % view_.page_tokens * t.token_stride),
              request.addresses[i] +
                  static_cast<uint64_t>(t.block_offset +
                                        (int64_t{head} * layout_.tokens + token) * t.row_bytes),
              static_cast<uint64_t>(t.row_bytes));
        }
      }
    }
  }
  return jobs;
}

// Layers [layer, end) through the ring: whole layers over the bus, rows within the device. The
// event is of the first half.
absl::StatusOr<std::shared_ptr<DeviceEvent>> Transfer::Staged(const Request& request,
                                                              const Slot& slot, uint32_t layer,
                                                              uint32_t end) const {
  const uint64_t offset = LayerOffset(layer), bytes = LayerOffset(end) - offset;
  const bool gather = request.direction == MoveDirection::kGather;
  std::vector<CopyJob> jobs;
  for (size_t i = 0; i < request.blocks.size(); ++i) {
    const uint64_t ring = slot.ring_at + i * layout_.BlockBytes() + offset;
    const uint64_t host = request.addresses[i] + offset;
    jobs.push_back(gather ? CopyJob{ring, host, bytes} : CopyJob{host, ring, bytes});
  }
  const Launch launch = OfTensors(request.launch, static_cast<uint32_t>(layer * TensorsPerLayer()),
                                  static_cast<uint32_t>((end - layer) * TensorsPerLayer()));
  DeviceStream& first = gather ? *slot.kernels : *slot.copies;
  DeviceStream& second = gather ? *slot.copies : *slot.kernels;
  KV_RETURN_IF_ERROR(gather ? first.Run(launch) : first.Copy(jobs, CopyOrder::kAny));
  KV_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> half, first.Record());
  KV_RETURN_IF_ERROR(second.WaitFor(*half));
  KV_RETURN_IF_ERROR(gather ? second.Copy(jobs, CopyOrder::kStream) : second.Run(launch));
  return half;
}

absl::Status Transfer::Queue(const Request& request, Slot* slot, Move* move) const {
  const bool gather = request.direction == MoveDirection::kGather;
  const bool staged = method_ == MoveMethod::kStaged;
  std::shared_ptr<DeviceEvent> before = request.engine.after;
  if (before == nullptr) {
    KV_ASSIGN_OR_RETURN(before, device_->RecordEngine(request.engine.stream));
  }
  KV_RETURN_IF_ERROR(slot->kernels->WaitFor(*before));
  std::shared_ptr<DeviceEvent> pages_read;  // of a gather
  // The tokens outside the range must stay as they are in the block, too.
  const bool whole = request.token_begin == 0 && request.token_end == layout_.tokens;
  for (uint32_t layer = 0; layer < layout_.layers; layer += layers_per_group_) {
    const uint32_t end = std::min(layer + layers_per_group_, layout_.layers);
    if (method_ == MoveMethod::kCopies) {
      KV_RETURN_IF_ERROR(slot->kernels->Copy(Pieces(request, layer, end),
                                             gather ? CopyOrder::kStream : CopyOrder::kAny));
    } else if (staged && (whole || !gather)) {
      KV_ASSIGN_OR_RETURN(pages_read, Staged(request, *slot, layer, end));
    } else if (staged) {
      return absl::InvalidArgumentError("a staged gather is of whole blocks");
    } else {
      KV_RETURN_IF_ERROR(slot->kernels->Run(
          OfTensors(request.launch, static_cast<uint32_t>(layer * TensorsPerLayer()),
                    static_cast<uint32_t>((end - layer) * TensorsPerLayer()))));
    }
    DeviceStream& last = staged && gather ? *slot->copies : *slot->kernels;
    KV_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> event, last.Record());
    move->events_.push_back(std::move(event));
    move->ends_.push_back(end);
  }
  if (!gather) return absl::OkStatus();
  // The engine may write what was gathered only behind it; what is in the ring is no page.
  if (pages_read == nullptr) pages_read = move->events_.back();
  return slot->kernels->EngineAfter(request.engine.stream, *pages_read);
}

TransferStats Transfer::stats() const {
  MutexLock lock(&mutex_);
  TransferStats stats = stats_;
  stats.in_flight = places_->taken();
  return stats;
}

}  // namespace kvarve
