// What the status page shows that no counter keeps: samples of the last hour, and the latest slow
// requests. THREADS: any.  BLOCKS: the destructor, until a sample is taken.
#ifndef KVARVE_SERVICES_KVARVED_STATUS_HISTORY_H_
#define KVARVE_SERVICES_KVARVED_STATUS_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "services/local/options.h"
#include "storage/base/mutex.h"

namespace kvarve {

inline constexpr int64_t kStatusSampleNanos = 10'000'000'000;
inline constexpr size_t kStatusSamplesMax = 360;  // an hour
inline constexpr size_t kSlowRequestsKept = 32;

struct StatusSample {
  double unix_seconds = 0;
  // Since the daemon's start.
  uint64_t lookup_keys = 0, found_keys = 0;
  uint64_t hit_blocks = 0, miss_blocks = 0;
  uint64_t hit_bytes = 0, put_bytes = 0;
  double saved_seconds = 0;                 // of prefill, where engines told what it costs
  uint64_t used_bytes = 0, nvme_bytes = 0;  // at that moment
};

struct SlowRequestSeen {
  double unix_seconds = 0;
  std::string type;
  int64_t micros = 0;
  uint64_t session = 0;
  uint32_t uid = 0;
  uint64_t request_bytes = 0;
};

class StatusHistory {
 public:
  // Takes a sample at once and then each `interval_nanos`, in a thread of its own.
  explicit StatusHistory(std::function<StatusSample()> sample,
                         int64_t interval_nanos = kStatusSampleNanos);
  ~StatusHistory();

  std::vector<StatusSample> Samples() const;  // oldest first

 private:
  void Run();
  const std::function<StatusSample()> sample_;
  const int64_t interval_nanos_;
  mutable Mutex mutex_;
  CondVar stops_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<StatusSample> samples_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

class SlowRequests {
 public:
  void Add(const SlowRequest& request);
  std::vector<SlowRequestSeen> Latest() const;  // newest first

 private:
  mutable Mutex mutex_;
  std::deque<SlowRequestSeen> seen_ ABSL_GUARDED_BY(mutex_);
};

double UnixSecondsNow();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_STATUS_HISTORY_H_
