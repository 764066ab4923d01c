// The streams under way: how many there may be, how many bytes they may hold, what of both one
// tenant may have, and the end of those
// whose peer does nothing or is not welcome any more. A stream that waits for its peer (to read
// what it was sent, to send what it announced) longer than the stall limit is cancelled, and so is,
// within kWelcomeNanos and half a second, one whose caller has been revoked or has expired.
//
// THREADS: any.  BLOCKS: ~Stream, while the watch is cancelling this very stream.
#ifndef KVARVE_SERVICES_RPC_STREAMS_H_
#define KVARVE_SERVICES_RPC_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"

namespace kvarve {

struct StreamLimits {
  uint32_t streams = 1024;
  uint64_t write_bytes = 256ull << 20;  // held for writes under way
  int64_t stall_nanos = 10'000'000'000;
};

struct StreamStats {
  uint64_t open = 0, stalled = 0, unwelcome = 0, refused = 0, shed = 0;
  uint64_t write_bytes = 0;  // held by the streams that are open
};

class Streams {
 public:
  // One stream's place, from its call's begin to its end.
  class Stream {
   public:
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // It is the peer's turn / ours.
    void Waits();
    void Works() { waits_since_.store(0, std::memory_order_relaxed); }
    // Takes `bytes` for this stream's life. False, and counted as shed: there are not so many now.
    bool TakeBytes(uint64_t bytes);

   private:
    friend class Streams;
    Stream(Streams* streams, const grpc::CallbackServerContext* context, const std::string& tenant,
           std::function<bool()> welcome)
        : streams_(streams), context_(context), tenant_(tenant), welcome_(std::move(welcome)) {}
    Streams* const streams_;
    const grpc::CallbackServerContext* const context_;
    const std::string tenant_;
    const std::function<bool()> welcome_;
    std::atomic<int64_t> waits_since_{0};  // 0: it does not
    uint64_t bytes_ = 0;
    bool cancelling_ = false, cancelled_ = false;  // under the mutex of streams_
    std::list<Stream*>::iterator place_;
  };

  explicit Streams(const StreamLimits& limits);
  ~Streams();  // REQUIRES: no stream is left

  // A tenant has streams and bytes as long as it has at most so many times what is left free: alone
  // it may have all but a ninth, and however many want all, there is something left for who has
  // little (Choudhury and Hahne, "Dynamic queue length thresholds", 1998).
  static constexpr uint64_t kTimesFree = 8;
  // ResourceExhausted: too many. `context` outlives the stream. `welcome` is asked once in
  // kWelcomeNanos, under a lock: it must not block.
  static constexpr int64_t kWelcomeNanos = 1'000'000'000;
  absl::StatusOr<std::unique_ptr<Stream>> Open(const grpc::CallbackServerContext* context,
                                               const std::string& tenant,
                                               std::function<bool()> welcome);
  StreamStats Stats() const;

 private:
  struct Use {
    uint64_t streams = 0, bytes = 0;
  };
  void Watch();
  void CancelStalled();
  void CancelUnwelcome();
  // Cancels the first stream for which `ends`, again and again until there is none.
  void CancelEach(uint64_t* counter, absl::FunctionRef<bool(const Stream&)> ends)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StreamLimits limits_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Use> of_tenant_ ABSL_GUARDED_BY(mutex_);  // that has streams
  StreamStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_STREAMS_H_
