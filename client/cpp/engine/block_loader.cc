#include "client/cpp/engine/block_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve {

struct BlockLoader::Job {
  LoadJob job;
  int64_t submitted_nanos = 0;
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

void BlockLoader::Load(Job& job, LoadResult& result) {
  result.status = job.Check();
  if (!result.status.ok() || job.job.keys.empty()) return;
  absl::StatusOr<OpenBlocks> open =
      source_->Open(job.job.ns, job.job.keys, job.job.grants, job.job.request_id);
  if (!open.ok()) {
    result.status = open.status();
  } else if (open->blocks.size() < job.job.keys.size()) {
    result.status = absl::NotFoundError(absl::StrFormat("only %d of %d blocks are there",
                                                        open->blocks.size(), job.job.keys.size()));
  } else if (open->block_bytes != job.job.pages->layout().BlockBytes()) {
    result.status = absl::InvalidArgumentError(
        absl::StrFormat("blocks of %d bytes for pages of %d a block", open->block_bytes,
                        job.job.pages->layout().BlockBytes()));
  } else {
    result.status = Scatter(job, *open, result);
  }
}

absl::Status BlockLoader::Scatter(Job& job, const OpenBlocks& open, LoadResult& result) {
  const BlockLayout& layout = job.job.pages->layout();
  for (size_t i = 0; i < job.job.keys.size(); ++i) {
    const Job::Tokens tokens = job.TokensOf(i);
    if (tokens.begin < tokens.end) {
      if (options_.verify &&
          !source_->Verify(job.job.ns, job.job.keys[i], open.blocks[i], open.checksums[i])) {
        return absl::DataLossError(
            absl::StrFormat("block %d of %d does not match its checksum", i, job.job.keys.size()));
      }
      if (job.cancelled) return absl::OkStatus();  // End says so
      KV_RETURN_IF_ERROR(job.job.pages->Scatter({open.blocks[i], layout.BlockBytes()},
                                                job.PagesOf(i), tokens.begin, tokens.end));
      result.bytes += layout.BlockBytes() / layout.tokens * (tokens.end - tokens.begin);
    }
    ++result.blocks;
  }
  return absl::OkStatus();
}

}  // namespace kvarve
