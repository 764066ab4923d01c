#include "client/rpc/pin_releases.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/kvarve/v1/cache.grpc.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace kvarve::client {
namespace {

constexpr int64_t kReleaseNanos = 2'000'000'000;
// How long a client that ends waits for them; then they are cancelled, and the pins end by time.
constexpr auto kEndTime = std::chrono::milliseconds(200);

struct Call {
  NodeLinkPtr link;
  grpc::ClientContext context;
  v1::UnpinRequest request;
  v1::UnpinReply reply;
};

}  // namespace

struct PinReleases::Calls {
  Mutex mutex;
  CondVar ended;
  std::unordered_map<Call*, std::unique_ptr<Call>> running ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Call>> over ABSL_GUARDED_BY(mutex);
};

PinReleases::PinReleases() : calls_(std::make_shared<Calls>()) {}

PinReleases::~PinReleases() {
  std::vector<std::unique_ptr<Call>> over;  // let go of behind the lock
  MutexLock lock(&calls_->mutex);
  const auto until = std::chrono::steady_clock::now() + kEndTime;
  while (!calls_->running.empty() &&
         calls_->ended.wait_until(calls_->mutex, until) != std::cv_status::timeout) {
  }
  for (const auto& [call, owned] : calls_->running) call->context.TryCancel();
  while (!calls_->running.empty()) calls_->ended.wait(calls_->mutex);
  over.swap(calls_->over);
}

void PinReleases::Release(const NodeLinkPtr& link, uint64_t pin) {
  auto owned = std::make_unique<Call>();
  Call* const call = owned.get();
  call->link = link;  // which this thread keeps too: it may be the call's end that comes first
  PrepareContext(&call->context, link->shown->token,
                 SystemClock::Get()->NowNanos() + kReleaseNanos);
  call->request.set_pin(pin);
  std::vector<std::unique_ptr<Call>> over;  // let go of behind the lock
  {
    MutexLock lock(&calls_->mutex);
    calls_->running.emplace(call, std::move(owned));
    over.swap(calls_->over);
  }
  link->stub->async()->Unpin(
      &call->context, &call->request, &call->reply, [call, calls = calls_](const grpc::Status&) {
        MutexLock lock(&calls->mutex);
        calls->over.push_back(std::move(calls->running.extract(call).mapped()));
        calls->ended.notify_all();
      });
}

}  // namespace kvarve::client
