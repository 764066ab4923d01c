#include "services/rpc/write_run.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/frames/frames.h"
#include "client/rpc/grpc_status.h"
#include "proto/kvarve/v1/cache.pb.h"
#include "services/rpc/requests.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

v1::PutResult ResultOf(PutResult result) {
  switch (result) {
    case PutResult::kStored:
      return v1::PUT_STORED;
    case PutResult::kExists:
      return v1::PUT_EXISTS;
    case PutResult::kRejectedParent:
      return v1::PUT_REJECTED_PARENT;
    case PutResult::kRejectedNoSpace:
      return v1::PUT_REJECTED_NO_SPACE;
    case PutResult::kRejectedPolicy:
      return v1::PUT_REJECTED_POLICY;
    case PutResult::kRejectedInvalidated:
      return v1::PUT_REJECTED_INVALIDATED;
    case PutResult::kRejectedQuota:
      return v1::PUT_REJECTED_QUOTA;
    case PutResult::kShed:
      return v1::PUT_SHED;
  }
  return v1::PUT_UNSPECIFIED;
}

bool Taken(v1::PutResult result) { return result == v1::PUT_STORED || result == v1::PUT_EXISTS; }

// While a frame is copied the next one comes: gRPC may tell of it in another thread, and whoever is
// copying takes it then.
class Reactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  explicit Reactor(WriteRun run) : run_(std::move(run)) {
    run_.stream->Waits();
    Read();
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      arrived_ = ok;
      if (works_) return;
      works_ = true;
      run_.stream->Works();
    }
    while (Work(NextArrived())) {
    }
  }
  void OnDone() override {
    run_.ended(status_, bytes_, request_id_);
    delete this;
  }

 private:
  void Read() {
    frame_.Clear();
    StartRead(&frame_);
  }
  // What has come: a frame, or the end. Nothing: whoever hears of the next takes it.
  std::optional<bool> NextArrived() {
    MutexLock lock(&mutex_);
    if (!arrived_) {
      works_ = false;
      run_.stream->Waits();
    }
    return std::exchange(arrived_, std::nullopt);
  }

  // False: there is no more to do now, or ever.
  bool Work(std::optional<bool> arrived) {
    if (!arrived) return false;
    if (!*arrived) {  // no more frames, or no more peer
      if (!opened_ || offset_ != 0 || results_.empty()) {
        End(absl::InvalidArgumentError("the stream ended inside a block, or without one"));
      } else {
        Answer();
      }
      return false;
    }
    const absl::StatusOr<bool> more = Take();
    if (!more.ok()) {
      End(more.status());
    } else if (!*more) {
      Answer();
    }
    return more.ok() && *more;
  }

  // One frame; the next is asked for. False: the stream is over, whatever else comes.
  absl::StatusOr<bool> Take() {
    std::vector<grpc::Slice> slices;
    if (!frame_.Dump(&slices).ok()) return absl::InvalidArgumentError("frame: not readable");
    std::vector<frames::Piece> pieces;
    pieces.reserve(slices.size());
    for (const grpc::Slice& slice : slices) {
      pieces.push_back(std::as_bytes(std::span(slice.begin(), slice.size())));
    }
    KV_ASSIGN_OR_RETURN(const frames::Frame frame,
                        frames::ParseFrame(frames::Kind::kWrite, pieces));
    if (!opened_) {
      KV_ASSIGN_OR_RETURN(const bool is_taken, Open(frame));
      if (is_taken) Read();
      return is_taken;
    }
    KV_RETURN_IF_ERROR(CheckPlace(frame));
    const size_t blocks = 1 + frame.fields.more_checksums.size();
    const bool is_whole = offset_ + frame.payload_bytes == blocks * ns_.block_bytes;
    if (!is_whole || results_.size() + blocks < keys_.size()) Read();
    return Store(frame);
  }

  // A part of a block, or blocks one after the other. False: the stream is over.
  absl::StatusOr<bool> Store(const frames::Frame& frame) {
    const frames::FrameFields& fields = frame.fields;
    bytes_ += frame.payload_bytes;
    for (frames::Piece rest : frame.payload) {
      while (!rest.empty()) {
        const size_t i = results_.size() - fields.index;  // of the frame's blocks
        const size_t bytes = std::min<uint64_t>(rest.size(), ns_.block_bytes - offset_);
        const auto sum = i > 0 ? fields.more_checksums[i - 1] : fields.checksum;
        KV_ASSIGN_OR_RETURN(const bool more, StorePart(rest.first(bytes), sum));
        if (!more) return false;
        rest = rest.subspan(bytes);
      }
    }
    return true;
  }

  absl::StatusOr<bool> Open(const frames::Frame& frame) {
    v1::WriteRunOpen open;
    if (frame.fields.open.empty() || frame.payload_bytes != 0 ||
        !open.ParseFromString(frame.fields.open)) {
      return absl::InvalidArgumentError("the first frame is not an opening without payload");
    }
    KV_ASSIGN_OR_RETURN(ns_, NamespaceOf(*run_.store, run_.caller, open.ns_id()));
    KV_ASSIGN_OR_RETURN(keys_, KeysOf(open.keys(), ns_, frames::kMaxBlocksPerRun));
    if (keys_.empty()) return absl::InvalidArgumentError("a write of no blocks");
    if (!open.parent().empty()) {
      KV_ASSIGN_OR_RETURN(parent_, KeyOf(open.parent(), ns_));
    }
    if (open.first_depth() > kMaxDepth - keys_.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("depth %d is over %d", open.first_depth(), kMaxDepth));
    }
    first_depth_ = open.first_depth();
    request_id_ = open.request_id();
    recompute_us_ = open.recompute_us();
    opened_ = true;
    // The block that is put together, in its place, and the frame that comes meanwhile.
    const uint64_t together =
        ns_.block_bytes * std::min({keys_.size(), frames::kMaxBlocksPerFrame,
                                    frames::kMaxWrittenTogetherBytes / ns_.block_bytes});
    const uint64_t alone = std::min(ns_.block_bytes, frames::kMaxPayloadBytes);
    if (run_.stream->TakeBytes(ns_.block_bytes + std::max(together, alone))) {
      return true;
    }
    results_.assign(keys_.size(), v1::PUT_SHED);
    return false;
  }

  absl::Status CheckPlace(const frames::Frame& frame) const {
    const frames::FrameFields& fields = frame.fields;
    if (!fields.open.empty()) return absl::InvalidArgumentError("a second opening");
    if (fields.index != results_.size() || fields.offset != offset_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a frame of block %d at %d; block %d at %d comes next", fields.index,
                          fields.offset, results_.size(), offset_));
    }
    if (!fields.more_checksums.empty()) return CheckTogether(frame);
    if (frame.payload_bytes == 0 || frame.payload_bytes > frames::kMaxPayloadBytes ||
        frame.payload_bytes > ns_.block_bytes - offset_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a frame of %d bytes where 1 to %d belong", frame.payload_bytes,
                          std::min(frames::kMaxPayloadBytes, ns_.block_bytes - offset_)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTogether(const frames::Frame& frame) const {
    const size_t blocks = 1 + frame.fields.more_checksums.size();
    const bool fits = blocks <= keys_.size() - results_.size() &&
                      blocks * ns_.block_bytes <= frames::kMaxWrittenTogetherBytes;
    if (offset_ != 0 || !fits || !frame.fields.checksum ||
        frame.payload_bytes != blocks * ns_.block_bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a frame of %d blocks and %d bytes at block %d; whole blocks of %d bytes with a checksum "
          "each, of %d bytes at most together, belong there",
          blocks, frame.payload_bytes, results_.size(), ns_.block_bytes,
          frames::kMaxWrittenTogetherBytes));
    }
    return absl::OkStatus();
  }

  // Copies a part of a block to where that will be. False: the stream is over.
  absl::StatusOr<bool> StorePart(frames::Piece part, std::optional<uint64_t> checksum) {
    if (offset_ == 0) KV_RETURN_IF_ERROR(Begin());
    offset_ += part.size();
    const bool is_whole = offset_ == ns_.block_bytes;
    if (put_ != nullptr) {
      if (checksum) expected_ = checksum;
      put_->Append(part);
      if (is_whole || !put_->wants_bytes()) KV_RETURN_IF_ERROR(FinishPut());
    }
    // A block that exists comes to its end all the same; one that is refused does not.
    if (!is_whole && (result_ == v1::PUT_UNSPECIFIED || Taken(result_))) return true;
    results_.push_back(std::exchange(result_, v1::PUT_UNSPECIFIED));
    offset_ = 0;
    return Taken(results_.back()) && results_.size() < keys_.size();
  }
  absl::Status Begin() {
    const size_t i = results_.size();
    PutRequest put;
    put.ns = ns_.handle;
    put.parent = i > 0 ? std::optional<BlockKey>(keys_[i - 1]) : parent_;
    put.first_depth = first_depth_ + static_cast<uint32_t>(i);
    put.keys = std::span(keys_).subspan(i, 1);
    put.request_id = request_id_;
    put.recompute_us = recompute_us_;
    put.quota_status = &quota_;
    put.retry_after_nanos = &retry_nanos_;
    expected_.reset();
    KV_ASSIGN_OR_RETURN(put_, run_.store->BeginPut(put));
    return absl::OkStatus();
  }
  absl::Status FinishPut() {
    const absl::StatusOr<PutResult> result = std::exchange(put_, nullptr)->Finish(expected_);
    const bool is_damaged = result.status().code() == absl::StatusCode::kDataLoss;
    if (!is_damaged) KV_RETURN_IF_ERROR(result.status());
    result_ = is_damaged ? v1::PUT_REJECTED_CHECKSUM : ResultOf(*result);
    return absl::OkStatus();
  }

  void Answer() {
    v1::WriteRunReply reply;
    const v1::PutResult last = results_.back();
    for (const v1::PutResult result : results_) reply.add_results(result);
    // A block that did not come leaves no hole either.
    for (size_t i = results_.size(); i < keys_.size(); ++i) {
      reply.add_results(v1::PUT_REJECTED_PARENT);
    }
    if (last == v1::PUT_SHED || last == v1::PUT_REJECTED_NO_SPACE) {
      reply.set_retry_after_ms(kShedRetryMillis);
    } else if (last == v1::PUT_REJECTED_QUOTA) {
      reply.set_retry_after_ms(static_cast<uint32_t>((retry_nanos_ + 999'999) / 1'000'000));
      reply.set_reason(ToGrpc(quota_).error_message());
    }
    *run_.response = SerializeMessage(reply);
    End(absl::OkStatus());
  }
  void End(const absl::Status& status) {
    status_ = status;
    put_.reset();
    ns_.open.reset();  // the caller may have its answer long before gRPC is done with the call
    Finish(ToGrpc(status));
  }

  WriteRun run_;
  Mutex mutex_;
  // Of the read under way, when it has ended: whether it brought a frame.
  std::optional<bool> arrived_ ABSL_GUARDED_BY(mutex_);
  // Somebody is in Work, or the stream is over.
  bool works_ ABSL_GUARDED_BY(mutex_) = false;
  bool opened_ = false;
  NamespaceInfo ns_;
  std::vector<BlockKey> keys_;
  std::optional<BlockKey> parent_;
  uint32_t first_depth_ = 0;
  uint64_t request_id_ = 0;
  uint32_t recompute_us_ = 0;

  grpc::ByteBuffer frame_;
  std::vector<v1::PutResult> results_;
  absl::Status quota_;
  int64_t retry_nanos_ = 0;
  uint64_t bytes_ = 0;
  absl::Status status_;

  // Of the block that is coming: its bytes that have come, the checksum that was promised, and what
  // became of it.
  std::unique_ptr<BlockPut> put_;  // null: that is known; tells quota_ and retry_nanos_
  uint64_t offset_ = 0;
  std::optional<uint64_t> expected_;
  v1::PutResult result_ = v1::PUT_UNSPECIFIED;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartWriteRun(WriteRun run) {
  return new Reactor(std::move(run));
}

}  // namespace kvarve
