// Put-if-absent, of whole blocks and of one in pieces, and what becomes of a block that is stored.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"
#include "storage/cache/put_call.h"

namespace kvarve {
namespace {

constexpr size_t kCopyAlignment = 64;

absl::Status CheckDepth(const PutRequest& request) {
  if (request.first_depth + request.keys.size() <= kMaxDepth) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("depth %d is over %d", request.first_depth, kMaxDepth));
}

class PutInPieces final : public BlockPut {
 public:
  PutInPieces(Cache::Rep* rep, const PutRequest& request)
      : r_(*rep), key_(request.keys[0]), request_(request), call_(rep, request_, {&result_, 1}) {
    request_.keys = {&key_, 1};
    call_.Begin();
    const size_t reserved = call_.Reserve(0, 1);
    if (call_.slots().empty()) {
      End(reserved);
      return;
    }
    call_.ReserveDirtyLater();
    block_bytes_ = call_.ns().info.block_bytes;
    sum_ = ChecksumSeed(call_.ns().info.id, key_, block_bytes_);
    to_ = r_.arena->Data(call_.slots()[0]);
  }
  ~PutInPieces() override {
    if (to_ != nullptr) call_.Abandon();
  }

  bool wants_bytes() const override { return to_ != nullptr; }

  // A copy starts at a multiple of 64 bytes; what lies before the first one goes by itself.
  void Append(std::span<const std::byte> piece) override {
    if (to_ == nullptr || piece.empty()) return;
    KV_CHECK(piece.size() <= block_bytes_ - size_);
    std::byte* const to = to_ + size_;
    const size_t head =
        std::min<size_t>(-reinterpret_cast<uintptr_t>(to) % kCopyAlignment, piece.size());
    std::memcpy(to, piece.data(), head);
    sum_ = BlockChecksum(sum_, to, head);
    if (head < piece.size()) {
      sum_ = CopyAndChecksum(to + head, piece.data() + head, piece.size() - head, sum_);
    }
    size_ += piece.size();
  }

  absl::StatusOr<PutResult> Finish(std::optional<uint64_t> expected) override {
    if (to_ == nullptr) return result_;
    if (size_ != block_bytes_) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "put of a block of %d bytes; the namespace's have %d", size_, block_bytes_));
    }
    const bool is_whole = !expected || *expected == sum_;
    if (!is_whole) call_.Fail(PutResult::kRejectedPolicy);
    End(is_whole ? 1 : 0);
    if (is_whole) return result_;
    return absl::DataLossError("the block does not have the checksum that was promised");
  }

 private:
  // `end`: 1 if the block may be published, or exists.
  void End(size_t end) {
    to_ = nullptr;
    call_.End(call_.Publish(0, end, {&sum_, 1}));
    r_.TellPut(request_);
  }

  Cache::Rep& r_;
  const BlockKey key_;
  PutRequest request_;
  PutResult result_ = PutResult::kRejectedPolicy;
  PutCall call_;  // of the two above
  // Of the block that is coming; no `to_`: it is over.
  std::byte* to_ = nullptr;
  uint64_t block_bytes_ = 0, size_ = 0, sum_ = 0;
};

}  // namespace

std::optional<EntryId> Cache::Rep::InsertBlock(const NamespaceRecord& ns, const NewBlock& block) {
  const auto id = index->Insert(ns.index, block.key, block.parent, block.depth, block.slot.packed,
                                block.checksum);
  if (!id.ok()) return std::nullopt;
  ++blocks_of_index[ns.index];
  arena->SetOwner(block.slot, *id);
  const EntryId linked = index->Get(*id).parent;
  families.Add(*id);
  if (linked != kNoEntry) {
    families.SetParent(*id, linked);
  } else if (block.parent != nullptr && block.depth > 0 &&
             index->Find(ns.index, *block.parent) == kNoEntry) {
    const bool is_on_device = tier != nullptr && tier->Find(ns, *block.parent) != kNoEntry;
    families.SetParent(*id, {ns.index, block.depth - 1, *block.parent}, ns.group,
                       is_on_device ? Families::Parent::kOnDevice : Families::Parent::kGone);
  }
  BlockTraits traits = TraitsOf(ns, block.key, block.depth, linked, block.recompute_us);
  traits.is_loaded = block.is_loaded;
  policy->OnInsert(*id, traits, /*evictable=*/true);
  if (linked != kNoEntry && index->Get(linked).children == 1) policy->OnEvictable(linked, false);
  if (families.Adopt(*id, {ns.index, block.depth, block.key})) {
    index->AddChild(*id);
    policy->OnEvictable(*id, false);
  }
  return *id;
}

std::string_view PutResultName(PutResult result) {
  switch (result) {
    case PutResult::kStored:
      return "stored";
    case PutResult::kExists:
      return "exists";
    case PutResult::kRejectedParent:
      return "rejected_parent";
    case PutResult::kRejectedNoSpace:
      return "rejected_no_space";
    case PutResult::kRejectedPolicy:
      return "rejected_policy";
    case PutResult::kRejectedInvalidated:
      return "rejected_invalidated";
    case PutResult::kRejectedQuota:
      return "rejected_quota";
    case PutResult::kShed:
      return "shed";
  }
  return "unknown";
}

absl::Status Cache::Put(const PutRequest& request, std::span<PutResult> results) {
  if (request.keys.size() != results.size() || request.keys.size() != request.sources.size() ||
      request.keys.size() > kMaxKeysPerCall) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "put of %d keys with %d sources and %d results: they must be as many, at most %d",
        request.keys.size(), request.sources.size(), results.size(), kMaxKeysPerCall));
  }
  KV_RETURN_IF_ERROR(CheckDepth(request));
  PutCall(rep_.get(), request, results).Run();
  rep_->TellPut(request);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlockPut>> Cache::BeginPut(const PutRequest& request) {
  if (request.keys.size() != 1 || !request.sources.empty()) {
    return absl::InvalidArgumentError("a put in pieces is of one block");
  }
  KV_RETURN_IF_ERROR(CheckDepth(request));
  return std::make_unique<PutInPieces>(rep_.get(), request);
}

}  // namespace kvarve
