#include "client/cpp/engine/block_loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int64_t kRoomPollNanos = 1'000'000;
constexpr int64_t kRoomPatienceNanos = 5'000'000'000;  // for staging that other loads have

absl::Status Damaged(size_t block, size_t blocks) {
  return absl::DataLossError(
      absl::StrFormat("block %d of %d does not match its checksum", block, blocks));
}

}  // namespace

struct BlockLoader::Job {
  LoadJob job;
  int64_t submitted_nanos = 0;
  // What the engine's stream had at Submit; null on the CPU.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> before = std::shared_ptr<DeviceEvent>();
  std::atomic<bool> cancelled{false};  // set under the loader's mutex, read between blocks

  // The tokens of block i to be written, from the block's first; empty when begin == end.
  struct Tokens {
    uint32_t begin, end;
  };
  Tokens TokensOf(size_t i) const {
    const uint64_t tokens = job.pages->layout().tokens;
    auto inside = [&](uint64_t token) {
      return static_cast<uint32_t>(std::clamp(token, i * tokens, (i + 1) * tokens) - i * tokens);
    };
    return {inside(job.first_token), inside(job.end_token)};
  }
  std::span<const int64_t> PagesOf(size_t i) const {
    const uint32_t pages = job.pages->pages_per_block();
    return std::span(job.page_ids).subspan(i * pages, pages);
  }
  // All that can be known to be wrong before a byte moves.
  absl::Status Check() const;
};

absl::Status BlockLoader::Job::Check() const {
  if (job.pages == nullptr) return absl::InvalidArgumentError("a load without pages");
  KV_RETURN_IF_ERROR(before.status());
  if (job.page_ids.size() != job.keys.size() * job.pages->pages_per_block()) {
    return absl::InvalidArgumentError(absl::StrFormat("%d page ids for %d blocks of %d pages",
                                                      job.page_ids.size(), job.keys.size(),
                                                      job.pages->pages_per_block()));
  }
  if (job.grants && job.grants->items.size() != job.keys.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d grants for %d blocks", job.grants->items.size(), job.keys.size()));
  }
  if (job.first_token > job.end_token) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a load of tokens [%d, %d)", job.first_token, job.end_token));
  }
  for (size_t i = 0; i < job.keys.size(); ++i) {
    const Tokens tokens = TokensOf(i);
    KV_RETURN_IF_ERROR(job.pages->CheckPages(PagesOf(i), tokens.begin, tokens.end));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlockLoader>> BlockLoader::Create(
    std::unique_ptr<BlockSource> source, const Options& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d loader threads; 1 to %d are allowed", options.threads, kMaxThreads));
  }
  return std::unique_ptr<BlockLoader>(new BlockLoader(std::move(source), options));
}

BlockLoader::BlockLoader(std::unique_ptr<BlockSource> source, const Options& options)
    : source_(std::move(source)), options_(options) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

BlockLoader::~BlockLoader() { Stop(); }

absl::Status BlockLoader::Submit(LoadJob load) {
  auto job = std::make_shared<Job>();
  job->job = std::move(load);
  job->submitted_nanos = SystemClock::Get()->NowNanos();
  // Here and now, on the engine's own thread: a loader's thread would come behind steps that the
  // load need not wait for, or into a capture.
  if (job->job.pages != nullptr && !job->job.pages->device().is_cpu)
    job->before = job->job.pages->MarkEngine(job->job.engine);
  MutexLock lock(&mutex_);
  if (stopped_) return absl::FailedPreconditionError("the loader is stopped");
  if (jobs_.size() + unpolled_ >= kMaxJobs) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d loads are under way or not polled", kMaxJobs));
  }
  if (!jobs_.emplace(job->job.id, job).second) {
    return absl::AlreadyExistsError(absl::StrFormat("load %d is under way", job->job.id));
  }
  queue_.push_back(std::move(job));
  work_.notify_one();
  return absl::OkStatus();
}

bool BlockLoader::Cancel(uint64_t id) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return false;
  const std::shared_ptr<Job> job = found->second;
  job->cancelled = true;
  const auto queued = std::find(queue_.begin(), queue_.end(), job);
  if (queued != queue_.end()) {
    queue_.erase(queued);
    End(job, {});
  }
  return true;
}

std::vector<LoadResult> BlockLoader::Poll() {
  std::vector<LoadResult> results = completions_.Take();
  if (!results.empty()) {
    MutexLock lock(&mutex_);
    unpolled_ -= results.size();
  }
  return results;
}

void BlockLoader::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    threads.swap(threads_);
    for (const auto& [id, job] : jobs_) job->cancelled = true;
    for (const std::shared_ptr<Job>& job : std::exchange(queue_, {})) End(job, {});
  }
  work_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void BlockLoader::Run() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopped_) work_.wait(mutex_);
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    LoadResult result;
    Load(*job, result);
    MutexLock lock(&mutex_);
    End(job, std::move(result));
  }
}

// The only place where a job ends: it leaves jobs_ and its result goes out in one step, so that a
// Cancel which found it decides, and one which did not comes too late.
void BlockLoader::End(const std::shared_ptr<Job>& job, LoadResult result) {
  result.id = job->job.id;
  result.nanos = SystemClock::Get()->NowNanos() - job->submitted_nanos;
  if (job->cancelled) result.status = absl::CancelledError("the load was cancelled");
  jobs_.erase(job->job.id);
  ++unpolled_;
  completions_.Push(std::move(result));
}

// The leading blocks from `first` on. Waits while other loads have all the staging there is.
absl::StatusOr<OpenBlocks> BlockLoader::Open(Job& job, size_t first) {
  std::optional<GrantSet> grants = job.job.grants;
  if (grants && first > 0) {
    grants->items.erase(grants->items.begin(),
                        grants->items.begin() + static_cast<ptrdiff_t>(first));
  }
  const auto keys = std::span<const BlockKey>(job.job.keys).subspan(first);
  for (int64_t waited = 0;; waited += kRoomPollNanos) {
    absl::StatusOr<OpenBlocks> open = source_->Open(job.job.ns, keys, grants, job.job.request_id);
    if (open.ok() || !absl::IsResourceExhausted(open.status()) || waited >= kRoomPatienceNanos ||
        job.cancelled)
      return open;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kRoomPollNanos));
  }
}

void BlockLoader::Load(Job& job, LoadResult& result) {
  result.status = job.Check();
  const size_t blocks = job.job.keys.size();
  for (size_t first = 0; first < blocks && result.status.ok() && !job.cancelled;) {
    absl::StatusOr<OpenBlocks> open = Open(job, first);
    if (!open.ok()) {
      result.status = open.status();
    } else if (open->blocks.empty() || (!open->is_cut && first + open->blocks.size() < blocks)) {
      result.status = absl::NotFoundError(
          absl::StrFormat("only %d of %d blocks are there", first + open->blocks.size(), blocks));
    } else if (open->block_bytes != job.job.pages->layout().BlockBytes()) {
      result.status = absl::InvalidArgumentError(
          absl::StrFormat("blocks of %d bytes for pages of %d a block", open->block_bytes,
                          job.job.pages->layout().BlockBytes()));
    } else {
      result.status = Scatter(job, first, *open, result);
      first += open->blocks.size();
    }
  }
}

// `open` keeps the memory until this returns: by then no copy of it is under way, whatever
// happened.
absl::Status BlockLoader::Scatter(Job& job, size_t first, const OpenBlocks& open,
                                  LoadResult& result) {
  Transfer& transfer = *job.job.pages;
  const uint64_t block_bytes = transfer.layout().BlockBytes();
  const bool is_writable = open.path == HostPath::kWritable;
  // On the CPU a block is verified and written while it is in the caches.
  const size_t together = transfer.device().is_cpu ? 1 : transfer.max_blocks();
  MoveSet moves;
  std::vector<BlockMove> batch;
  Job::Tokens tokens{};
  auto flush = [&]() -> absl::Status {
    if (batch.empty()) return absl::OkStatus();
    const absl::Status started = moves.Start(transfer, MoveDirection::kScatter, batch, tokens.begin,
                                             tokens.end, {job.job.engine, *job.before},
                                             /*may_wait=*/true);
    batch.clear();
    return started;
  };
  absl::Status status;
  for (size_t k = 0; k < open.blocks.size() && status.ok(); ++k) {
    const size_t i = first + k;
    const Job::Tokens these = job.TokensOf(i);
    if (these.begin < these.end) {
      if (options_.verify && !is_writable &&
          !source_->Verify(job.job.ns, job.job.keys[i], open.blocks[k], open.checksums[k])) {
        status = Damaged(i, job.job.keys.size());
        break;
      }
      if (job.cancelled) break;  // End says so
      const bool fits =
          batch.size() < together && these.begin == tokens.begin && these.end == tokens.end;
      if (!fits) status = flush();
      tokens = these;
      batch.push_back({{const_cast<std::byte*>(open.blocks[k]), block_bytes}, job.PagesOf(i)});
      if (batch.size() == together && status.ok()) status = flush();
      result.bytes += block_bytes / transfer.layout().tokens * (these.end - these.begin);
    }
    ++result.blocks;
    ++result.by_path[static_cast<size_t>(open.path)];
  }
  if (status.ok() && !job.cancelled) status = flush();
  const absl::Status moved = moves.Wait();
  if (status.ok()) status = moved;
  if (status.ok() && is_writable) status = CheckCopied(job, first, open);
  return status;
}

absl::Status BlockLoader::CheckCopied(Job& job, size_t first, const OpenBlocks& open) {
  for (size_t k = 0; k < open.blocks.size(); ++k) {
    const Job::Tokens tokens = job.TokensOf(first + k);
    if (tokens.begin < tokens.end &&
        !source_->Verify(job.job.ns, job.job.keys[first + k], open.blocks[k], open.checksums[k]))
      return Damaged(first + k, job.job.keys.size());
  }
  return absl::OkStatus();
}

}  // namespace kvarve
