// Streams and events of a CUDA device.
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gpu/device/cuda_core.h"
#include "storage/base/status_macros.h"

namespace kvarve::cuda {
namespace {

constexpr std::chrono::milliseconds kAgain(1);  // after a capture got in the way of a wait

// A wait that a capture forbids has not waited: what it is for may still move.
template <typename Call>
absl::Status WaitThroughCaptures(Call call) {
  for (;;) {
    const absl::Status status = call();
    if (!absl::IsUnavailable(status)) return status;
    std::this_thread::sleep_for(kAgain);
  }
}

Stream AsStream(EngineStream engine) { return reinterpret_cast<Stream>(engine); }

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(std::shared_ptr<const Core> core) : core_(std::move(core)) {}
  ~CudaEvent() override {
    if (event_ == nullptr) return;
    const InContext in(*core_);
    core_->driver().EventDestroy(event_);
  }
  absl::Status RecordOn(Stream stream) {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    if (event_ == nullptr)
      // Whoever waits for milliseconds of copying sleeps.
      KV_RETURN_IF_ERROR(
          KV_CUDA(core_->driver(), EventCreate, &event_, kEventDisableTiming | kEventBlockingSync));
    return KV_CUDA(core_->driver(), EventRecord, event_, stream);
  }
  absl::StatusOr<bool> Done() override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    const Result result = core_->driver().EventQuery(event_);
    if (result == kNotReady) return false;
    const absl::Status status = ToStatus(core_->driver(), result, "cuEventQuery");
    if (absl::IsUnavailable(status)) return false;
    KV_RETURN_IF_ERROR(status);
    return true;
  }
  absl::Status Wait() override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    return WaitThroughCaptures([&] { return KV_CUDA(core_->driver(), EventSynchronize, event_); });
  }
  Event event() const { return event_; }

 private:
  const std::shared_ptr<const Core> core_;
  Event event_ = nullptr;
};

absl::Status CheckNoCapture(const Core& core, EngineStream engine) {
  const InContext in(core);
  KV_RETURN_IF_ERROR(in.status());
  int state = kNotCapturing;
  KV_RETURN_IF_ERROR(KV_CUDA(core.driver(), StreamIsCapturing, AsStream(engine), &state));
  if (state == kNotCapturing) return absl::OkStatus();
  return absl::UnavailableError("the engine's stream captures a graph");
}

class CudaStream final : public DeviceStream {
 public:
  CudaStream(std::shared_ptr<const Core> core, Stream stream)
      : core_(std::move(core)), stream_(stream) {}
  ~CudaStream() override {
    const InContext in(*core_);
    core_->driver().StreamDestroy(stream_);
  }

  absl::Status Copy(std::span<const CopyJob> jobs, CopyOrder order) override {
    if (jobs.empty()) return absl::OkStatus();
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    if (jobs.size() == 1) {
      return KV_CUDA(core_->driver(), MemcpyAsync, jobs[0].to, jobs[0].from, jobs[0].bytes,
                     stream_);
    }
    std::vector<Address> to, from;
    std::vector<size_t> bytes;
    for (const CopyJob& job : jobs) {
      to.push_back(job.to);
      from.push_back(job.from);
      bytes.push_back(job.bytes);
    }
    CopyAttributes attributes{};
    attributes.source_access_order = order == CopyOrder::kAny ? kOrderAny : kOrderStream;
    size_t first = 0;  // the attributes hold from this copy on
    return KV_CUDA(core_->driver(), MemcpyBatchAsync, to.data(), from.data(), bytes.data(),
                   jobs.size(), &attributes, &first, 1, stream_);
  }

  absl::Status Run(const Launch& launch) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    std::array<std::byte, 256> params = launch.params;  // the driver copies it in the call
    void* arguments[] = {params.data()};
    return KV_CUDA(core_->driver(), LaunchKernel, core_->kernel(launch.kernel), launch.grid, 1, 1,
                   kKernelThreads, 1, 1, 0, stream_, arguments, nullptr);
  }

  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record() override {
    auto event = std::make_shared<CudaEvent>(core_);
    KV_RETURN_IF_ERROR(event->RecordOn(stream_));
    return event;
  }

  absl::Status Synchronize() override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    return WaitThroughCaptures(
        [&] { return KV_CUDA(core_->driver(), StreamSynchronize, stream_); });
  }

  absl::Status WaitFor(DeviceEvent& event) override { return Wait(stream_, event); }

  absl::Status WriteValue(uint64_t at, uint64_t value) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    return KV_CUDA(core_->driver(), StreamWriteValue64, stream_, at, value, 0);
  }
  absl::Status WaitValue(uint64_t at, uint64_t value) override {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    return KV_CUDA(core_->driver(), StreamWaitValue64, stream_, at, value, kWaitGreaterOrEqual);
  }

  absl::Status EngineAfter(EngineStream engine, DeviceEvent& event) override {
    KV_RETURN_IF_ERROR(CheckNoCapture(*core_, engine));
    return Wait(AsStream(engine), event);
  }

 private:
  absl::Status Wait(Stream stream, DeviceEvent& event) {
    const InContext in(*core_);
    KV_RETURN_IF_ERROR(in.status());
    return KV_CUDA(core_->driver(), StreamWaitEvent, stream, static_cast<CudaEvent&>(event).event(),
                   0);
  }

  const std::shared_ptr<const Core> core_;
  const Stream stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStream>> NewCudaStream(std::shared_ptr<const Core> core) {
  const InContext in(*core);
  KV_RETURN_IF_ERROR(in.status());
  Stream stream = nullptr;
  // The least priority: copies must not delay the engine's kernels.
  constexpr int kLeastPriority = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(core->driver(), StreamCreateWithPriority, &stream, kStreamNonBlocking,
                             kLeastPriority));
  return std::make_unique<CudaStream>(std::move(core), stream);
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> RecordEngineEvent(std::shared_ptr<const Core> core,
                                                               EngineStream engine) {
  KV_RETURN_IF_ERROR(CheckNoCapture(*core, engine));
  auto event = std::make_shared<CudaEvent>(std::move(core));
  KV_RETURN_IF_ERROR(event->RecordOn(AsStream(engine)));
  return event;
}

}  // namespace kvarve::cuda
