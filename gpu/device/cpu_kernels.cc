#include "gpu/device/cpu_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "absl/strings/str_format.h"
#include "gpu/device/row_copy.h"

namespace kvarve {
namespace {

// Where K and V rows lie side by side, so many tokens of one are followed by the same of the other:
// then the memory is read and written in its own order.
constexpr uint32_t kTokensTogether = 4;

template <typename T>
T* At(uint64_t address, int64_t offset = 0) {
  return reinterpret_cast<T*>(address + static_cast<uint64_t>(offset));
}

int64_t RowOf(const MoveTensor& t, int64_t page, uint32_t head, uint32_t token) {
  return page * t.page_stride + int64_t{head} * t.head_stride + int64_t{token} * t.token_stride;
}

// Rows that lie at a stride in a page and one after the other in the block.
struct RowsInPage {
  std::byte* page = nullptr;
  int64_t stride = 0;
  std::byte* block = nullptr;
  uint64_t row_bytes = 0;
  uint32_t rows = 0;
};

// Writes rows to pages, having joined what is contiguous on both sides.
class RowJoiner {
 public:
  ~RowJoiner() { Flush(); }
  void Add(const RowsInPage& next) {
    if (last_.rows == 1 && next.rows == 1 && next.page == last_.page + last_.row_bytes &&
        next.block == last_.block + last_.row_bytes) {
      last_.row_bytes += next.row_bytes;
      return;
    }
    Flush();
    last_ = next;
  }

 private:
  void Flush() {
    if (last_.rows == 0) return;
    const auto dense = static_cast<int64_t>(last_.row_bytes);
    StreamRows({last_.page, last_.stride, last_.block, dense, last_.row_bytes, last_.rows});
  }
  RowsInPage last_;
};

// One block's rows, scattered in the order of the block.
class BlockRows {
 public:
  BlockRows(const MoveParams& p, uint32_t block, RowJoiner* joiner)
      : p_(p), joiner_(*joiner), block_(At<const uint64_t>(p.blocks)[block]) {
    ids_ = At<const int64_t>(p.page_ids) + size_t{block} * (p.block_tokens / p.page_tokens);
  }

  // Rows of all heads of one tensor, or of two whose rows lie side by side.
  void Add(const MoveTensor& first, const MoveTensor* second) {
    const uint32_t together = second == nullptr ? p_.block_tokens : kTokensTogether;
    for (uint32_t head = 0; head < p_.heads; ++head) {
      for (uint32_t begin = p_.token_begin, end; begin < p_.token_end; begin = end) {
        const uint32_t page_left = p_.page_tokens - begin % p_.page_tokens;
        end = begin + std::min({p_.token_end - begin, page_left, together});
        AddPiece(first, head, begin, end);
        if (second != nullptr) AddPiece(*second, head, begin, end);
      }
    }
  }

 private:
  // Tokens [begin, end) of one page.
  void AddPiece(const MoveTensor& t, uint32_t head, uint32_t begin, uint32_t end) {
    const int64_t page = ids_[begin / p_.page_tokens];
    if (page < 0) return;
    const bool dense = t.token_stride == t.row_bytes;
    RowsInPage rows;
    rows.page = At<std::byte>(t.base, RowOf(t, page, head, begin % p_.page_tokens));
    rows.stride = t.token_stride;
    rows.block = At<std::byte>(
        block_, t.block_offset + (int64_t{head} * p_.block_tokens + begin) * t.row_bytes);
    rows.row_bytes = static_cast<uint64_t>(dense ? (end - begin) * t.row_bytes : t.row_bytes);
    rows.rows = dense ? 1 : end - begin;
    joiner_.Add(rows);
  }

  const MoveParams& p_;
  RowJoiner& joiner_;
  const uint64_t block_;
  const int64_t* ids_;
};

// A block's pages, gathered in the order in which each page lies in memory, several side by side:
// writes past the caches may go anywhere, reads in any other order cost more.
class PageLanes {
 public:
  PageLanes(const MoveParams& p, uint32_t block)
      : p_(p), block_(At<const uint64_t>(p.blocks)[block]) {
    ids_ = At<const int64_t>(p.page_ids) + size_t{block} * (p.block_tokens / p.page_tokens);
  }
  ~PageLanes() {
    while (count_ > 0) Flush();
  }

  // All heads of one tensor, or of two whose rows lie side by side.
  void Add(const MoveTensor& first, const MoveTensor* second) {
    for (uint32_t begin = p_.token_begin, end; begin < p_.token_end; begin = end) {
      end = begin + std::min(p_.token_end - begin, p_.page_tokens - begin % p_.page_tokens);
      AddPage(first, begin, end);
      if (second != nullptr) AddPage(*second, begin, end);
    }
  }

 private:
  struct Lane {
    const MoveTensor* tensor = nullptr;
    uint32_t tokens = 0;
    const std::byte* page = nullptr;  // of the first token and head
    std::byte* block = nullptr;
  };

  void AddPage(const MoveTensor& t, uint32_t begin, uint32_t end) {
    const int64_t page = ids_[begin / p_.page_tokens];
    if (page < 0) return;
    Lane lane{&t, end - begin, At<std::byte>(t.base, RowOf(t, page, 0, begin % p_.page_tokens)),
              At<std::byte>(block_, t.block_offset + begin * t.row_bytes)};
    __builtin_prefetch(lane.page);  // a page of memory that nobody expects is found meanwhile
    lanes_[count_++] = lane;
    if (count_ == lanes_.size()) Flush();
  }

  static bool SameShape(const Lane& a, const Lane& b) {
    return a.tensor->row_bytes == b.tensor->row_bytes && a.tokens == b.tokens &&
           a.tensor->head_stride == b.tensor->head_stride &&
           a.tensor->token_stride == b.tensor->token_stride;
  }

  // The oldest lanes that can go side by side.
  void Flush() {
    flushed_ = 1;
    while (flushed_ < std::min(count_, kMaxLanes) && SameShape(lanes_[0], lanes_[flushed_]))
      ++flushed_;
    const MoveTensor& t = *lanes_[0].tensor;
    const int64_t block_head = int64_t{p_.block_tokens} * t.row_bytes;
    const uint32_t tokens = lanes_[0].tokens;
    if (t.token_stride == t.row_bytes) {  // a head's rows are one
      for (uint32_t head = 0; head < p_.heads; ++head)
        Stream(head * t.head_stride, 0, head * block_head, 0, tokens * t.row_bytes, 1);
    } else if (t.head_stride < t.token_stride) {
      for (uint32_t token = 0; token < tokens; ++token) {
        Stream(token * t.token_stride, t.head_stride, token * t.row_bytes, block_head, t.row_bytes,
               p_.heads);
      }
    } else {
      for (uint32_t head = 0; head < p_.heads; ++head) {
        Stream(head * t.head_stride, t.token_stride, head * block_head, t.row_bytes, t.row_bytes,
               tokens);
      }
    }
    std::copy(lanes_.begin() + flushed_, lanes_.begin() + count_, lanes_.begin());
    count_ -= flushed_;
  }

  // So many rows of each lane, from offsets in its page and in its block.
  void Stream(int64_t page, int64_t page_stride, int64_t block, int64_t block_stride,
              int64_t row_bytes, uint32_t rows) {
    std::array<RowCopy, kMaxLanes> copies;
    for (size_t i = 0; i < flushed_; ++i) {
      copies[i] = {
          lanes_[i].block + block,          block_stride, lanes_[i].page + page, page_stride,
          static_cast<uint64_t>(row_bytes), rows};
    }
    StreamLanes(std::span(copies).first(flushed_));
  }

  const MoveParams& p_;
  const uint64_t block_;
  const int64_t* ids_;
  std::array<Lane, 2 * kMaxLanes> lanes_;
  size_t count_ = 0, flushed_ = 0;
};

bool SideBySide(const MoveTensor& a, const MoveTensor& b) {
  return a.base + static_cast<uint64_t>(a.row_bytes) == b.base &&
         a.token_stride == b.token_stride && a.head_stride == b.head_stride &&
         a.page_stride == b.page_stride;
}

void Copy(uint64_t to, uint64_t from, uint64_t bytes) {
  const auto row = static_cast<int64_t>(bytes);
  StreamRows({At<std::byte>(to), row, At<const std::byte>(from), row, bytes, 1});
}

void CopyPages(const CopyPagesParams& p) {
  const auto* const pairs = At<const int64_t>(p.pairs);
  for (uint32_t pair = 0; pair < p.pair_count; ++pair) {
    const int64_t from = pairs[2 * pair], to = pairs[2 * pair + 1];
    if (from < 0 || to < 0) continue;
    for (uint32_t i = 0; i < p.tensor_count; ++i) {
      const MoveTensor& t = At<const MoveTensor>(p.tensors)[i];
      for (uint32_t head = 0; head < p.heads; ++head) {
        for (uint32_t token = 0; token < p.page_tokens; token += p.piece_tokens) {
          Copy(t.base + static_cast<uint64_t>(RowOf(t, to, head, token)),
               t.base + static_cast<uint64_t>(RowOf(t, from, head, token)),
               static_cast<uint64_t>(p.piece_tokens * t.row_bytes));
        }
      }
    }
  }
}

void ReshapeAndCache(const ReshapeParams& p) {
  for (uint32_t token = 0; token < p.token_count; ++token) {
    const int64_t slot = At<const int64_t>(p.slots)[token];
    if (slot < 0) continue;
    for (uint32_t i = 0; i < p.tensor_count; ++i) {
      const MoveTensor& t = p.cache[i];
      for (uint32_t head = 0; head < p.heads; ++head) {
        const uint64_t from = p.rows[i] + static_cast<uint64_t>(token * p.rows_token_stride[i] +
                                                                head * p.rows_head_stride[i]);
        const auto place = static_cast<uint32_t>(slot % p.page_tokens);
        Copy(t.base + static_cast<uint64_t>(RowOf(t, slot / p.page_tokens, head, place)), from,
             static_cast<uint64_t>(t.row_bytes));
      }
    }
  }
}

void BatchCopy(const BatchCopyParams& p) {
  for (uint32_t i = 0; i < p.job_count; ++i) {
    const CopyJob& job = At<const CopyJob>(p.jobs)[i];
    Copy(job.to, job.from, job.bytes);
  }
  if (p.done == 0) return;
  StreamFence();
  __atomic_store_n(At<uint64_t>(p.done), p.done_value, __ATOMIC_RELEASE);
}

template <typename Params>
Params ParamsOf(const Launch& launch) {
  Params params;
  std::memcpy(&params, launch.params.data(), sizeof params);
  return params;
}

}  // namespace

void MoveOnCpu(const MoveParams& p, bool gather) {
  const auto* const tensors = At<const MoveTensor>(p.tensors);
  auto each = [&](auto& rows) {
    for (uint32_t i = 0; i < p.tensor_count; ++i) {
      const bool pair = i + 1 < p.tensor_count && SideBySide(tensors[i], tensors[i + 1]);
      rows.Add(tensors[i], pair ? &tensors[i + 1] : nullptr);
      if (pair) ++i;
    }
  };
  if (gather) {
    for (uint32_t block = 0; block < p.block_count; ++block) {
      PageLanes lanes(p, block);
      each(lanes);
    }
  } else {
    RowJoiner joiner;
    for (uint32_t block = 0; block < p.block_count; ++block) {
      BlockRows rows(p, block, &joiner);
      each(rows);
    }
  }
  StreamFence();
}

absl::Status RunOnCpu(const Launch& launch) {
  const KernelInfo& info = kKernels[launch.kernel];
  switch (info.family) {
    case KernelFamily::kGather:
    case KernelFamily::kScatter:
      MoveOnCpu(ParamsOf<MoveParams>(launch), info.family == KernelFamily::kGather);
      return absl::OkStatus();
    case KernelFamily::kCopyPages:
      CopyPages(ParamsOf<CopyPagesParams>(launch));
      break;
    case KernelFamily::kReshapeAndCache:
      ReshapeAndCache(ParamsOf<ReshapeParams>(launch));
      break;
    case KernelFamily::kBatchCopy:
      BatchCopy(ParamsOf<BatchCopyParams>(launch));
      break;
    default:
      return absl::UnimplementedError(absl::StrFormat("%s has no code for the CPU", info.name));
  }
  StreamFence();
  return absl::OkStatus();
}

}  // namespace kvarve
