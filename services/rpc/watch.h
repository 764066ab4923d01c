// WatchEvents: one thread looks for new events and hands them to the streams that wait. A slow
// watcher holds nobody up: it reads from the store's window at its own pace, until that has gone on
// without it.
//
// THREADS: any.  BLOCKS: ~Watchers, for its thread.
#ifndef KVARVE_SERVICES_RPC_WATCH_H_
#define KVARVE_SERVICES_RPC_WATCH_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "proto/kvarve/v1/cache.pb.h"
#include "services/rpc/block_store.h"
#include "services/rpc/caller.h"
#include "services/rpc/streams.h"
#include "storage/base/mutex.h"

namespace kvarve {

// The event as its watchers see it, in its namespace.
void FillEvent(const CacheEvent& event, const NamespaceInfo& ns, v1::Event* out);

class Watchers {
 public:
  static constexpr int64_t kLookNanos = 20'000'000;
  static constexpr size_t kEventsPerBatch = 512;

  explicit Watchers(BlockStore* store);
  ~Watchers();  // REQUIRES: no call is left

  struct Call {
    std::unique_ptr<Streams::Stream> stream;
    Caller caller;
    uint64_t from = 0;  // first event wanted
    std::function<void(const absl::Status&)> ended;
  };
  // The call's reactor; it ends itself.
  grpc::ServerWriteReactor<v1::EventBatch>* Start(Call call);

 private:
  class Reactor;
  void Run();
  void Remove(const std::shared_ptr<Reactor>& reactor);
  // Fills `batch` with what `caller` may see from `from` on; returns where to go on.
  absl::StatusOr<uint64_t> Fill(const Caller& caller, uint64_t from, v1::EventBatch* batch);
  static void AddVisible(const std::vector<CacheEvent>& events, const Caller& caller,
                         v1::EventBatch* batch);

  BlockStore* const store_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::shared_ptr<Reactor>> reactors_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_WATCH_H_
