// Which memory kernels touch, and what must come before what.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_format.h"
#include "gpu/emulator/fake_driver.h"
#include "gpu/kernels/kernel_table.h"

namespace kvarve::fake {
namespace {

constexpr size_t kMaxHistory = 4096;

template <typename T>
const T* At(uint64_t address) {
  return reinterpret_cast<const T*>(address);
}

// Joins neighbours.
class Touches {
 public:
  void Add(uint64_t at, uint64_t bytes, bool write) {
    if (bytes == 0) return;
    if (!list_.empty() && list_.back().end == at && list_.back().write == write) {
      list_.back().end += bytes;
      return;
    }
    list_.push_back({at, at + bytes, write});
  }
  std::vector<Access> Take() { return std::move(list_); }

 private:
  std::vector<Access> list_;
};

uint64_t RowAt(const MoveTensor& t, int64_t page, uint32_t head, uint32_t token) {
  return t.base + page * t.page_stride + head * t.head_stride + token * t.token_stride;
}

// `page_bytes`: of a row in its page, where it is another than in the block.
template <typename PageBytes>
void AddMove(const MoveParams& p, bool gather, PageBytes page_bytes, Touches* touches) {
  const uint64_t per_block = p.block_tokens / p.page_tokens;
  touches->Add(p.tensors, p.tensor_count * sizeof(MoveTensor), false);
  touches->Add(p.page_ids, p.block_count * per_block * sizeof(int64_t), false);
  touches->Add(p.blocks, p.block_count * sizeof(uint64_t), false);
  for (uint32_t block = 0; block < p.block_count; ++block) {
    for (uint32_t i = 0; i < p.tensor_count; ++i) {
      const MoveTensor& t = At<MoveTensor>(p.tensors)[i];
      for (uint32_t head = 0; head < p.heads; ++head) {
        for (uint32_t token = p.token_begin; token < p.token_end; ++token) {
          const int64_t page = At<int64_t>(p.page_ids)[block * per_block + token / p.page_tokens];
          if (page < 0) continue;
          touches->Add(RowAt(t, page, head, token % p.page_tokens), page_bytes(t), !gather);
        }
        for (uint32_t token = p.token_begin; token < p.token_end; ++token) {
          if (At<int64_t>(p.page_ids)[block * per_block + token / p.page_tokens] < 0) continue;
          touches->Add(At<uint64_t>(p.blocks)[block] + t.block_offset +
                           (int64_t{head} * p.block_tokens + token) * t.row_bytes,
                       t.row_bytes, gather);
        }
      }
    }
  }
}

void AddPack(const PackParams& p, bool gather, Touches* touches) {
  auto page_bytes = [&](const MoveTensor& t) -> uint64_t {
    if (p.group == 0) return t.row_bytes * p.element_bytes;  // fp8: a byte each
    return t.row_bytes / (p.group / 2 + 4) * p.group * p.element_bytes;
  };
  AddMove(p.move, gather, page_bytes, touches);
  const uint64_t heads = uint64_t{p.move.block_count} * p.move.tensor_count * p.move.heads;
  if (p.group == 0) touches->Add(p.scales, heads * sizeof(float), gather);
}

void AddCopies(const CopyPagesParams& p, Touches* touches) {
  touches->Add(p.tensors, p.tensor_count * sizeof(MoveTensor), false);
  touches->Add(p.pairs, p.pair_count * 2 * sizeof(int64_t), false);
  for (uint32_t i = 0; i < p.pair_count * p.tensor_count * p.heads * p.page_tokens; ++i) {
    const uint32_t token = i % p.page_tokens, head = i / p.page_tokens % p.heads;
    const uint32_t rest = i / p.page_tokens / p.heads;
    const MoveTensor& t = At<MoveTensor>(p.tensors)[rest % p.tensor_count];
    const int64_t* const pair = At<int64_t>(p.pairs) + 2 * (rest / p.tensor_count);
    if (pair[0] < 0 || pair[1] < 0) continue;
    touches->Add(RowAt(t, pair[0], head, token), t.row_bytes, false);
    touches->Add(RowAt(t, pair[1], head, token), t.row_bytes, true);
  }
}

void AddReshape(const ReshapeParams& p, Touches* touches) {
  touches->Add(p.slots, p.token_count * sizeof(int64_t), false);
  for (uint32_t i = 0; i < p.token_count * p.tensor_count * p.heads; ++i) {
    const uint32_t head = i % p.heads, which = i / p.heads % p.tensor_count;
    const uint32_t token = i / p.heads / p.tensor_count;
    const int64_t slot = At<int64_t>(p.slots)[token];
    if (slot < 0) continue;
    const MoveTensor& t = p.cache[which];
    touches->Add(
        p.rows[which] + token * p.rows_token_stride[which] + head * p.rows_head_stride[which],
        t.row_bytes, false);
    touches->Add(RowAt(t, slot / p.page_tokens, head, static_cast<uint32_t>(slot % p.page_tokens)),
                 t.row_bytes, true);
  }
}

void AddBatch(const BatchCopyParams& p, Touches* touches) {
  touches->Add(p.jobs, p.job_count * sizeof(CopyJob), false);
  for (uint32_t i = 0; i < p.job_count; ++i) {
    const CopyJob& job = At<CopyJob>(p.jobs)[i];
    touches->Add(job.from, job.bytes, false);
    touches->Add(job.to, job.bytes, true);
  }
  if (p.done == 0) return;
  touches->Add(p.done, sizeof(uint64_t), true);
  touches->Add(p.counter, sizeof(uint32_t), true);
}

template <typename Params>
Params ParamsOf(const void* params) {
  Params p;
  std::memcpy(&p, params, sizeof p);
  return p;
}

}  // namespace

std::vector<Access> TouchesOf(const std::string& kernel, const void* params) {
  Touches touches;
  const auto* const info = std::find_if(std::begin(kKernels), std::end(kKernels),
                                        [&](const KernelInfo& row) { return kernel == row.name; });
  if (info == std::end(kKernels)) return {};
  using enum KernelFamily;
  const KernelFamily family = info->family;
  if (family == kGather || family == kScatter) {
    AddMove(
        ParamsOf<MoveParams>(params), family == kGather,
        [](const MoveTensor& t) { return static_cast<uint64_t>(t.row_bytes); }, &touches);
  } else if (family == kCopyPages) {
    AddCopies(ParamsOf<CopyPagesParams>(params), &touches);
  } else if (family == kReshapeAndCache) {
    AddReshape(ParamsOf<ReshapeParams>(params), &touches);
  } else if (family == kBatchCopy) {
    AddBatch(ParamsOf<BatchCopyParams>(params), &touches);
  } else if (family <= kScatterInt4) {  // attention's are told by their own tests
    AddPack(ParamsOf<PackParams>(params), family == kGatherFp8 || family == kGatherInt4, &touches);
  }
  return touches.Take();
}

void FakeDriver::Report(const std::string& text) {
  if (diagnostics_.size() < 64) diagnostics_.push_back(text);
}

std::map<uint64_t, FakeDriver::Range>::iterator FakeDriver::RangeOf(uint64_t at) {
  auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return ranges_.end();
  --after;
  return after->second.device && at - after->first < after->second.bytes ? after : ranges_.end();
}

bool FakeDriver::MayTouch(const Access& access) {
  auto after = ranges_.upper_bound(access.begin);
  if (after != ranges_.begin()) {
    const auto& [begin, range] = *std::prev(after);
    uint64_t end = begin + range.bytes;
    // Chunks that are mapped side by side are one memory to a kernel.
    for (;
         range.is_chunk && after != ranges_.end() && after->first == end && after->second.is_chunk;
         ++after)
      end += after->second.bytes;
    const bool inside = access.end <= end;
    if (inside && !(access.write && range.read_only)) return true;
    if (inside) {
      Report(access.what + " writes memory that is registered read-only");
      return false;
    }
    if (access.begin < end) {
      Report(access.what + " spans the end of an allocation or a registration");
      return false;
    }
  }
  Report(access.what + " touches memory that is neither the device's nor registered");
  return false;
}

bool FakeDriver::Order(const Clock& clock, const Access& access) {
  bool ordered = true;
  auto knows = [](const Clock& c, uint32_t stream, uint64_t time) {
    const auto found = c.find(stream);
    return found != c.end() && found->second >= time;
  };
  auto named = [](const Access& a) {
    return a.stream == 0 ? a.what : absl::StrFormat("%s on stream %d", a.what, a.stream);
  };
  for (const Access& old : history_) {
    if (old.stream == access.stream || old.end <= access.begin || access.end <= old.begin ||
        !(old.write || access.write) || knows(clock, old.stream, old.time))
      continue;
    ordered = false;
    // The host's own words come first: what it let go of, or used, too early.
    const bool host = access.stream == 0 || old.stream == 0;
    const Access& first = access.stream == 0 || !host ? access : old;
    const Access& other = &first == &access ? old : access;
    const std::string verb = first.write ? (host ? "" : " writes what ") : " reads what ";
    Report(host && first.write
               ? absl::StrFormat("%s before the event of %s", named(first), named(other))
               : absl::StrFormat("missing event wait: %s%s%s %s", named(first), verb, named(other),
                                 other.write ? "writes" : "reads"));
    break;
  }
  if (history_.size() >= kMaxHistory) {
    // What the host knows of orders nothing any more, once nothing older waits in a queue.
    bool idle = true;
    for (const auto& [handle, stream] : streams_) idle = idle && stream->queue.empty();
    std::erase_if(history_, [&](const Access& a) {
      return idle && (a.stream == 0 || knows(host_, a.stream, a.time));
    });
    while (history_.size() >= kMaxHistory) history_.pop_front();
  }
  history_.push_back(access);
  return ordered;
}

void FakeDriver::HostTouches(uint64_t at, uint64_t bytes, bool write, const std::string& what) {
  ++host_[0];
  Order(host_, {at, at + bytes, write, 0, host_[0], what});
}

void FakeDriver::HostReads(const void* at, size_t bytes, const std::string& what) {
  MutexLock lock(&mutex_);
  HostTouches(reinterpret_cast<uint64_t>(at), bytes, false, what);
}

void FakeDriver::HostWrites(const void* at, size_t bytes, const std::string& what) {
  MutexLock lock(&mutex_);
  HostTouches(reinterpret_cast<uint64_t>(at), bytes, true, "reused too early: " + what);
}

void FakeDriver::HostReleases(const void* at, size_t bytes, const std::string& what) {
  MutexLock lock(&mutex_);
  HostTouches(reinterpret_cast<uint64_t>(at), bytes, true, "early release: " + what);
}

}  // namespace kvarve::fake
