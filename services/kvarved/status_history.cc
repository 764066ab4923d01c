#include "services/kvarved/status_history.h"

#include <chrono>
#include <utility>

#include "services/local/counters.h"

namespace kvarve {

double UnixSecondsNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

StatusHistory::StatusHistory(std::function<StatusSample()> sample, int64_t interval_nanos)
    : sample_(std::move(sample)), interval_nanos_(interval_nanos), thread_([this] { Run(); }) {}

StatusHistory::~StatusHistory() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  stops_.notify_all();
  thread_.join();
}

std::vector<StatusSample> StatusHistory::Samples() const {
  MutexLock lock(&mutex_);
  return {samples_.begin(), samples_.end()};
}

void StatusHistory::Run() {
  while (true) {
    StatusSample sample = sample_();  // not under the lock: it asks the cache
    MutexLock lock(&mutex_);
    if (samples_.size() == kStatusSamplesMax) samples_.pop_front();
    samples_.push_back(sample);
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(interval_nanos_);
    while (!is_stopping_ && std::chrono::steady_clock::now() < until)
      stops_.wait_until(mutex_, until);
    if (is_stopping_) return;
  }
}

void SlowRequests::Add(const SlowRequest& request) {
  SlowRequestSeen seen;
  seen.unix_seconds = UnixSecondsNow();
  seen.type = RequestTypeName(static_cast<size_t>(request.type));
  seen.micros = request.nanos / 1000;
  seen.session = request.session;
  seen.uid = request.uid;
  seen.request_bytes = request.bytes;
  MutexLock lock(&mutex_);
  if (seen_.size() == kSlowRequestsKept) seen_.pop_back();
  seen_.push_front(std::move(seen));
}

std::vector<SlowRequestSeen> SlowRequests::Latest() const {
  MutexLock lock(&mutex_);
  return {seen_.begin(), seen_.end()};
}

}  // namespace kvarve
