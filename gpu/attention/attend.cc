#include "gpu/attention/attend.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kPage = 4096;

absl::Status CheckSizes(const AttendRequest& request) {
  uint64_t rows = 0;
  for (const AttentionSequence& sequence : request.sequences)
    rows += uint64_t{sequence.q_tokens} * request.options.q_heads;
  const auto check = [](uint64_t got, uint64_t want, const char* what) {
    if (got == want) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat("%s of %d numbers, not %d", what, got, want));
  };
  KV_RETURN_IF_ERROR(check(request.q.size(), rows * request.pages.k_dim, "q"));
  KV_RETURN_IF_ERROR(check(request.out.size(), rows * request.pages.v_dim, "out"));
  KV_RETURN_IF_ERROR(check(request.lse.size(), rows, "lse"));
  if (request.sinks.empty()) return absl::OkStatus();
  return check(request.sinks.size(), request.options.q_heads, "sinks");
}

absl::Status RunOnCpu(const AttendRequest& request) {
  KV_ASSIGN_OR_RETURN(PagedAttention attention,
                      PagedAttention::Create(request.pages, request.options, request.sequences));
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t item = next++; item < attention.items(); item = next++)
      attention.Run(item, request.q.data());
  };
  {
    std::vector<std::jthread> others;
    for (uint32_t i = 1; i < request.threads; ++i) others.emplace_back(run);
    run();
  }
  attention.Finish(request.sinks, request.out.data(), request.lse.data());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Attender>> Attender::Create(std::shared_ptr<ComputeDevice> device,
                                                           uint64_t scratch_bytes) {
  std::unique_ptr<Attender> attender(new Attender(std::move(device)));
  ComputeDevice& on = *attender->device_;
  if (on.info().is_cpu) return attender;
  const uint64_t bytes = RoundUp(scratch_bytes, kPage);
  KV_ASSIGN_OR_RETURN(attender->scratch_, on.Allocate(bytes));
  KV_ASSIGN_OR_RETURN(attender->stream_, on.NewStream());
  // A registration has nothing else on its pages.
  attender->memory_.resize(bytes + kPage);
  const auto begin = reinterpret_cast<uint64_t>(attender->memory_.data());
  attender->host_ = std::span(attender->memory_).subspan(RoundUp(begin, kPage) - begin, bytes);
  KV_ASSIGN_OR_RETURN(attender->host_at_, on.Register(attender->host_, HostAccess::kReadWrite));
  return attender;
}

Attender::~Attender() {
  if (host_at_ != 0) device_->Unregister(host_.data()).IgnoreError();
}

absl::Status Attender::Run(const AttendRequest& request) {
  KV_RETURN_IF_ERROR(CheckSizes(request));
  return device_->info().is_cpu ? RunOnCpu(request) : RunOnDevice(request);
}

// The scratch, the same on both sides: [queries, sinks, tables][outputs, log-sum-exps][workspace].
// The first part is carried there, the second back.
absl::Status Attender::RunOnDevice(const AttendRequest& request) {
  KV_ASSIGN_OR_RETURN(const AttentionPlan plan,
                      AttentionPlan::Create(request.pages, request.options, request.sequences,
                                            !request.sinks.empty()));
  uint64_t end = 0;
  const auto room = [&](uint64_t bytes) {
    return std::exchange(end, RoundUp(end + bytes, kAlignment));
  };
  const uint64_t q = room(request.q.size_bytes()), sinks = room(request.sinks.size_bytes());
  const uint64_t page_ids = room(plan.page_ids().size_bytes());
  const uint64_t items = room(plan.items().size_bytes()), parts = room(plan.parts().size_bytes());
  const uint64_t merges = room(plan.merges().size_bytes()), there_end = end;
  const uint64_t out = room(request.out.size_bytes()), lse = room(request.lse.size_bytes());
  const uint64_t back_end = end, workspace = room(plan.workspace_bytes());
  if (end > scratch_.bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("attention needs a scratch of %d bytes, of %d", end, scratch_.bytes()));
  }
  const auto put = [&](uint64_t at, const auto& from) {
    if (!from.empty()) std::memcpy(host_.data() + at, from.data(), from.size_bytes());
  };
  put(q, request.q), put(sinks, request.sinks), put(page_ids, plan.page_ids());
  put(items, plan.items()), put(parts, plan.parts()), put(merges, plan.merges());
  const uint64_t base = scratch_.address();
  AttentionPlaces places;
  places.q = base + q, places.q_type = kF32, places.out_type = kF32;
  places.q_head_stride = int64_t{request.pages.k_dim} * int64_t{sizeof(float)};
  places.q_token_stride = places.q_head_stride * request.options.q_heads;
  places.out = base + out, places.lse = base + lse;
  places.sinks = request.sinks.empty() ? 0 : base + sinks;
  places.page_ids = base + page_ids, places.items = base + items;
  places.parts = base + parts, places.merges = base + merges, places.workspace = base + workspace;
  KV_ASSIGN_OR_RETURN(const std::vector<Launch> launches, plan.Launches(places));
  const CopyJob there{host_at_, base, there_end};
  const CopyJob back{base + out, host_at_ + out, back_end - out};
  absl::Status queued = stream_->Copy({&there, 1}, CopyOrder::kAny);
  for (const Launch& launch : launches) {
    if (queued.ok()) queued = stream_->Run(launch);
  }
  if (queued.ok()) queued = stream_->Copy({&back, 1}, CopyOrder::kStream);
  // Also after an error: something may be on the stream, and the scratch is in use until it is
  // over.
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> event, stream_->Record());
  KV_RETURN_IF_ERROR(event->Wait());
  KV_RETURN_IF_ERROR(queued);
  std::memcpy(request.out.data(), host_.data() + out, request.out.size_bytes());
  std::memcpy(request.lse.data(), host_.data() + lse, request.lse.size_bytes());
  return absl::OkStatus();
}

}  // namespace kvarve
