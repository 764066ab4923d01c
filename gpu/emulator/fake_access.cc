// Which memory kernels touch, and what must come before what.
#include <cstring>

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

void AddMove(const MoveParams& p, bool gather, Touches* touches) {
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
          touches->Add(t.base + page * t.page_stride + head * t.head_stride +
                           token % p.page_tokens * t.token_stride,
                       t.row_bytes, !gather);
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

}  // namespace

std::vector<Access> TouchesOf(const std::string& kernel, const void* params) {
  Touches touches;
  for (const KernelInfo& info : kKernels) {
    if (kernel != info.name) continue;
    if (info.family == KernelFamily::kGather || info.family == KernelFamily::kScatter) {
      MoveParams p;
      std::memcpy(&p, params, sizeof p);
      AddMove(p, info.family == KernelFamily::kGather, &touches);
    } else if (info.family == KernelFamily::kBatchCopy) {
      BatchCopyParams p;
      std::memcpy(&p, params, sizeof p);
      touches.Add(p.jobs, p.job_count * sizeof(CopyJob), false);
      for (uint32_t i = 0; i < p.job_count; ++i) {
        const CopyJob& job = At<CopyJob>(p.jobs)[i];
        touches.Add(job.from, job.bytes, false);
        touches.Add(job.to, job.bytes, true);
      }
    }
  }
  return touches.Take();
}

void FakeDriver::Report(const std::string& text) {
  if (diagnostics_.size() < 64) diagnostics_.push_back(text);
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
